"""The JVM server under load: what may be chosen about it, and how it is launched."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Collector = Literal["default", "g1", "cms", "parallel", "serial", "zgc"]
Allocator = Literal["default", "pooled", "unpooled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """The `[target]` of an experiment: the factors that concern the server."""

    name: str = "opensearch"
    version: str | None = None
    """None: the version that the target's table calls its default."""
    heap_bytes: int = 1 << 30
    gc: Collector = "default"
    receive_predictor_bytes: tuple[int, ...] = ()
    """Empty: the server's default. One size: fixed. Two sizes, "64KiB..512KiB": adaptive between them."""
    allocator: Allocator = "default"
    socket_receive_buffer_bytes: int | None = None
    jvm: tuple[str, ...] = ()
    """More options of the JVM, as they are: "-XX:MinTLABSize=65536"."""
    setting: dict[str, str] = field(default_factory=dict)
    """More settings of the server, as `-Ename=value`."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """How one server process is started. Made by a target, carried out by `jvm.process`."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: Path
    writable: tuple[Path, ...]
    """Folders that the server's own user must be able to write."""
    pid_is_jvm: bool = True
    """False for a launcher that forks the JVM (Elasticsearch 8)."""
