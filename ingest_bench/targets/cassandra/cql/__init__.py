"""Cassandra 5 on Java 17: CQL over its native protocol.

cql_jars.py    what it is made of       cql_files.py   what it is told      cql_asker.py   a child that asks it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ingest_bench.jvm import mbeans
from ingest_bench.jvm.mbeans import Call
from ingest_bench.targets.cassandra import yaml
from ingest_bench.targets.cassandra.cql import cql_files, cql_jars
from ingest_bench.targets.small import java_properties
from ingest_bench.targets.version import Requirements

if TYPE_CHECKING:
    from ingest_bench.jvm.artifacts import Artifact
    from ingest_bench.model.results import Value
    from ingest_bench.model.target import TargetOptions

_SOCKETS = ("receive_predictor_bytes", "allocator", "socket_receive_buffer_bytes")


class Cql:
    """The versions that speak it."""

    protocol = "cql"
    port = 9042
    main = "org.apache.cassandra.service.CassandraDaemon"
    versions: Mapping[str, Requirements] = cql_jars.versions()
    agents: tuple[Artifact, ...] = (cql_jars.AGENT,)
    tools: ClassVar[tuple[Artifact, ...]] = ()
    asker = Path(__file__).with_name("cql_asker.py")
    files = staticmethod(cql_files.files)
    jvm = staticmethod(cql_files.jvm)

    def check(self, asked: TargetOptions) -> None:
        """SpecError for what these versions have not."""
        yaml.chosen(asked, cql_files.SETTINGS)
        java_properties.refuse(asked, _SOCKETS, "cassandra has no setting for its clients' connections")
        java_properties.copies(asked)

    def tables(self, asked: TargetOptions, names: Sequence[str]) -> dict[str, Any]:
        """Tables of these names, each row on as many nodes as was asked for."""
        return {"tables": [*names], "copies": java_properties.copies(asked)}

    def flush(self, keyspace: str, table: str) -> Call:
        """The operation that writes a table to files."""
        return Call(
            name="org.apache.cassandra.db:type=StorageService",
            operation="forceKeyspaceFlush",
            signature=("java.lang.String", mbeans.STRINGS),
            arguments=(keyspace, table),
        )

    def described(self, asked: TargetOptions) -> dict[str, Value]:
        """What it was told that differs with what was asked, beside its version: nothing."""
        del asked
        return {}
