"""Cassandra 0.7.4 and 0.7.5 on Java 11: CASSANDRA-2463 lies between the two. They speak Thrift.

thrift_jars.py    what they are made of
thrift_files.py   what they are told
thrift_asker.py   a child that asks them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ingest_bench.jvm import mbeans
from ingest_bench.jvm.compile import ECJ
from ingest_bench.jvm.mbeans import Call
from ingest_bench.targets.cassandra.thrift import thrift_files, thrift_jars
from ingest_bench.targets.small import java_properties
from ingest_bench.targets.version import Requirements

if TYPE_CHECKING:
    from ingest_bench.jvm.artifacts import Artifact
    from ingest_bench.model.results import Value
    from ingest_bench.model.target import TargetOptions

_NETTYS = ("receive_predictor_bytes", "allocator", "socket_receive_buffer_bytes")


class Thrift:
    """The versions that speak it."""

    protocol = "thrift"
    port = 9160
    main = "org.apache.cassandra.thrift.CassandraDaemon"
    versions: Mapping[str, Requirements] = thrift_jars.versions()
    agents: ClassVar[tuple[Artifact, ...]] = ()
    tools: tuple[Artifact, ...] = (ECJ,)
    asker = Path(__file__).with_name("thrift_asker.py")
    files = staticmethod(thrift_files.files)
    jvm = staticmethod(thrift_files.jvm)

    def check(self, asked: TargetOptions) -> None:
        """SpecError for what these versions have not."""
        thrift_files.chosen(asked)
        java_properties.refuse(asked, _NETTYS, "cassandra has no Netty and no such setting")

    def tables(self, asked: TargetOptions, names: Sequence[str]) -> dict[str, Any]:
        """Column families of these names, and when their memtables are flushed."""
        return {"tables": [*names], "memtables": thrift_files.memtables(asked)}

    def flush(self, keyspace: str, table: str) -> Call:
        """The operation that writes a column family to files."""
        return Call(
            name="org.apache.cassandra.db:type=StorageService",
            operation="forceTableFlush",
            signature=("java.lang.String", mbeans.STRINGS),
            arguments=(keyspace, table),
        )

    def described(self, asked: TargetOptions) -> dict[str, Value]:
        """When its memtables are flushed."""
        return {**thrift_files.memtables(asked)}
