"""The JVM server under load: what may be chosen about it, and how it is launched."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from ingest_bench.model.network import RealLink
from ingest_bench.model.server import Collector, Heap, JvmOption, Server
from ingest_bench.model.track import AdminRequest
from ingest_bench.model.values import (
    GIB,
    MIB,
    Between,
    FilePath,
    Form,
    Host,
    Label,
    Line,
    Name,
    NodeNumber,
    PathPrefix,
    Port,
    Several,
)

Allocator = Literal["default", "pooled", "unpooled"]
Scheme = Literal["http", "https"]
VantageName = Literal["started", "attached", "outside"]
# AdaptiveRecvByteBufAllocator.DEFAULT_MINIMUM of Netty, and net.core.rmem_max of hosts that are tuned for 100 Gbit/s.
ReceiveBuffer = Annotated[int, Between(64, 64 * MIB, "Netty's least; more than one read of a socket gives")]
SettingName = Annotated[
    str,
    Form(
        r"[A-Za-z0-9_][A-Za-z0-9_.*-]{0,254}",
        "a setting's name: at most 255 of A-Z, a-z, 0-9, dot, hyphen, underscore",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Url:
    """Where a server is that runs already."""

    scheme: Scheme
    host: Host
    port: Port
    path_prefix: PathPrefix = ""
    """Before the path of every request: where a proxy has the server, such as "/search"."""

    @property
    def authority(self) -> str:
        """Host and port, as the Host header has them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path_prefix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """The `[target]` of an experiment: the factors that concern the server."""

    name: Name = "opensearch"
    """The kind of server: a name that `ingest-bench list` shows."""
    file: FilePath | None = None
    """A server of the user's own in place of one by name: its TOML file."""
    server: Server | None = None
    """What that file says. A key of it in an experiment takes the place of the file's."""
    version: Name | None = None
    """None: the version that the target's table calls its default."""
    nodes: NodeNumber = 1
    """How many there are, each in a namespace of its own."""
    replicas: Annotated[int, Between(0, 8, "one less than nodes")] | None = None
    """Copies of each document beside the first; None: each node has one. It is acknowledged once all have it."""
    earlier_documents: Annotated[int, Between(0, 10**10, "a disk is full before")] = 0
    """So many documents of an earlier run are in its files when it starts, in the indices of this one."""
    heap_bytes: Heap = GIB
    """Of each node."""
    gc: Collector = "default"
    """The collector."""
    receive_predictor_bytes: Annotated[tuple[ReceiveBuffer, ...], Several(0, 2, separator="..", rising=True)] = ()
    """Empty: the server's default. One size: fixed. Two sizes, "64KiB..512KiB": adaptive between them."""
    allocator: Allocator = "default"
    """How Netty allocates its buffers."""
    socket_receive_buffer_bytes: Annotated[int, Between(2048, GIB, "what a socket has at least and at most")] | None = (
        None
    )
    """SO_RCVBUF of the server's sockets; None: what the server chooses."""
    jvm: Annotated[tuple[JvmOption, ...], Several(0, 200)] = ()
    """More options of the JVM, as they are: "-XX:MinTLABSize=65536"."""
    setting: Annotated[dict[SettingName, Line], Several(0, 500)] = field(default_factory=dict)
    """More settings of the server, as `-Ename=value`."""
    url: Url | None = None
    """A server that runs already. It is what it is: hardly another key can be chosen then."""
    attach: Annotated[int, Between(1, 4_194_304, "PID_MAX_LIMIT of Linux")] | None = None
    """The pid of its JVM, so that all probes can watch it. Without a URL: where this process listens."""
    attach_started: Label | None = None
    """When that process began; a plan has it. No other process is measured for it."""
    interface: RealLink | None = None
    """The real interface that leads there, shaped for each run as the cell's network says; None: it is as it is."""
    more_urls: Annotated[tuple[Url, ...], Several(0, 255)] = ()
    """More addresses of the same cluster: the load's connections go to all of them in turn."""
    ca_file: FilePath | None = None
    """The certificates that its own is verified by (PEM); None: those that this machine trusts."""
    client_cert: FilePath | None = None
    """Our own certificate (PEM), for a server that demands one."""
    client_key: FilePath | None = None
    """Its key: a file, without a passphrase."""

    @property
    def vantage(self) -> VantageName:
        """From where its JVM is watched."""
        if self.attach is not None:
            return "attached"
        return "started" if self.url is None else "outside"

    @property
    def runs_already(self) -> bool:
        """Whether it is a server that is there, and not one that we start."""
        return self.vantage != "started"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address and a TCP port."""

    host: Host
    port: Port

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """What a client verifies of a server."""

    name: str
    """The host that its certificate must be for."""
    ca_pem: str = ""
    """The certificates that may vouch for it; empty: those that the client's machine trusts."""
    client_cert: str = ""
    """The file of our own certificate (PEM), which says who we are; empty: we have none."""
    client_key: str = ""
    """The file of its key. The key itself is in no record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a server is, as its clients get there."""

    endpoint: Endpoint
    host_header: str = ""
    """Empty: the endpoint."""
    path_prefix: str = ""
    """Before the path of every request."""
    tls: Tls | None = None
    credentials: bool = False
    """Whether requests carry the credentials that the environment of whoever sends them holds."""
    resolver: Endpoint | None = None
    """The name server that each new connection of a load asks for the host; None: it is looked up once."""
    others: tuple[Place, ...] = ()
    """More addresses of the same cluster: a load uses all, questions go to this one."""

    def __str__(self) -> str:
        return self.host_header or str(self.endpoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listens:
    """Where a server of ours listens, and by when."""

    port: int = 9200
    """Any will do: a server of ours has a namespace of its own."""
    within_s: float = 120
    seen_as_local: bool = True
    """Whether several nodes may have addresses of 127.0.0.0/8: some servers take all of these for their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What a server is asked before a load, and what is there afterwards."""

    requests: tuple[AdminRequest, ...] = ()
    requests_again: tuple[AdminRequest, ...] = ()
    """In their place of a server that has what they made in its files."""
    indices: tuple[str, ...] = ()
    """What the load fills, and whose documents are counted."""
    search_path: str = ""
    """Where queries go; empty: it answers none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """How one server process is started. Made by a target, carried out by `jvm.process`."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: Path
    writable: tuple[Path, ...]
    """Folders that the server's own user must be able to write."""
    readable: tuple[Path, ...] = ()
    """Files beside the program that it must be able to read."""
    pid_is_jvm: bool = True
    """False for a launcher that forks the JVM (Elasticsearch 8, a command of the user's)."""
