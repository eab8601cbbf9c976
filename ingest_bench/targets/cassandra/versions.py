"""Versions of Cassandra, their configuration and JVM options. Pure.

0.7.4 and 0.7.5 on Java 11 speak Thrift (CASSANDRA-2463 was fixed between the two); 5.0.9 and 6.0-alpha2 on
Java 17 speak CQL.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ingest_bench.jvm.artifacts import Artifact
from ingest_bench.model.target import Collector, TargetOptions
from ingest_bench.model.values import MIB
from ingest_bench.targets.base import NodeStart, count_copies, pinned_jars, refuse_options
from ingest_bench.targets.settings import Settings, matching, parse_settings

_STORAGE_PORT = 7000
_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "whole": matching(r"-?[0-9]{1,9}", "a whole number", int),
    "number": matching(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", "a number", float),
    "word": matching(r"[A-Za-z0-9_.]{1,200}", "a word: letters, digits, dots and underscores"),
    "flag": matching(r"true|false", "true or false", lambda text: text == "true"),
    "duration": matching(
        r"[0-9]{1,9}(?:d|h|m|s|ms|us|ns)", 'a duration as Cassandra writes it, such as "10s" or "500ms"'
    ),
    "size": matching(r"[0-9]{1,9}(?:B|KiB|MiB|GiB)", 'a size as Cassandra writes it, such as "32MiB"'),
    "rate": matching(r"[0-9]{1,9}(?:B|KiB|MiB)/s", 'a rate as Cassandra writes it, such as "64MiB/s"'),
}
_REFUSED_OPTIONS = ("receive_predictor_bytes", "allocator", "socket_receive_buffer_bytes")


def _settings(keys: Mapping[str, str]) -> Settings:
    """Return settings that keep their names, by the kind of their values."""
    return {key: (key, _PARSERS[kind]) for kind, names in keys.items() for key in names.split()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Versions whose clients speak one protocol."""

    protocol: str
    port: int
    """The default of its clients' port; it identifies the generation of a node."""
    main: str
    java_version: int
    versions: Mapping[str, tuple[Artifact, ...]]
    """The classpath of each version."""
    default_gc: Collector
    settings: Settings
    refusal: str
    """Why it has none of _REFUSED_OPTIONS."""
    defaults: Mapping[str, Any]
    """Values of cassandra.yaml unless the user chooses others."""
    logging: tuple[str, str, str]
    """The name and text of the logging configuration, and the system property that names the file."""
    jvm: tuple[str, ...]
    """JVM options besides heap and collector; {home} stands for the home of a node."""
    flush: str
    """The operation of the MBean StorageService that writes a table to files."""
    node_values: Callable[[NodeStart], dict[str, Any]]
    """Returns values of cassandra.yaml that only this generation has. The seed introduces the other nodes."""
    tune_collector: Callable[[TargetOptions], tuple[str, ...]]
    """Returns the tuning of its own collector; none for others."""
    table_options: Callable[[TargetOptions], dict[str, Any]]
    """Returns further arguments of the request that creates tables; SpecError for what it lacks."""

    def check(self, options: TargetOptions) -> None:
        """Raise SpecError for options that these versions lack."""
        self.table_options(options)
        _parse(self.settings, options)
        refuse_options(options, _REFUSED_OPTIONS, self.refusal)

    def config_files(self, node: NodeStart) -> dict[str, str]:
        """Return a node's configuration by file names below `home`. All nodes own equal parts of the ring."""
        listen, home = node.listen, node.home
        values = {
            **self.defaults,
            **_parse(self.settings, node.options),
            "auto_bootstrap": False,
            "cluster_name": "ingest-bench",
            "commitlog_directory": str(home / "commitlog"),
            "data_file_directories": [str(home / "data")],
            "listen_address": listen.host,
            "rpc_address": listen.host,
            "saved_caches_directory": str(home / "saved_caches"),
            "storage_port": _STORAGE_PORT,
            **self.node_values(node),
        }
        values = {key: value for key, value in values.items() if key not in _MEMTABLE_SETTINGS}
        # JSON is YAML.
        return {"cassandra.yaml": json.dumps(values, indent=1) + "\n", self.logging[0]: self.logging[1]}

    def jvm_flags(self, node: NodeStart) -> tuple[str, ...]:
        """Return the options of its JVM besides heap and collector."""
        name, _, log_property = self.logging
        return (
            *(option.format(home=node.home) for option in self.jvm),
            *self.tune_collector(node.options),
            "-Djava.net.preferIPv4Stack=true",
            "-Dcassandra-foreground=yes",
            f"-Dcassandra.config={(node.home / 'cassandra.yaml').as_uri()}",
            f"-D{log_property}={(node.home / name).as_uri()}",
        )


def _parse(settings: Settings, options: TargetOptions) -> dict[str, Any]:
    return parse_settings("cassandra", settings, options)


# Options of each column family (CfDef of the interface of 0.7).
_MEMTABLE_SETTINGS: Settings = _settings(
    {"whole": "memtable_flush_after_mins memtable_throughput_in_mb", "number": "memtable_operations_in_millions"}
)
_LOG4J = """log4j.rootLogger=INFO,stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=%d{ISO8601} %5p %c{1} %m%n
"""
# Keys of cassandra.yaml that are not about addresses (org.apache.cassandra.config.Config of 0.7.4).
_THRIFT_SETTINGS: Settings = {
    **_settings(
        {
            "whole": """
        binary_memtable_throughput_in_mb column_index_size_in_kb commitlog_rotation_threshold_in_mb
        commitlog_sync_period_in_ms compaction_thread_priority concurrent_reads concurrent_writes
        in_memory_compaction_limit_in_mb index_interval memtable_flush_writers rpc_max_threads rpc_min_threads
        rpc_timeout_in_ms sliced_buffer_size_in_kb thrift_framed_transport_size_in_mb thrift_max_message_length_in_mb
    """,
            "word": """
        commitlog_sync compaction_preheat_key_cache disk_access_mode snapshot_before_compaction
    """,
            "number": """
        commitlog_sync_batch_window_in_ms flush_largest_memtables_at reduce_cache_capacity_to reduce_cache_sizes_at
    """,
        }
    ),
    **_MEMTABLE_SETTINGS,
}


def _thrift_node_values(node: NodeStart) -> dict[str, Any]:
    return {
        # The range of RandomPartitioner is 2^127.
        "initial_token": node.number * 2**127 // len(node.nodes),
        "rpc_port": node.listen.port,
        "seeds": [node.nodes[0].host],
    }


def _tune_cms(options: TargetOptions) -> tuple[str, ...]:
    if options.gc not in ("default", "cms"):
        return ()
    # 100 MB per core of two, or a quarter of the heap.
    young_bytes = min(200 * MIB, options.heap_bytes // 4)
    tuning = ("-XX:+CMSParallelRemarkEnabled", "-XX:SurvivorRatio=8", "-XX:MaxTenuringThreshold=1")
    return (*tuning, f"-Xmn{young_bytes}")


def _memtable_options(options: TargetOptions) -> dict[str, Any]:
    """Return when memtables are flushed.

    The defaults are those that 0.7.4 computes from the heap (CFMetaData); 0.7.5 would use half of that.
    """
    throughput_mb = options.heap_bytes // (16 * MIB)
    defaults = {
        "memtable_flush_after_mins": 60,
        "memtable_throughput_in_mb": throughput_mb,
        "memtable_operations_in_millions": 0.3 * throughput_mb / 64,
    }
    settings = _parse(_THRIFT_SETTINGS, options)
    return {"memtables": {key: float(settings[key]) if key in settings else value for key, value in defaults.items()}}


THRIFT = Generation(
    protocol="thrift",
    port=9160,
    main="org.apache.cassandra.thrift.CassandraDaemon",
    # The last Java that has CMS, which its start scripts choose, and that pip has.
    java_version=11,
    versions={version: pinned_jars(f"cassandra-{version}", "cassandra-0.7") for version in ("0.7.4", "0.7.5")},
    default_gc="cms",
    settings=_THRIFT_SETTINGS,
    refusal="cassandra has no Netty and no such setting",
    # Required or customary keys of a cassandra.yaml of 0.7. Not in_memory_compaction_limit_in_mb, whose default in both
    # versions is 256: CASSANDRA-2463 is about it.
    defaults={
        "authenticator": "org.apache.cassandra.auth.AllowAllAuthenticator",
        "authority": "org.apache.cassandra.auth.AllowAllAuthority",
        "column_index_size_in_kb": 64,
        "commitlog_rotation_threshold_in_mb": 128,
        "commitlog_sync": "periodic",
        "commitlog_sync_period_in_ms": 10000,
        "concurrent_reads": 32,
        "concurrent_writes": 32,
        "disk_access_mode": "auto",
        "endpoint_snitch": "org.apache.cassandra.locator.SimpleSnitch",
        "flush_largest_memtables_at": 0.75,
        "partitioner": "org.apache.cassandra.dht.RandomPartitioner",
        "reduce_cache_capacity_to": 0.6,
        "reduce_cache_sizes_at": 0.85,
        "request_scheduler": "org.apache.cassandra.scheduler.NoScheduler",
        "rpc_timeout_in_ms": 10000,
    },
    logging=("log4j.properties", _LOG4J, "log4j.configuration"),
    # From conf/cassandra-env.sh of later versions, since it is in no jar: options besides heap and collector, without
    # what Java 11 refuses (ThreadPriorityPolicy=42, a stack of 128 kB) and without a JMX port, which would be open to
    # all.
    jvm=("-ea", "-Xss256k", "-XX:MetaspaceSize=128m"),
    flush="forceTableFlush",
    node_values=_thrift_node_values,
    tune_collector=_tune_cms,
    table_options=_memtable_options,
)

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


def _cql_node_values(node: NodeStart) -> dict[str, Any]:
    seeds = f"{node.nodes[0].host}:{_STORAGE_PORT}"
    seed_provider = "org.apache.cassandra.locator.SimpleSeedProvider"
    return {
        "cdc_raw_directory": str(node.home / "cdc_raw"),
        "hints_directory": str(node.home / "hints"),
        # The range of Murmur3Partitioner is 2^64, from -2^63.
        "initial_token": str(node.number * 2**64 // len(node.nodes) - 2**63),
        "native_transport_port": node.listen.port,
        "num_tokens": 1,
        "seed_provider": [{"class_name": seed_provider, "parameters": [{"seeds": seeds}]}],
    }


def _tune_g1(options: TargetOptions) -> tuple[str, ...]:
    """Return the tuning of G1 in its own files."""
    if options.gc not in ("default", "g1"):
        return ()
    return (
        "-XX:+ParallelRefProcEnabled",
        "-XX:MaxTenuringThreshold=1",
        "-XX:G1HeapRegionSize=16m",
        "-XX:MaxGCPauseMillis=300",
        "-XX:InitiatingHeapOccupancyPercent=70",
    )


CQL = Generation(
    protocol="cql",
    port=9042,
    main="org.apache.cassandra.service.CassandraDaemon",
    java_version=17,
    versions={version: pinned_jars(f"cassandra-{version}", "cassandra-5") for version in ("5.0.9", "6.0-alpha2")},
    default_gc="g1",
    # Keys of cassandra.yaml that are not about addresses or permissions (org.apache.cassandra.config.Config of 5.0.9,
    # which has 400).
    settings=_settings(
        {
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
    ),
    refusal="cassandra has no setting for its clients' connections",
    # Required keys of cassandra.yaml, with the values of the project's own one.
    defaults={
        "commitlog_segment_size": "32MiB",
        "commitlog_sync": "periodic",
        "commitlog_sync_period": "10000ms",
        "disk_access_mode": "auto",
        "endpoint_snitch": "SimpleSnitch",
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        # A request of a load is a batch. By default a batch above 5 KiB is logged and warned about in its response,
        # above 50 KiB is an error, and with more than ten partitions is logged.
        "batch_size_fail_threshold": "1GiB",
        "batch_size_warn_threshold": "1GiB",
        "unlogged_batch_across_partitions_warn_threshold": 2**16,
    },
    logging=("logback.xml", _LOGBACK, "logback.configurationFile"),
    # From conf/jvm-server.options and conf/jvm17-server.options of 5.0, which are in no jar: options besides heap,
    # collector and a JMX port, without Java's defaults and heap dumps. Its Netty reads by NIO: a flight recorder does
    # not see the reads of its native epoll.
    jvm=(
        "-ea",
        "-da:net.openhft...",
        "-Xss512k",
        "-XX:+AlwaysPreTouch",
        "-XX:+PerfDisableSharedMem",
        "-Dcassandra.native.epoll.enabled=false",
        # `is_ready` waits for the other nodes, by the log.
        "-Dcassandra.skip_wait_for_gossip_to_settle=0",
        "-Djdk.attach.allowAttachSelf=true",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.allocator.useCacheForAllThreads=true",
        "-Dio.netty.allocator.maxOrder=11",
        *(f"--add-exports={package}=ALL-UNNAMED" for package in _EXPORTED_PACKAGES.split()),
        *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED_PACKAGES.split()),
        "-Dcassandra.storagedir={home}",
        "-Dcassandra.logdir={home}/logs",
    ),
    flush="forceKeyspaceFlush",
    node_values=_cql_node_values,
    tune_collector=_tune_g1,
    table_options=lambda options: {"copies": count_copies(options)},
)
