"""A server of the user's own: what its file may say, and what any JVM may be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from ingest_bench.model.values import (
    CONTROL,
    GIB,
    HOUR,
    MIB,
    TIB,
    Between,
    FilePath,
    Form,
    Label,
    Line,
    Name,
    Port,
    S,
    Several,
    UrlPath,
    Value,
)

Collector = Literal["default", "g1", "cms", "parallel", "serial", "zgc"]
Heap = Annotated[int, Between(16 * MIB, 16 * TIB, "no server starts with less; the most that ZGC takes")]
# Their value is the next argument (the java command's own words, Java 11 to 25): one of ours, such as its recording.
_TAKES_THE_NEXT = (
    r"-cp|-classpath|-jar|-[dmp]|--(?:class-path|module-path|upgrade-module-path|patch-module|(?:add|limit)-modules"
    r"|add-(?:exports|opens|reads)|enable-native-access|(?:describe-)?module|source)"
)
# "-" and one line: neither the class to start nor a second line of a file of options.
JvmOption = Annotated[
    str,
    Form(
        rf"(?!(?:{_TAKES_THE_NEXT})\Z)-[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{{1,4000}}",
        "an option of the JVM: one line that begins with -, its value behind = or :",
    ),
]
# A class of Java with its package, in ASCII.
ClassName = Annotated[
    str,
    Form(
        r"[A-Za-z_$][A-Za-z0-9_$]{0,200}(?:\.[A-Za-z_$][A-Za-z0-9_$]{0,200}){0,20}",
        "a class with its package: com.example.Main",
    ),
]
Coordinate = Annotated[
    str,
    Form(
        r"[A-Za-z0-9_-]{1,100}(?:\.[A-Za-z0-9_-]{1,100}){0,20}:[A-Za-z0-9_-]{1,100}(?:\.[A-Za-z0-9_-]{1,100}){0,20}"
        r":[A-Za-z0-9][A-Za-z0-9_.+-]{0,100}"
        r"(?::[A-Za-z0-9][A-Za-z0-9_.-]{0,100})?(?:@[0-9a-f]{64})?",
        'a jar in Maven: "group:name:version", then ":classifier" and "@" with its SHA-256 where it has them',
    ),
]
Argument = Annotated[str, Form(r"[^\x00\ud800-\udfff]{0,4000}", "an argument: at most 4,000 characters")]
VariableName = Annotated[
    str, Form(r"[A-Za-z_][A-Za-z0-9_]{0,200}", "the name of a variable: A-Z, a-z, 0-9 and underscore")
]
# The data model of Prometheus: metric names have colons, labels have not.
_LABEL = rf'[A-Za-z_][A-Za-z0-9_]{{0,200}}="[^"\\{CONTROL}]{{0,200}}"'
Metric = Annotated[
    str,
    Form(
        rf"[A-Za-z_:][A-Za-z0-9_:]{{0,200}}(?:\{{(?:{_LABEL}(?:, ?{_LABEL}){{0,19}})?\}})?",
        'a metric of Prometheus, such as ingested_total or requests_total{path="/events"}',
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a server of the user's own is started: a jar, a class, a source or a command.

    In `arguments`, `jvm`, `command` and `env` stand {host}, {port}, {home} (an empty folder of each run), {folder}
    (that of the file), {node} (1, 2, …) and {nodes} (where all of them are: host:port,host:port) for what they are.
    """

    java: Annotated[int, Between(11, 99, "the first with an open flight recorder")] = 17
    """The Java that it runs on."""
    jar: FilePath | None = None
    """A jar that `java -jar` starts."""
    main: ClassName | None = None
    """A class in `classpath` or `maven`."""
    source: FilePath | None = None
    """One Java file whose class has its name. It is compiled by ours, so that no JDK is needed."""
    command: Annotated[tuple[Argument, ...], Several(0, 1000)] = ()
    """A program that starts one JVM, in which JDK_JAVA_OPTIONS holds what heap, collector and probes need."""
    classpath: Annotated[tuple[FilePath, ...], Several(0, 1000)] = ()
    """Jars and folders with its classes."""
    maven: Annotated[tuple[Coordinate, ...], Several(0, 1000)] = ()
    """Each jar that it needs: what these need themselves is not looked up."""
    arguments: Annotated[tuple[Argument, ...], Several(0, 1000)] = ()
    """The arguments of the program."""
    jvm: Annotated[tuple[JvmOption, ...], Several(0, 200)] = ()
    """Options of its JVM."""
    env: Annotated[dict[VariableName, Argument], Several(0, 200)] = field(default_factory=dict)
    """Environment variables of the server, without those by which other programs load code (PATH, LD_…, LOCPATH …)."""
    port: Port = 9200
    """Where it listens, at {host}."""
    heap_bytes: Heap = GIB
    """Unless the experiment says another one."""
    gc: Collector = "default"
    """Unless the experiment says another one."""

    @property
    def ways(self) -> tuple[str, ...]:
        """How it is started, by the keys that say it: one in a file that is right."""
        given = {"jar": self.jar, "main": self.main, "source": self.source, "command": self.command}
        return tuple(name for name, value in given.items() if value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """When a server of the user's own is ready: with neither `path` nor `log`, once its port takes a connection."""

    path: UrlPath | None = None
    """GET of it is answered `status`."""
    status: Annotated[int, Between(200, 599, "those of HTTP")] = 200
    """The HTTP status that says that it is ready."""
    port: Port | None = None
    """Where `path` is asked for; None: where documents go."""
    log: Label | None = None
    """A text in the first 16 MiB of its output."""
    within_ns: Annotated[int, Between(S, HOUR, "no server is waited for longer")] = 60 * S
    """How long it may take until it is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Where a server of the user's own tells how many documents it has."""

    path: UrlPath
    """GET of it tells the number."""
    json: Label | None = None
    """The number's place in a JSON answer: keys and places in lists with dots between them, "totals.0.documents"."""
    metric: Metric | None = None
    """A metric of Prometheus, without or with labels: `ingested_total`, `requests_total{path="/events"}`. All that have
    these labels are added up."""
    port: Port | None = None
    """None: where documents go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """Where a server of the user's own tells which documents it has: a number a line, as often as it is there."""

    path: UrlPath
    """GET of it tells the documents."""
    after_ns: Annotated[int, Between(0, HOUR, "no server is waited for longer")] = 0
    """How long it may take after the load until all are there: what comes later is lost."""
    port: Port | None = None
    """None: where documents go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server of the user's own: one TOML file."""

    description: Line = ""
    """What it is, in a sentence."""
    protocol: Annotated[dict[Name, Value], Several(1, 100)]
    """`name`, and the keys of the protocol of that name."""
    start: Start | None = None
    """None: it runs already, at --url or --attach."""
    ready: Ready = Ready()
    """When it is ready."""
    count: Count | None = None
    """None: it cannot be counted."""
    delivered: Delivered | None = None
    """None: it cannot be read back by the numbers of its documents (`sequence` of the protocol)."""
    folder: FilePath = "."
    """Where its paths begin: the folder of the file."""
