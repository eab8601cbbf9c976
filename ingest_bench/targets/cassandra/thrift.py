"""Cassandra 0.7.4 and 0.7.5 on Java 11, which speak Thrift: versions, configuration and JVM options.

CASSANDRA-2463 was fixed between the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ingest_bench.jvm.java import ECJ
from ingest_bench.jvm.mbeans import STRING_ARRAY, MBeanCall
from ingest_bench.jvm.options import collector_options, heap_options
from ingest_bench.model.values import MIB
from ingest_bench.targets.base import NodeStart, Requirements, pinned_jars, refuse_options
from ingest_bench.targets.cassandra import config

if TYPE_CHECKING:
    from ingest_bench.jvm.artifacts import Artifact
    from ingest_bench.model.results import ColumnValue
    from ingest_bench.model.target import TargetOptions
    from ingest_bench.targets.cassandra.config import Kind, Value

# Keys of cassandra.yaml that are not about addresses (org.apache.cassandra.config.Config of 0.7.4).
_YAML_KEYS: Mapping[Kind, str] = {
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
_YAML_KINDS: Mapping[str, Kind] = {key: kind for kind, keys in _YAML_KEYS.items() for key in keys.split()}
# Options of each column family (CfDef of its interface).
_MEMTABLE_KINDS: Mapping[str, Kind] = {
    "memtable_flush_after_mins": "whole",
    "memtable_operations_in_millions": "number",
    "memtable_throughput_in_mb": "whole",
}
SETTINGS = {**_YAML_KINDS, **_MEMTABLE_KINDS}
# Required or customary keys of a cassandra.yaml of 0.7. Not in_memory_compaction_limit_in_mb, whose default in both
# versions is 256: CASSANDRA-2463 is about it.
_DEFAULTS: Mapping[str, Value] = {
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
}
# The range of RandomPartitioner.
_TOKENS = 2**127
_LOG4J = """log4j.rootLogger=INFO,stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=%d{ISO8601} %5p %c{1} %m%n
"""
# From conf/cassandra-env.sh of later versions, since it is in no jar: options besides heap and collector, without what
# Java 11 refuses (ThreadPriorityPolicy=42, a stack of 128 kB) and without a JMX port, which would be open to all.
_JVM = ("-ea", "-Xss256k", "-XX:MetaspaceSize=128m", "-Djava.net.preferIPv4Stack=true")
# For CMS. The young generation has 100 MB for each of two cores, or a quarter of a smaller heap.
_CMS = ("-XX:+CMSParallelRemarkEnabled", "-XX:SurvivorRatio=8", "-XX:MaxTenuringThreshold=1")
_YOUNG_BYTES = 200 * MIB
_REFUSED_OPTIONS = ("receive_predictor_bytes", "allocator", "socket_receive_buffer_bytes")
# The last Java that has CMS, which its start scripts choose, and that pip has.
_JAVA_VERSION = 11


class Thrift:
    """The versions that speak Thrift."""

    protocol = "thrift"
    port = 9160
    main = "org.apache.cassandra.thrift.CassandraDaemon"
    versions: Mapping[str, Requirements] = {
        version: Requirements(
            artifacts=(*pinned_jars(f"cassandra-{version}", "cassandra-0.7"), ECJ), java_version=_JAVA_VERSION
        )
        for version in ("0.7.4", "0.7.5")
    }
    agents: ClassVar[tuple[Artifact, ...]] = ()
    tools: tuple[Artifact, ...] = (ECJ,)

    def check(self, options: TargetOptions) -> None:
        """Raise SpecError for options that these versions lack."""
        config.parse_settings(options, SETTINGS)
        refuse_options(options, _REFUSED_OPTIONS, "cassandra has no Netty and no such setting")

    def config_files(self, node: NodeStart) -> dict[str, str]:
        """Return a node's configuration by file names below `home`. All nodes own equal parts of the ring."""
        listen, home, options = node.listen, node.home, node.options
        settings = config.parse_settings(options, SETTINGS)
        values = {
            **_DEFAULTS,
            **{key: value for key, value in settings.items() if key in _YAML_KINDS},
            "auto_bootstrap": False,
            "cluster_name": "ingest-bench",
            "commitlog_directory": str(home / "commitlog"),
            "data_file_directories": [str(home / "data")],
            "initial_token": node.number * _TOKENS // len(node.nodes),
            "listen_address": listen.host,
            "rpc_address": listen.host,
            "rpc_port": listen.port,
            "saved_caches_directory": str(home / "saved_caches"),
            # The seed introduces the other nodes to each other.
            "seeds": [node.nodes[0].host],
            "storage_port": config.STORAGE_PORT,
        }
        return {config.FILE_NAME: config.format_yaml(values), "log4j.properties": _LOG4J}

    def jvm_flags(self, node: NodeStart) -> tuple[str, ...]:
        """Return the options of its JVM."""
        options, home = node.options, node.home
        gc = "cms" if options.gc == "default" else options.gc
        young = (*_CMS, f"-Xmn{min(_YOUNG_BYTES, options.heap_bytes // 4)}") if gc == "cms" else ()
        return (
            *heap_options(options.heap_bytes),
            *collector_options(gc, node.java.version),
            *young,
            *_JVM,
            f"-Djava.io.tmpdir={home / 'tmp'}",
            "-Dcassandra-foreground=yes",
            f"-Dcassandra.config={(home / config.FILE_NAME).as_uri()}",
            f"-Dlog4j.configuration={(home / 'log4j.properties').as_uri()}",
        )

    def table_options(self, options: TargetOptions, names: Sequence[str]) -> dict[str, Any]:
        """Return column families of these names, and when their memtables are flushed."""
        return {"tables": [*names], "memtables": memtable_limits(options)}

    def flush_call(self, keyspace: str, table: str) -> MBeanCall:
        """Return the operation that writes a column family to files."""
        return MBeanCall(
            name="org.apache.cassandra.db:type=StorageService",
            operation="forceTableFlush",
            signature=("java.lang.String", STRING_ARRAY),
            arguments=(keyspace, table),
        )

    def describe(self, options: TargetOptions) -> dict[str, ColumnValue]:
        """Return when memtables are flushed."""
        return {**memtable_limits(options)}


def memtable_limits(options: TargetOptions) -> dict[str, int | float]:
    """Return the limits at which a memtable is flushed, equal for all versions.

    The defaults are those that 0.7.4 computes from the heap (CFMetaData); 0.7.5 would use half of that.
    """
    throughput_mb = options.heap_bytes // (16 * MIB)
    defaults = {
        "memtable_flush_after_mins": 60,
        "memtable_throughput_in_mb": throughput_mb,
        "memtable_operations_in_millions": 0.3 * throughput_mb / 64,
    }
    settings = config.parse_settings(options, SETTINGS)
    return {key: float(settings[key]) if key in settings else default for key, default in defaults.items()}
