"""Cassandra 5 on Java 17, which speaks CQL: versions, configuration and JVM options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ingest_bench.jvm.mbeans import STRING_ARRAY, MBeanCall
from ingest_bench.jvm.options import collector_options, default_to_g1, heap_options
from ingest_bench.targets.base import NodeStart, Requirements, count_copies, pinned_jars, refuse_options
from ingest_bench.targets.cassandra import config

if TYPE_CHECKING:
    from ingest_bench.jvm.artifacts import Artifact
    from ingest_bench.model.results import ColumnValue
    from ingest_bench.model.target import TargetOptions
    from ingest_bench.targets.cassandra.config import Kind, Value

# Keys of cassandra.yaml that are not about addresses or permissions (org.apache.cassandra.config.Config of 5.0.9, which
# has 400).
_KEYS: Mapping[Kind, str] = {
    "whole": """
        available_processors commitlog_max_compression_buffers_in_pool concurrent_compactors concurrent_counter_writes
        concurrent_reads concurrent_writes memtable_flush_writers native_transport_max_requests_per_second
        native_transport_max_threads unlogged_batch_across_partitions_warn_threshold
    """,
    "number": "dynamic_snitch_badness_threshold memtable_cleanup_threshold phi_convict_threshold",
    "word": """
        commitlog_disk_access_mode commitlog_sync disk_access_mode disk_optimization_strategy flush_compression
        internode_compression memtable_allocation_type
    """,
    "flag": """
        autocompaction_on_startup_enabled buffer_pool_use_heap_if_exhausted dynamic_snitch file_cache_enabled
        file_cache_round_up hinted_handoff_enabled incremental_backups native_transport_flush_in_batches_legacy
        native_transport_rate_limiting_enabled native_transport_throw_on_overload rpc_keepalive
        snapshot_before_compaction trickle_fsync uuid_sstable_identifiers_enabled
    """,
    "duration": """
        commitlog_sync_group_window commitlog_sync_period gc_log_threshold gc_warn_threshold
        internode_tcp_connect_timeout internode_tcp_user_timeout max_hint_window native_transport_timeout
        periodic_commitlog_sync_lag_block range_request_timeout read_request_timeout request_timeout
        slow_query_log_timeout truncate_request_timeout write_request_timeout
    """,
    "size": """
        batch_size_fail_threshold batch_size_warn_threshold batchlog_replay_throttle column_index_cache_size
        column_index_size commitlog_segment_size commitlog_total_space compressed_read_ahead_buffer_size file_cache_size
        hinted_handoff_throttle internode_application_receive_queue_capacity internode_application_send_queue_capacity
        internode_max_message_size internode_socket_receive_buffer_size internode_socket_send_buffer_size key_cache_size
        max_mutation_size memtable_heap_space memtable_offheap_space native_transport_max_frame_size
        native_transport_max_message_size native_transport_max_request_data_in_flight
        native_transport_max_request_data_in_flight_per_ip native_transport_receive_queue_capacity networking_cache_size
        prepared_statements_cache_size row_cache_size sstable_preemptive_open_interval trickle_fsync_interval
    """,
    "rate": "compaction_throughput",
}
SETTINGS: Mapping[str, Kind] = {key: kind for kind, keys in _KEYS.items() for key in keys.split()}
# Required keys of cassandra.yaml, with the values of the project's own one.
_DEFAULTS: Mapping[str, Value] = {
    "commitlog_segment_size": "32MiB",
    "commitlog_sync": "periodic",
    "commitlog_sync_period": "10000ms",
    "disk_access_mode": "auto",
    "endpoint_snitch": "SimpleSnitch",
    "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
    # A request of a load is a batch. By default a batch above 5 KiB is logged and warned about in its response, above
    # 50 KiB is an error, and with more than ten partitions is logged.
    "batch_size_fail_threshold": "1GiB",
    "batch_size_warn_threshold": "1GiB",
    "unlogged_batch_across_partitions_warn_threshold": 2**16,
}
# The range of Murmur3Partitioner, from -2^63.
_TOKENS, _FIRST_TOKEN = 2**64, -(2**63)
_LOGBACK = """<configuration>
  <appender name="console" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{"yyyy-MM-dd HH:mm:ss,SSS", UTC} %5p %logger{0} %m%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="console"/></root>
</configuration>
"""
_EXPORTED_PACKAGES = """
    java.base/jdk.internal.misc java.management.rmi/com.sun.jmx.remote.internal.rmi java.rmi/sun.rmi.registry
    java.rmi/sun.rmi.server java.rmi/sun.rmi.transport.tcp java.sql/java.sql java.base/java.lang.ref
    jdk.unsupported/sun.misc
"""
_OPENED_PACKAGES = """
    java.base/java.lang.module java.base/jdk.internal.loader java.base/jdk.internal.ref java.base/jdk.internal.reflect
    java.base/jdk.internal.math java.base/jdk.internal.module java.base/jdk.internal.util.jar
    jdk.management/com.sun.management.internal java.base/sun.nio.ch java.base/java.io java.base/java.nio
    java.base/java.lang java.base/java.lang.reflect java.base/java.util java.base/java.util.concurrent
    java.base/java.util.concurrent.atomic
"""
# From conf/jvm-server.options and conf/jvm17-server.options of 5.0, which are in no jar: options besides heap,
# collector and a JMX port, without Java's defaults and heap dumps. Its Netty reads by NIO: a flight recorder does not
# see the reads of its native epoll.
_JVM = (
    "-ea",
    "-da:net.openhft...",
    "-Xss512k",
    "-XX:+AlwaysPreTouch",
    "-XX:+PerfDisableSharedMem",
    "-Djava.net.preferIPv4Stack=true",
    "-Dcassandra.native.epoll.enabled=false",
    # `is_ready` waits for the other nodes, by the log.
    "-Dcassandra.skip_wait_for_gossip_to_settle=0",
    "-Dcassandra-foreground=yes",
    "-Djdk.attach.allowAttachSelf=true",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.useCacheForAllThreads=true",
    "-Dio.netty.allocator.maxOrder=11",
    *(f"--add-exports={package}=ALL-UNNAMED" for package in _EXPORTED_PACKAGES.split()),
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED_PACKAGES.split()),
)
_G1 = (
    "-XX:+ParallelRefProcEnabled",
    "-XX:MaxTenuringThreshold=1",
    "-XX:G1HeapRegionSize=16m",
    "-XX:MaxGCPauseMillis=300",
    "-XX:InitiatingHeapOccupancyPercent=70",
)
_REFUSED_OPTIONS = ("receive_predictor_bytes", "allocator", "socket_receive_buffer_bytes")
_JARS = pinned_jars("cassandra-5.0.9")


class Cql:
    """The versions that speak CQL."""

    protocol = "cql"
    port = 9042
    main = "org.apache.cassandra.service.CassandraDaemon"
    versions: Mapping[str, Requirements] = {"5.0.9": Requirements(artifacts=_JARS, java_version=17)}
    # Cassandra asks this agent for the size of its memtables.
    agents: tuple[Artifact, ...] = tuple(jar for jar in _JARS if jar.name == "jamm")
    tools: ClassVar[tuple[Artifact, ...]] = ()

    def check(self, options: TargetOptions) -> None:
        """Raise SpecError for options that these versions lack."""
        config.parse_settings(options, SETTINGS)
        refuse_options(options, _REFUSED_OPTIONS, "cassandra has no setting for its clients' connections")
        count_copies(options)

    def config_files(self, node: NodeStart) -> dict[str, str]:
        """Return a node's configuration by file names below `home`. All nodes own equal parts of the ring."""
        listen, home, options = node.listen, node.home, node.options
        values = {
            **_DEFAULTS,
            **config.parse_settings(options, SETTINGS),
            "auto_bootstrap": False,
            "cdc_raw_directory": str(home / "cdc_raw"),
            "cluster_name": "ingest-bench",
            "commitlog_directory": str(home / "commitlog"),
            "data_file_directories": [str(home / "data")],
            "hints_directory": str(home / "hints"),
            "initial_token": str(_FIRST_TOKEN + node.number * _TOKENS // len(node.nodes)),
            "listen_address": listen.host,
            "native_transport_port": listen.port,
            "num_tokens": 1,
            "rpc_address": listen.host,
            "saved_caches_directory": str(home / "saved_caches"),
            "seed_provider": [
                {
                    "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
                    # The seed introduces the other nodes to each other.
                    "parameters": [{"seeds": f"{node.nodes[0].host}:{config.STORAGE_PORT}"}],
                }
            ],
            "storage_port": config.STORAGE_PORT,
        }
        return {config.FILE_NAME: config.format_yaml(values), "logback.xml": _LOGBACK}

    def jvm_flags(self, node: NodeStart) -> tuple[str, ...]:
        """Return the options of its JVM."""
        options, home = node.options, node.home
        gc = default_to_g1(options.gc)
        return (
            *heap_options(options.heap_bytes),
            *collector_options(gc, node.java.version),
            *(_G1 if gc == "g1" else ()),
            *_JVM,
            f"-Djava.io.tmpdir={home / 'tmp'}",
            f"-Dcassandra.config={(home / config.FILE_NAME).as_uri()}",
            f"-Dcassandra.storagedir={home}",
            f"-Dcassandra.logdir={home / 'logs'}",
            f"-Dlogback.configurationFile={(home / 'logback.xml').as_uri()}",
        )

    def table_options(self, options: TargetOptions, names: Sequence[str]) -> dict[str, Any]:
        """Return tables of these names, and how many nodes hold each row."""
        return {"tables": [*names], "copies": count_copies(options)}

    def flush_call(self, keyspace: str, table: str) -> MBeanCall:
        """Return the operation that writes a table to files."""
        return MBeanCall(
            name="org.apache.cassandra.db:type=StorageService",
            operation="forceKeyspaceFlush",
            signature=("java.lang.String", STRING_ARRAY),
            arguments=(keyspace, table),
        )

    def describe(self, options: TargetOptions) -> dict[str, ColumnValue]:
        """Return nothing: the configuration adds no values."""
        del options
        return {}
