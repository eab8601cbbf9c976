"""What a node of Cassandra 0.7 is told: its cassandra.yaml, its log, its JVM, how large its memtables grow. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ingest_bench.jvm import options
from ingest_bench.model.values import MIB
from ingest_bench.targets.cassandra import yaml

if TYPE_CHECKING:
    from pathlib import Path

    from ingest_bench.jvm.java import Java
    from ingest_bench.model.target import Endpoint, TargetOptions
    from ingest_bench.targets.cassandra.yaml import Kind, Value

# Keys of cassandra.yaml that say nothing about where it is (org.apache.cassandra.config.Config of 0.7.4).
_YAML: Mapping[str, Kind] = {
    "binary_memtable_throughput_in_mb": "whole",
    "column_index_size_in_kb": "whole",
    "commitlog_rotation_threshold_in_mb": "whole",
    "commitlog_sync": "word",
    "commitlog_sync_batch_window_in_ms": "number",
    "commitlog_sync_period_in_ms": "whole",
    "compaction_preheat_key_cache": "word",
    "compaction_thread_priority": "whole",
    "concurrent_reads": "whole",
    "concurrent_writes": "whole",
    "disk_access_mode": "word",
    "flush_largest_memtables_at": "number",
    "in_memory_compaction_limit_in_mb": "whole",
    "index_interval": "whole",
    "memtable_flush_writers": "whole",
    "reduce_cache_capacity_to": "number",
    "reduce_cache_sizes_at": "number",
    "rpc_max_threads": "whole",
    "rpc_min_threads": "whole",
    "rpc_timeout_in_ms": "whole",
    "sliced_buffer_size_in_kb": "whole",
    "snapshot_before_compaction": "word",
    "thrift_framed_transport_size_in_mb": "whole",
    "thrift_max_message_length_in_mb": "whole",
}
# Of each column family (CfDef of its interface).
_MEMTABLE: Mapping[str, Kind] = {
    "memtable_flush_after_mins": "whole",
    "memtable_operations_in_millions": "number",
    "memtable_throughput_in_mb": "whole",
}
SETTINGS = {**_YAML, **_MEMTABLE}
# What a cassandra.yaml of 0.7 has to name, or names by custom. Not in_memory_compaction_limit_in_mb, whose default in
# both versions is 256: it is what CASSANDRA-2463 is about.
_USUAL: Mapping[str, Value] = {
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
# Of RandomPartitioner.
_TOKENS = 2**127
_LOG4J = """log4j.rootLogger=INFO,stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=%d{ISO8601} %5p %c{1} %m%n
"""
# conf/cassandra-env.sh of later versions, for it is in no jar: what it gives a JVM beside heap and collector, without
# what Java 11 refuses (ThreadPriorityPolicy=42, a stack of 128 kB) and without a JMX port, which would be open to all.
_JVM = ("-ea", "-Xss256k", "-XX:MetaspaceSize=128m", "-Djava.net.preferIPv4Stack=true")
# With CMS. The young generation is that of two cores (100 MB each), or a quarter of a smaller heap.
_CMS = ("-XX:+CMSParallelRemarkEnabled", "-XX:SurvivorRatio=8", "-XX:MaxTenuringThreshold=1")
_YOUNG_BYTES = 200 * MIB


def chosen(asked: TargetOptions) -> dict[str, Value]:
    """The settings that were asked for; SpecError for one that it has not, or whose value cannot be."""
    return yaml.chosen(asked, SETTINGS)


def memtables(asked: TargetOptions) -> dict[str, int | float]:
    """When a memtable is flushed by itself, the same for each version.

    Without a setting as 0.7.4 computes it from the heap (CFMetaData); 0.7.5 would take half of that.
    """
    throughput_mb = asked.heap_bytes // (16 * MIB)
    usual = {
        "memtable_flush_after_mins": 60,
        "memtable_throughput_in_mb": throughput_mb,
        "memtable_operations_in_millions": 0.3 * throughput_mb / 64,
    }
    given = chosen(asked)
    return {key: value if (mine := given.get(key)) is None else float(mine) for key, value in usual.items()}


def files(asked: TargetOptions, home: Path, node: int, nodes: Sequence[Endpoint]) -> dict[str, str]:
    """The configuration of one of these nodes, by the names of files below `home`. Each has as much of the ring."""
    listen = nodes[node]
    told = {
        **_USUAL,
        **{key: value for key, value in chosen(asked).items() if key in _YAML},
        "auto_bootstrap": False,
        "cluster_name": "ingest-bench",
        "commitlog_directory": str(home / "commitlog"),
        "data_file_directories": [str(home / "data")],
        "initial_token": node * _TOKENS // len(nodes),
        "listen_address": listen.host,
        "rpc_address": listen.host,
        "rpc_port": listen.port,
        "saved_caches_directory": str(home / "saved_caches"),
        # It tells the others of each other.
        "seeds": [nodes[0].host],
        "storage_port": yaml.STORAGE_PORT,
    }
    return {yaml.NAME: yaml.text(told), "log4j.properties": _LOG4J}


def jvm(asked: TargetOptions, java: Java, home: Path) -> tuple[str, ...]:
    """The options of its JVM."""
    gc = "cms" if asked.gc == "default" else asked.gc
    young = (*_CMS, f"-Xmn{min(_YOUNG_BYTES, asked.heap_bytes // 4)}") if gc == "cms" else ()
    return (
        *options.heap(asked.heap_bytes),
        *options.collector(gc, java.version),
        *young,
        *_JVM,
        f"-Djava.io.tmpdir={home / 'tmp'}",
        "-Dcassandra-foreground=yes",
        f"-Dcassandra.config={(home / yaml.NAME).as_uri()}",
        f"-Dlog4j.configuration={(home / 'log4j.properties').as_uri()}",
    )
