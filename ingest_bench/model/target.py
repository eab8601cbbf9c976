"""The JVM server under load: its options, custom targets, addresses, and how it is launched."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from ingest_bench.model.load import AdminRequest
from ingest_bench.model.network import RealInterface
from ingest_bench.model.values import (
    CONTROL,
    GIB,
    HOUR,
    MIB,
    TIB,
    Between,
    FilePath,
    Host,
    JsonValue,
    Label,
    Length,
    Line,
    Name,
    NodeNumber,
    PathPrefix,
    Pattern,
    Port,
    S,
    UrlPath,
)

Allocator = Literal["default", "pooled", "unpooled", "adaptive"]
Collector = Literal["default", "g1", "cms", "parallel", "serial", "zgc"]
ObserverName = Literal["launched", "attached", "remote", "jmx", "external"]
Pid = Annotated[int, Between(1, 4_194_304, "PID_MAX_LIMIT of Linux")]
Scheme = Literal["http", "https", "cassandra"]
Heap = Annotated[int, Between(16 * MIB, 16 * TIB, "no server starts with less; the most that ZGC takes")]
# AdaptiveRecvByteBufAllocator.DEFAULT_MINIMUM of Netty, and net.core.rmem_max of hosts that are tuned for 100 Gbit/s.
ReceiveBuffer = Annotated[int, Between(64, 64 * MIB, "Netty's least; more than one read of a socket gives")]
SettingName = Annotated[
    str,
    Pattern(
        r"[A-Za-z0-9_][A-Za-z0-9_.*-]{0,254}",
        "a setting's name: at most 255 of A-Z, a-z, 0-9, dot, hyphen, underscore",
    ),
]
# Options of the java command (11 to 25) whose value is the next argument. They would consume an option of ingest-bench,
# such as the recording's option.
_TAKES_THE_NEXT = (
    r"-cp|-classpath|-jar|-[dmp]|--(?:class-path|module-path|upgrade-module-path|patch-module|(?:add|limit)-modules"
    r"|add-(?:exports|opens|reads)|enable-native-access|(?:describe-)?module|source)"
)
# "-" and one line: neither the main class nor a second line of an argument file.
JvmOption = Annotated[
    str,
    Pattern(
        rf"(?!(?:{_TAKES_THE_NEXT})\Z)-[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{{1,4000}}",
        "an option of the JVM: one line that begins with -, its value behind = or :",
    ),
]
# A Java class with its package, in ASCII.
ClassName = Annotated[
    str,
    Pattern(
        r"[A-Za-z_$][A-Za-z0-9_$]{0,200}(?:\.[A-Za-z_$][A-Za-z0-9_$]{0,200}){0,20}",
        "a class with its package: com.example.Main",
    ),
]
PackageName = Annotated[
    str, Pattern(r"[A-Za-z_][A-Za-z0-9_]{0,100}(?:\.[A-Za-z_][A-Za-z0-9_]{0,100}){0,20}", "a Java package: org.xnio")
]
# Also below another package (shaded Netty). Vert.x, WebFlux and Armeria read through Netty.
NETWORK_PACKAGES = (
    *("io.netty", "shaded.netty", "io.grpc"),
    *("org.apache.tomcat", "org.apache.coyote"),
    *("io.undertow", "org.xnio"),
    *("org.eclipse.jetty.io", "org.eclipse.jetty.http", "org.eclipse.jetty.http2"),
    *("io.helidon.common", "io.helidon.http", "io.helidon.webserver"),
    "org.glassfish.grizzly",
)
Coordinate = Annotated[
    str,
    Pattern(
        r"[A-Za-z0-9_-]{1,100}(?:\.[A-Za-z0-9_-]{1,100}){0,20}:[A-Za-z0-9_-]{1,100}(?:\.[A-Za-z0-9_-]{1,100}){0,20}"
        r":[A-Za-z0-9][A-Za-z0-9_.+-]{0,100}"
        r"(?::[A-Za-z0-9][A-Za-z0-9_.-]{0,100})?(?:@[0-9a-f]{64})?",
        'a jar in Maven: "group:name:version", then ":classifier" and "@" with its SHA-256 where it has them',
    ),
]
Argument = Annotated[str, Pattern(r"[^\x00\ud800-\udfff]{0,4000}", "an argument: at most 4,000 characters")]
VariableName = Annotated[
    str, Pattern(r"[A-Za-z_][A-Za-z0-9_]{0,200}", "the name of a variable: A-Z, a-z, 0-9 and underscore")
]
# Prometheus' data model: metric names may contain colons, label names may not.
_LABEL = rf'[A-Za-z_][A-Za-z0-9_]{{0,200}}="[^"\\{CONTROL}]{{0,200}}"'
Metric = Annotated[
    str,
    Pattern(
        rf"[A-Za-z_:][A-Za-z0-9_:]{{0,200}}(?:\{{(?:{_LABEL}(?:, ?{_LABEL}){{0,19}})?\}})?",
        'a metric of Prometheus, such as ingested_total or requests_total{path="/events"}',
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTls:
    """Verification of the certificate of a custom target (`[start.tls]`). The server itself has certificate and key."""

    ca_file: FilePath
    """The CA's certificate, or the server's own if it is self-signed (PEM)."""
    name: Host = "localhost"
    """A host name in the server's certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """Start of a custom target (`[start]`): a jar, a class, a source file or a command.

    In `arguments`, `jvm`, `command` and `env` these placeholders are replaced: {host}, {port}, {home} (an empty folder
    for each run), {folder} (of the TOML file), {node} (1, 2, …) and {nodes} (all as host:port,host:port).
    """

    java: Annotated[int, Between(11, 99, "the first with an open flight recorder")] = 17
    """The Java version that it runs on."""
    jar: FilePath | None = None
    """A jar that `java -jar` starts."""
    main: ClassName | None = None
    """A class in `classpath` or `maven`."""
    source: FilePath | None = None
    """One Java file, named after its class. ingest-bench compiles it, so that no JDK is needed."""
    command: Annotated[tuple[Argument, ...], Length(0, 1000)] = ()
    """A program that starts one JVM. It must pass on JDK_JAVA_OPTIONS, which sets heap, collector and probes."""
    classpath: Annotated[tuple[FilePath, ...], Length(0, 1000)] = ()
    """Jars, folders of classes and jars, and patterns such as lib/*.jar."""
    maven: Annotated[tuple[Coordinate, ...], Length(0, 1000)] = ()
    """Jars in Maven Central. Their dependencies are added, as Maven resolves them."""
    arguments: Annotated[tuple[Argument, ...], Length(0, 1000)] = ()
    """The program's arguments."""
    jvm: Annotated[tuple[JvmOption, ...], Length(0, 200)] = ()
    """JVM options."""
    env: Annotated[dict[VariableName, Argument], Length(0, 200)] = field(default_factory=dict)
    """Environment variables of the server, except those that make other programs load code (PATH, LD_…, LOCPATH …)."""
    port: Port = 9200
    """The port that it listens on, at {host}."""
    tls: StartTls | None = None
    """It speaks TLS; None: plain HTTP."""
    heap_bytes: Heap = GIB
    """Heap size, unless the experiment sets one."""
    gc: Collector = "default"
    """Garbage collector, unless the experiment sets one."""

    @property
    def start_keys(self) -> tuple[str, ...]:
        """Return the keys that say how it is started; a valid file has exactly one."""
        return tuple(name for name in ("jar", "main", "source", "command") if getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyCheck:
    """When a custom target is ready (`[ready]`). Without `path` and `log`: when its port accepts a connection."""

    path: UrlPath | None = None
    """Path whose GET returns `status`."""
    status: Annotated[int, Between(200, 599, "those of HTTP")] = 200
    """The HTTP status that means ready."""
    port: Port | None = None
    """Port of `path`; None: the port of the documents."""
    log: Label | None = None
    """A text in the first 16 MiB of its output."""
    timeout_ns: Annotated[int, Between(S, HOUR, "no server is waited for longer")] = 60 * S
    """Maximum time until it is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentCount:
    """Where a custom target reports its number of documents (`[count]`)."""

    path: UrlPath
    """Path whose GET returns the number."""
    json: Label | None = None
    """Place of the number in a JSON response: keys and list indices separated by dots, "totals.0.documents", or a JSON
    pointer (RFC 6901), "/totals/0/stored.documents". A text of digits is a number too."""
    metric: Metric | None = None
    """A Prometheus metric with or without labels: `ingested_total`, `requests_total{path="/events"}`. All samples with
    these labels are summed."""
    refresh: UrlPath | None = None
    """Path of a POST request before each count, which makes the server count all documents."""
    settle_ns: Annotated[int, Between(0, HOUR, "no server is waited for longer")] = 0
    """Maximum time after the load until the server counts all acknowledged documents. It is asked repeatedly."""
    port: Port | None = None
    """None: the port of the documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomRequest:
    """A request to each address of a custom target: before the load (`[[prepare]]`) or after it (`[[clean_up]]`)."""

    path: UrlPath
    """Path with query string."""
    method: Literal["GET", "PUT", "POST", "PATCH", "DELETE"] = "POST"
    """The HTTP method."""
    body: Annotated[str, Pattern(r"[^\x00\ud800-\udfff]{0,100000}", "a text of at most 100,000 characters")] | None = (
        None
    )
    """The body, in which {host} and {port} are those of the server; None: no body."""
    content_type: Annotated[str, Pattern(r"[ -~]{1,255}", "a media type: application/json")] = "application/json"
    """The type of the body."""
    status: Annotated[tuple[Annotated[int, Between(200, 599, "those of HTTP")], ...], Length(0, 100)] = ()
    """Statuses of success, such as 409 for what exists already. Empty: 200 to 299."""


Requests = Annotated[tuple[CustomRequest, ...], Length(0, 100)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredDocuments:
    """Where a custom target lists its documents by their sequence numbers (`[delivered]`), one per line and copy."""

    path: UrlPath
    """Path whose GET returns the list."""
    timeout_ns: Annotated[int, Between(0, HOUR, "no server is waited for longer")] = 0
    """Time after the load until all documents must be listed; later ones are lost."""
    port: Port | None = None
    """None: the port of the documents."""


ThreadRole = Literal["network", "indexing", "flush_merge", "other"]
Texts = Annotated[tuple[Label, ...], Length(0, 100)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRoles:
    """Roles of a server's threads (`[thread_roles]`): a name that contains one of the texts has the role."""

    network: Texts = ()
    """Texts in the names of threads that read and write sockets."""
    indexing: Texts = ()
    """Texts in the names of threads that store documents."""
    flush_merge: Texts = ()
    """Texts in the names of threads that flush, refresh, merge and compact files."""

    def find_role(self, thread: str) -> ThreadRole:
        """Return the first role that the name of a thread has."""
        roles: tuple[ThreadRole, ...] = ("network", "indexing", "flush_merge")
        return next((role for role in roles if any(text in thread for text in getattr(self, role))), "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomTarget:
    """A custom target: one TOML file of the user."""

    description: Line = ""
    """The server, in one sentence."""
    protocol: Annotated[dict[Name, JsonValue], Length(1, 100)]
    """`name`, and the keys of the protocol of that name."""
    start: StartOptions | None = None
    """None: it is already running, at --url or --attach."""
    ready: ReadyCheck = ReadyCheck()
    """When it is ready."""
    prepare: Requests = ()
    """Requests before the load, in order, to each address: create an index, a topic, a table."""
    clean_up: Requests = ()
    """Requests after the count, to each address; also after a failure, but only if all of `prepare` succeeded."""
    count: DocumentCount | None = None
    """None: its documents cannot be counted."""
    delivered: DeliveredDocuments | None = None
    """None: its documents cannot be read back by sequence number (`sequence` of the protocol)."""
    thread_roles: ThreadRoles = ThreadRoles()
    """What its threads do, by their names; others are "other" in `allocated_other_bytes`."""
    network: Annotated[tuple[PackageName, ...], Length(1, 100)] = NETWORK_PACKAGES
    """Packages of its network layer: allocations whose first frame outside the JDK is in one of them, or in a package
    that ends with one (shaded), are `network` in probe `allocations`. Unknown if no frame is."""
    folder: FilePath = "."
    """Base of its relative paths: the folder of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Url:
    """URL of a server that is already running."""

    scheme: Scheme
    host: Host
    port: Port
    path_prefix: PathPrefix = ""
    """Prefix of every request's path, such as "/search" behind a proxy."""

    @property
    def authority(self) -> str:
        """Return host and port as in the Host header."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path_prefix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """The `[target]` of an experiment."""

    name: Name = "opensearch"
    """The kind of server: a name that `ingest-bench list` shows."""
    file: FilePath | None = None
    """TOML file of a custom target, instead of `name`."""
    custom: CustomTarget | None = None
    """Contents of that file. Keys in an experiment override the file's."""
    version: Name | None = None
    """None: the default version of the target."""
    nodes: NodeNumber = 1
    """Number of nodes, each in its own namespace."""
    replicas: Annotated[int, Between(0, 8, "one less than nodes")] | None = None
    """Replicas of each document; None: one per further node. A document is acknowledged when all copies exist."""
    preloaded_documents: Annotated[int, Between(0, 10**10, "a disk is full before")] = 0
    """Documents of a previous run in the server's indices when it starts."""
    heap_bytes: Heap = GIB
    """Heap size of each node."""
    gc: Collector = "default"
    """Garbage collector."""
    receive_predictor_bytes: Annotated[tuple[ReceiveBuffer, ...], Length(0, 2, separator="..", rising=True)] = ()
    """Empty: the server's default. One size: fixed. Two sizes, "64KiB..512KiB": adaptive between them."""
    allocator: Allocator = "default"
    """Netty's buffer allocator; adaptive: the target sink alone."""
    socket_receive_buffer_bytes: Annotated[int, Between(2048, GIB, "the smallest and largest of a socket")] | None = (
        None
    )
    """SO_RCVBUF of the server's sockets; None: the server's choice."""
    jvm: Annotated[tuple[JvmOption, ...], Length(0, 200)] = ()
    """Additional JVM options, verbatim: "-XX:MinTLABSize=65536"."""
    setting: Annotated[dict[SettingName, Line], Length(0, 500)] = field(default_factory=dict)
    """Additional server settings, as `-Ename=value`."""
    protocol: Name | None = None
    """Protocol of the documents, such as "opensearch-grpc"; None: the server's usual one."""
    url: Url | None = None
    """A server that is already running; few other keys apply to it."""
    attach: Annotated[tuple[Pid, ...], Length(0, 256, distinct=True)] = ()
    """PIDs of the JVMs of its nodes, so that all probes can watch them. Without a URL: the addresses that these
    processes listen on."""
    attached_process_starts: Annotated[tuple[Label, ...], Length(0, 256)] = ()
    """Start times of these processes, set in the plan: a process that reuses a PID is refused."""
    watch_jmx: Annotated[tuple[Endpoint, ...], Length(0, 256, distinct=True)] = ()
    """HOST:PORT of each node's JMX (`jmxremote.port`), by which a flight recording of its JVM is made."""
    watchers: Annotated[int, Between(0, 256)] = 0
    """Number of its nodes whose JVMs `ingest-bench worker --watch` watches on their own machines."""
    interface: RealInterface | None = None
    """The real interface that leads to it, shaped with the cell's network; None: not shaped."""
    more_urls: Annotated[tuple[Url, ...], Length(0, 255)] = ()
    """More addresses of the same cluster: connections go to all of them in turn."""
    ca_file: FilePath | None = None
    """CA certificates that verify its certificate (PEM); None: those that this machine trusts."""
    client_cert: FilePath | None = None
    """Client certificate (PEM), for a server that requires one."""
    client_key: FilePath | None = None
    """File of its key, without a passphrase."""

    @property
    def observer(self) -> ObserverName:
        """Return how its JVM is watched."""
        if self.attach:
            return "attached"
        if self.watchers:
            return "remote"
        if self.watch_jmx:
            return "jmx"
        return "launched" if self.url is None else "external"

    @property
    def location(self) -> str:
        """Return the URL of a server that is already running, or the PIDs of its JVMs."""
        return f"pid {', '.join(map(str, self.attach))}" if self.url is None else str(self.url)

    @property
    def node_count(self) -> int:
        """Return the number of nodes whose files a run keeps: launched ones, or the JVMs that are watched."""
        return len(self.attach) or self.watchers or len(self.watch_jmx) or self.nodes

    @property
    def is_shaped_remotely(self) -> bool:
        """Return True if the observers shape the interface, each that of its machine."""
        return bool(self.watchers and self.interface is not None and self.interface.port)

    @property
    def is_encrypted(self) -> bool:
        """Return whether the load speaks TLS."""
        if self.url is not None:
            return self.url.scheme == "https"
        return self.custom is not None and self.custom.start is not None and self.custom.start.tls is not None

    @property
    def is_already_running(self) -> bool:
        """Return whether the server is running already, so that ingest-bench does not launch it."""
        return self.observer != "launched"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address and a TCP port."""

    host: Host
    port: Port

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Certificate checks of a client, and its own identity."""

    name: str
    """The host name that the server's certificate must be valid for."""
    ca_pem: str = ""
    """CA certificates; empty: those that the client's machine trusts."""
    client_cert: str = ""
    """File of the client certificate (PEM); empty: none."""
    client_key: str = ""
    """File of its key. The key itself is in no record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """The address of a server as its clients reach it."""

    endpoint: Endpoint
    host_header: str = ""
    """Empty: the endpoint."""
    path_prefix: str = ""
    """Prefix of every request's path."""
    tls: Tls | None = None
    has_credentials: bool = False
    """Requests carry the credentials from the sending process's environment."""
    resolver: Endpoint | None = None
    """Name server that each new connection of a load queries for the host; None: it is resolved once."""
    other_addresses: tuple[ServerAddress, ...] = ()
    """More addresses of the same cluster: a load uses all; other requests go to this one."""

    def __str__(self) -> str:
        return self.host_header or str(self.endpoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """Where a launched server listens, and by when."""

    port: int = 9200
    """Any port is free, because each launched server has its own namespace."""
    ready_timeout_s: float = 120
    tls: Tls | None = None
    accepts_loopback_peers: bool = True
    """Nodes may have addresses of 127.0.0.0/8. Some servers take all of these for their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Requests that prepare a server for a load, and the indices that exist afterwards."""

    requests: tuple[AdminRequest, ...] = ()
    requests_if_preloaded: tuple[AdminRequest, ...] = ()
    """Requests instead of these if the server's files already contain their result."""
    indices: tuple[str, ...] = ()
    """Indices that the load fills, and whose documents are counted."""
    search_path: str = ""
    """Path of queries; empty: the server cannot search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """Command, environment and folders of one server process. Made by a target, carried out by `jvm.process`."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: Path
    writable: tuple[Path, ...]
    """Folders that the server's user must be able to write."""
    readable: tuple[Path, ...] = ()
    """Files besides the program that it must be able to read."""
    pid_is_jvm: bool = True
    """False for a launcher that forks the JVM (Elasticsearch 8, a custom target's command)."""
