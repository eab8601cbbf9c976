"""A server of the user's own, from its TOML file: started, awaited, fed and counted as that says."""

from __future__ import annotations

import dataclasses
import re
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ingest_bench import system
from ingest_bench.errors import InvalidRun, RunFailed, SpecError
from ingest_bench.inputs import files, records
from ingest_bench.jvm import artifacts, options
from ingest_bench.jvm.compile import ECJ, classes
from ingest_bench.model.load import Wire
from ingest_bench.model.server import Count, Delivered, Server, Start
from ingest_bench.model.target import LaunchPlan, Listens, TargetOptions
from ingest_bench.targets import counting
from ingest_bench.targets.plain import Plain
from ingest_bench.targets.version import Requirements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ingest_bench.jvm.java import Java
    from ingest_bench.model.results import Value
    from ingest_bench.model.target import Endpoint
    from ingest_bench.model.workload import Workload
    from ingest_bench.targets.http import Http

T = TypeVar("T")
# Of a log that is read again and again, until a text is in it: ten thousand times what a server writes at its start.
_LOG_BYTES = 16 << 20
# What only a server can have whose settings we know.
_UNKNOWN = ("version", "replicas", "receive_predictor_bytes", "allocator", "socket_receive_buffer_bytes", "setting")
# The JVM's own way in for options, where a program starts it (JDK 9 and later).
_OPTIONS_VARIABLE = "JDK_JAVA_OPTIONS"
# Variables by which the helpers that start a server, as root perhaps, load code or files: those that glibc ignores in
# set-user-ID programs (sysdeps/generic/unsecvars.h in glibc 2.40), and those of the shell.
_TRUSTED_BY_HELPERS = frozenset(
    (
        *("GCONV_PATH", "GETCONF_DIR", "GLIBC_TUNABLES", "HOSTALIASES", "LOCALDOMAIN", "LOCPATH", "MALLOC_TRACE"),
        *("NIS_PATH", "NLSPATH", "RESOLV_HOST_CONF", "RES_OPTIONS", "TMPDIR", "TZDIR"),
        *("BASH_ENV", "ENV", "IFS", "PATH", "PS4", "SHELLOPTS"),
    )
)
# What the java command says when it does (JLI_AddArgsFromEnvVar in args.c of the JDK).
_TAKEN = f"NOTE: Picked up {_OPTIONS_VARIABLE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Own(Plain):
    """The server of a TOML file. It has no versions: it is what the file says."""

    name: str
    server: Server
    default_version: str = ""

    # Its file does not say, so nothing is refused for it.
    keeps_files = True

    @property
    def versions(self) -> Mapping[str, Requirements]:
        """What it needs."""
        return {} if self.server.start is None else {"": _requirements(self.server.start)}

    def requirements(self, asked: TargetOptions) -> Requirements:
        """What it needs; SpecError for what cannot be started, or for a choice that nobody can make for it."""
        self.check()
        usual = TargetOptions()
        for field in _UNKNOWN:
            if getattr(asked, field) != getattr(usual, field):
                raise SpecError(
                    f"target.{records.key_of(field)}: {self.name} is a server of your own; what it understands stands "
                    "in its file (start.arguments, start.jvm, start.env)"
                )
        start = self._start()
        for option in (*start.jvm, *asked.jvm) if start.command else ():
            _quoted(option)
        options.collector(asked.gc, start.java)
        folders = {Path(self.server.folder, one) for one in start.classpath}
        for file in _files(start, self.server.folder):
            if what := _trouble(file, may_be_folder=file in folders):
                raise SpecError(f"{self.name}: start: {file}: {what}")
        return _requirements(start)

    def check(self) -> None:
        """SpecError for keys that contradict each other."""
        server, start = self.server, self.server.start
        if not isinstance(server.protocol.get("name"), str):
            raise SpecError(f'{self.name}: protocol: the key "name" is missing, such as name = "json-array"')
        if server.ready.path is not None and server.ready.log is not None:
            raise SpecError(f"{self.name}: ready: path and log: one thing says that it is ready; take one out")
        if server.count is not None and (server.count.json is None) == (server.count.metric is None):
            raise SpecError(f"{self.name}: count: one of json and metric says where in the answer the number is")
        if server.delivered is not None and not server.protocol.get("sequence"):
            raise SpecError(
                f'{self.name}: delivered: its documents have no numbers; add sequence = "number" to protocol'
            )
        if start is None:
            return
        if len(start.ways) != 1:
            found = f"found {' and '.join(start.ways)}" if start.ways else "found none of them"
            raise SpecError(f"{self.name}: start: one of jar, main, source and command says what is started, {found}")
        if start.main and not (start.classpath or start.maven):
            raise SpecError(f"{self.name}: start: main: where is that class? In classpath, or in maven")
        if start.command and (start.classpath or start.maven or start.arguments):
            raise SpecError(f"{self.name}: start: a command brings its own classpath and arguments; take these out")
        for variable in start.env:
            if variable in (_OPTIONS_VARIABLE, "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"):
                raise SpecError(f"{self.name}: start: env.{variable}: options of the JVM stand in start.jvm")
            if variable in _TRUSTED_BY_HELPERS or variable.startswith(("LD_", "BASH_FUNC_")):
                raise SpecError(
                    f"{self.name}: start: env.{variable}: it would hold for what starts the server, too, which may be "
                    'root; set it in a command, such as command = ["env", "NAME=value", "java", …]'
                )

    def listens(self, asked: TargetOptions) -> Listens:
        """On which port it listens, and how long it may take until it is ready."""
        del asked
        return Listens(port=self._start().port, within_s=self.server.ready.within_ns / 1e9)

    def launch_plan(
        self,
        asked: TargetOptions,
        java: Java,
        home: Path,
        node: int,
        nodes: Sequence[Endpoint],
        jvm_options: tuple[str, ...],
    ) -> LaunchPlan:
        """How to start it in an empty home, which is made here."""
        start, folder = self._start(), self.server.folder
        home.mkdir(parents=True, exist_ok=True)
        words = {"{host}": nodes[node].host, "{port}": str(nodes[node].port), "{home}": str(home), "{folder}": folder}
        words |= {"{node}": str(node + 1), "{nodes}": ",".join(map(str, nodes))}
        filled = _filled(words)
        jvm = (
            *options.heap(asked.heap_bytes),
            *options.collector(asked.gc, java.version),
            f"-Djava.io.tmpdir={home}",
            *map(filled, (*start.jvm, *asked.jvm)),
            *jvm_options,
        )
        env = {name: filled(value) for name, value in start.env.items()}
        if start.command:
            program, *arguments = map(filled, start.command)
            env |= {"JAVA_HOME": str(java.home), "PATH": f"{java.home / 'bin'}:{system.PATH}"}
            env |= {_OPTIONS_VARIABLE: " ".join(map(_quoted, jvm))}
            argv = (str(Path(folder, program)) if "/" in program else program, *arguments)
        else:
            argv = (str(java.java), *jvm, *_program(start, folder, java), *map(filled, start.arguments))
        return LaunchPlan(
            argv=argv,
            env=env,
            cwd=home,
            writable=(home,),
            readable=tuple(_files(start, folder)),
            pid_is_jvm=not start.command,
        )

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Whether it takes requests, by the sign that the file names."""
        http, ready = nodes[node], self.server.ready
        if ready.log is not None and http.log is not None:
            return _has_written(http.log, ready.log)
        if ready.path is None:
            http.connect()
            return True
        answer = _got(http, ready.port, ready.path, timeout_s=5)
        if answer.status != ready.status:
            raise RunFailed(f"GET {ready.path} was answered {answer.status}, and {ready.status} says that it is ready")
        return True

    def wire(self, asked: TargetOptions, workload: Workload) -> Wire:
        """The protocol of the file."""
        del asked, workload
        self.check()
        keys = {key: value for key, value in self.server.protocol.items() if key != "name"}
        return Wire(protocol=str(self.server.protocol["name"]), keys=keys, written=f"{self.name}: protocol")

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int | None:
        """The documents that it has; None: it cannot be counted. RunFailed where the file says something else."""
        del indices
        count = self.server.count
        read = count and partial(counting.number, count)
        return sum(self._told(http, "count", count, read) for http in nodes) if count and read else None

    def _told(self, http: Http, key: str, where: Count | Delivered, read: Callable[[bytes], T]) -> T:
        """What its answer there says; RunFailed with what it says instead."""
        answer = _got(http, where.port, where.path, timeout_s=60)
        said = answer.beginning()
        what = f"{self.name}: {key}: GET {http.origin if where.port is None else f':{where.port}'}{where.path}"
        if answer.status != 200:
            raise RunFailed(f"{what} was answered {answer.status}: {said}")
        try:
            return read(answer.body)
        except ValueError as error:
            raise RunFailed(f"{what}: {error}; it said: {said}") from None

    def read_back(self, nodes: Sequence[Http]) -> tuple[bytes, ...] | None:
        """Of each node which documents it has; None where the file does not say how."""
        if (where := self.server.delivered) is None:
            return None
        time.sleep(where.after_ns / 1e9)
        return tuple(self._told(http, "delivered", where, counting.numbered) for http in nodes)

    def describe(self, http: Http, asked: TargetOptions) -> dict[str, Value]:
        """What its file says: it says nothing itself. RunFailed: it is not counted; InvalidRun: nor watched."""
        del asked
        self.count((http,), ())
        told: dict[str, Value] = {"name": self.name, "description": self.server.description}
        start, log = self.server.start, http.log
        if start is None or log is None:
            return told
        if start.command and not _has_written(log, _TAKEN):
            raise InvalidRun(
                f'{self.name}: start: command: its output has no "{_TAKEN}", so its JVM has not the heap, the '
                "collector and the probes that were asked for; let it start java, and let its output be the command's"
            )
        if start.maven:
            told["jars"] = ", ".join(artifacts.name_and_checksum(artifacts.jar(one)) for one in start.maven)
        return told

    def _start(self) -> Start:
        if self.server.start is None:
            raise SpecError(
                f"{self.name}: it has no [start], so it must run already: --url URL says where, or --attach PID"
            )
        return self.server.start


def _requirements(start: Start) -> Requirements:
    source = (ECJ,) if start.source else ()
    return Requirements(artifacts=(*source, *map(artifacts.jar, start.maven)), java_version=start.java)


def _files(start: Start, folder: str) -> Iterator[Path]:
    """The files of the user's that it is started from."""
    for path in (start.jar, start.source, *start.classpath):
        if path is not None:
            yield Path(folder, path)
    if start.command and "/" in start.command[0] and "{" not in start.command[0]:
        yield Path(folder, start.command[0])


def _trouble(file: Path, *, may_be_folder: bool) -> str:
    """Why a server cannot be started from it; empty: it can."""
    try:
        what = files.trouble(file)
    except (FileNotFoundError, NotADirectoryError):
        return "there is no such file"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return what or ("" if may_be_folder or not file.is_dir() else "it is a folder, and no file")


def _program(start: Start, folder: str, java: Java) -> tuple[str, ...]:
    """What the JVM runs."""
    if start.jar is not None:
        return ("-jar", str(Path(folder, start.jar)))
    jars = tuple(artifacts.fetch(artifacts.jar(one)) for one in start.maven)
    path = (*(Path(folder, one) for one in start.classpath), *jars)
    if start.source is None:
        return ("-cp", ":".join(map(str, path)), str(start.main))
    source = Path(folder, start.source)
    compiled = classes(java, (source,), path, language=java.version)
    return ("-cp", ":".join(map(str, (compiled, *path))), source.stem)


def _filled(words: Mapping[str, str]) -> Callable[[str], str]:
    """A text with what stands for something replaced by it, once; other braces stay."""
    known = re.compile("|".join(map(re.escape, words)))
    return lambda text: known.sub(lambda found: words[found[0]], text)


def _quoted(option: str) -> str:
    """An option as JDK_JAVA_OPTIONS has it (the java command's own words: quotes of either kind, and no escapes)."""
    mark = "'" if '"' in option else '"'
    if mark in option:
        raise SpecError(f"start.jvm: {option}: an option with quotes of both kinds cannot be given to a command's JVM")
    return f"{mark}{option}{mark}"


def _has_written(log: Path, text: str) -> bool:
    """Whether a text stands in the beginning of a log: what starts a server says so before it has written so much."""
    sought = text.encode()
    with log.open("rb") as file:
        return sought in file.read(_LOG_BYTES)


def _got(http: Http, port: int | None, path: str, timeout_s: float) -> Any:
    if port is None:
        return http.request("GET", path, timeout_s=timeout_s)
    with http.elsewhere(port) as other:
        limited = dataclasses.replace(other, deadline=http.deadline)
        return limited.request("GET", path, timeout_s=timeout_s)
