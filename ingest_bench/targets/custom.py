"""Custom target: a server whose start, readiness, protocol and counts a TOML file of the user describes."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ingest_bench import system
from ingest_bench.errors import InvalidRun, RunFailed, SpecError
from ingest_bench.inputs import credentials, files
from ingest_bench.jvm import artifacts
from ingest_bench.jvm.java import ECJ, Java, compile_classes
from ingest_bench.jvm.options import collector_options, heap_options
from ingest_bench.model.load import ProtocolOptions, Workload
from ingest_bench.model.target import (
    CustomRequest,
    CustomTarget,
    DeliveredDocuments,
    DocumentCount,
    LaunchPlan,
    ListenOptions,
    StartOptions,
    TargetOptions,
    ThreadRoles,
    Tls,
)
from ingest_bench.targets import counting
from ingest_bench.targets.base import NodeStart, Requirements, Target, hash_jars, refuse_options
from ingest_bench.targets.http import Http, NoResponse

T = TypeVar("T")
# Of a log that is read repeatedly until it has a text: ten thousand times what a server writes at its start.
_MAX_LOG_BYTES = 16 << 20
# Options for servers whose settings we know.
_UNKNOWN_OPTIONS = (
    *("version", "replicas", "setting"),
    *("receive_predictor_bytes", "allocator", "socket_receive_buffer_bytes"),
)
# OpenSSL's name of the error.
_UNVERIFIED = "CERTIFICATE_VERIFY_FAILED"
# Options for a JVM that another program starts (JDK 9 and later).
_OPTIONS_VARIABLE = "JDK_JAVA_OPTIONS"
# The java command prints this when it reads them (JLI_AddArgsFromEnvVar in args.c of the JDK).
_OPTIONS_NOTE = f"NOTE: Picked up {_OPTIONS_VARIABLE}"
# Variables that let the helpers that start a server, perhaps as root, load code or files: those that glibc ignores in
# set-user-ID programs (sysdeps/generic/unsecvars.h in glibc 2.40), and those of the shell.
_UNSAFE_VARIABLES = frozenset(
    (
        *("GCONV_PATH", "GETCONF_DIR", "GLIBC_TUNABLES", "HOSTALIASES", "LOCALDOMAIN", "LOCPATH", "MALLOC_TRACE"),
        *("NIS_PATH", "NLSPATH", "RESOLV_HOST_CONF", "RES_OPTIONS", "TMPDIR", "TZDIR"),
        *("BASH_ENV", "ENV", "IFS", "PATH", "PS4", "SHELLOPTS"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Custom(Target):
    """The target of a TOML file. It has no versions."""

    name: str
    definition: CustomTarget
    default_version: str = ""

    # Unknown, so nothing is refused because of it.
    is_persistent = True

    @property
    def versions(self) -> Mapping[str, Requirements]:
        """Return its requirements, if it can be started."""
        return {} if self.definition.start is None else {"": _start_requirements(self.definition.start)}

    @property
    def thread_roles(self) -> ThreadRoles:
        """Return the roles of its threads, from its file."""
        return self.definition.thread_roles

    @property
    def network(self) -> tuple[str, ...]:
        """Return the packages of its network layer, from its file."""
        return self.definition.network

    def requirements(self, options: TargetOptions) -> Requirements:
        """Return its requirements; SpecError if it cannot be started, or for options that a custom target lacks."""
        self.check()
        reason = f"not available for the custom target {self.name} (use start.arguments, start.jvm or start.env)"
        refuse_options(options, _UNKNOWN_OPTIONS, reason)
        start = self._require_start()
        for option in (*start.jvm, *options.jvm) if start.command else ():
            _quote_option(option)
        collector_options(options.gc, start.java)
        classpath = set(_list_classpath(start, self.definition.folder))
        for file in _start_files(start, self.definition.folder):
            if problem := _find_problem(file, may_be_folder=file in classpath):
                raise SpecError(f"{self.name}: start: {file}: {problem}")
        self.listens(options)
        return _start_requirements(start)

    def check(self) -> None:
        """Raise SpecError for keys that contradict each other."""
        definition, start = self.definition, self.definition.start
        if not isinstance(definition.protocol.get("name"), str):
            raise SpecError(f'{self.name}: protocol: the key "name" is missing, such as name = "json-array"')
        if definition.ready.path is not None and definition.ready.log is not None:
            raise SpecError(f"{self.name}: ready: path cannot be combined with log; remove one")
        if definition.count is not None and (definition.count.json is None) == (definition.count.metric is None):
            raise SpecError(f"{self.name}: count: give one of json and metric, the place of the number in the response")
        if definition.delivered is not None and not definition.protocol.get("sequence"):
            raise SpecError(f'{self.name}: delivered requires numbered documents; add sequence = "number" to protocol')
        if start is not None:
            self._check_start(start)

    def _check_start(self, start: StartOptions) -> None:
        if len(start.start_keys) != 1:
            present = " and ".join(start.start_keys) or "none of them"
            raise SpecError(f"{self.name}: start: give one of jar, main, source and command (found {present})")
        if start.main and not (start.classpath or start.maven):
            raise SpecError(f"{self.name}: start: main requires classpath or maven, which have the class")
        if start.command and (start.classpath or start.maven or start.arguments):
            raise SpecError(f"{self.name}: start: command cannot be combined with classpath, maven or arguments")
        for variable in start.env:
            if variable in (_OPTIONS_VARIABLE, "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"):
                raise SpecError(f"{self.name}: start: env.{variable}: put options of the JVM into start.jvm")
            if variable in _UNSAFE_VARIABLES or variable.startswith(("LD_", "BASH_FUNC_")):
                raise SpecError(
                    f"{self.name}: start: env.{variable}: it would also affect the programs that start the server, "
                    'perhaps as root; set it in a command, such as command = ["env", "NAME=value", "java", …]'
                )

    def listens(self, options: TargetOptions) -> ListenOptions:
        """Return its port and the time limit until it is ready."""
        start, tls = self._require_start(), None
        if start.tls is not None:
            file = Path(self.definition.folder, start.tls.ca_file)
            ca_pem = credentials.read_ca_certificates(file, f"{self.name}: start: tls.ca_file:")
            tls = Tls(name=start.tls.name, ca_pem=ca_pem)
        return ListenOptions(port=start.port, ready_timeout_s=self.definition.ready.timeout_ns / 1e9, tls=tls)

    def launch_plan(self, node: NodeStart) -> LaunchPlan:
        """Return how to start it in an empty home, which is made here."""
        start, folder, options, java = self._require_start(), self.definition.folder, node.options, node.java
        node.home.mkdir(parents=True, exist_ok=True)
        values = {
            "{host}": node.listen.host,
            "{port}": str(node.listen.port),
            "{home}": str(node.home),
            "{folder}": folder,
            "{node}": str(node.number + 1),
            "{nodes}": ",".join(map(str, node.nodes)),
        }

        fill = partial(_fill, values=values)
        jvm = (
            *heap_options(options.heap_bytes),
            *collector_options(options.gc, java.version),
            f"-Djava.io.tmpdir={node.home}",
            *map(fill, (*start.jvm, *options.jvm)),
            *node.jvm_options,
        )
        env = {name: fill(value) for name, value in start.env.items()}
        if start.command:
            program, *arguments = map(fill, start.command)
            env |= {"JAVA_HOME": str(java.home), "PATH": f"{java.home / 'bin'}:{system.PATH}"}
            env |= {_OPTIONS_VARIABLE: " ".join(map(_quote_option, jvm))}
            argv = (str(Path(folder, program)) if "/" in program else program, *arguments)
        else:
            argv = (str(java.java), *jvm, *_main_arguments(start, folder, java), *map(fill, start.arguments))
        return LaunchPlan(
            argv=argv,
            env=env,
            cwd=node.home,
            writable=(node.home,),
            readable=tuple(_start_files(start, folder)),
            pid_is_jvm=not start.command,
        )

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Return True if the sign in the file says that it is ready; InvalidRun if its certificate is not verified."""
        http, ready = nodes[node], self.definition.ready
        if ready.log is not None and http.log is not None:
            return _log_contains(http.log, ready.log)
        if ready.path is None:
            http.connect()
            return True
        with http.at_port(ready.port) as server:
            try:
                response = server.request("GET", ready.path, timeout_s=5)
            except NoResponse as error:
                start = self.definition.start
                if http.log is None or start is None or start.tls is None or _UNVERIFIED not in str(error):
                    raise
                # Waiting does not help.
                raise InvalidRun(
                    f"{self.name}: start: tls: {start.tls.ca_file} does not verify the server's certificate for the "
                    f"name {start.tls.name}: {error}"
                ) from None
        if response.status != ready.status:
            raise RunFailed(f"GET {ready.path} got status {response.status}; {ready.status} would mean ready")
        return True

    def wire(self, options: TargetOptions, workload: Workload) -> ProtocolOptions:
        """Return the protocol of the file."""
        self.check()
        keys = {key: value for key, value in self.definition.protocol.items() if key != "name"}
        name = str(self.definition.protocol["name"])
        return ProtocolOptions(protocol=name, keys=keys, toml_key=f"{self.name}: protocol")

    @property
    def settle_s(self) -> float:
        """Return the maximum time until it counts all acknowledged documents."""
        return 0 if self.definition.count is None else self.definition.count.settle_ns / 1e9

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int | None:
        """Return the documents of all nodes; None if they cannot be counted. RunFailed for an unexpected response."""
        count = self.definition.count
        if count is None:
            return None
        # Servers at several addresses of a host may share the port that counts.
        places = {http.origin if count.port is None else http.endpoint.host: http for http in nodes}
        return sum(self._ask(http, "count", count, partial(counting.read_count, count)) for http in places.values())

    def _ask(self, http: Http, key: str, place: DocumentCount | DeliveredDocuments, read: Callable[[bytes], T]) -> T:
        with http.at_port(place.port) as server:
            if isinstance(place, DocumentCount) and place.refresh is not None:
                _send(server, f"{self.name}: {key}: refresh", CustomRequest(path=place.refresh))
            return server.read(f"{self.name}: {key}", place.path, read)

    def prepare_nodes(self, nodes: Sequence[Http]) -> None:
        """Send the requests of `[[prepare]]` to each node."""
        for http, request in itertools.product(nodes, self.definition.prepare):
            _send(http, f"{self.name}: prepare", request)

    def clean_up_nodes(self, nodes: Sequence[Http]) -> None:
        """Send the requests of `[[clean_up]]` to each node, also if one of them fails; then raise the first error."""
        errors = []
        for http, request in itertools.product(nodes, self.definition.clean_up):
            try:
                _send(http, f"{self.name}: clean_up", request)
            except RunFailed as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def read_delivered(self, nodes: Sequence[Http]) -> tuple[bytes, ...] | None:
        """Return the document numbers of each node; None if the file has no `delivered`."""
        if (place := self.definition.delivered) is None:
            return None
        time.sleep(place.timeout_ns / 1e9)
        return tuple(self._ask(http, "delivered", place, counting.pack_numbers) for http in nodes)

    def describe(self, http: Http, options: TargetOptions) -> dict[str, Any]:
        """Return name and description of the file; RunFailed if it cannot be counted, InvalidRun if not observed."""
        # Before its requests of `[[prepare]]` it may have nothing that could be counted.
        if not self.definition.prepare:
            self.count((http,), ())
        description: dict[str, Any] = {"name": self.name, "description": self.definition.description}
        start, log = self.definition.start, http.log
        if start is None or log is None:
            return description
        if start.command and not _log_contains(log, _OPTIONS_NOTE):
            raise InvalidRun(
                f'{self.name}: start: command: its output has no "{_OPTIONS_NOTE}": its JVM got neither heap nor '
                "collector nor probes. The command must start java and pass on its output"
            )
        if start.maven:
            description["jars"] = hash_jars(start.maven)
        return description

    def _require_start(self) -> StartOptions:
        if self.definition.start is None:
            raise SpecError(f"{self.name}: without [start] it must already run; give --url URL or --attach PID")
        return self.definition.start


def _send(http: Http, name: str, request: CustomRequest) -> None:
    """Send a request; RunFailed begins with *name* without a response, or quotes one with an unexpected status."""
    values = {"{host}": http.endpoint.host, "{port}": str(http.endpoint.port)}
    body = None if request.body is None else _fill(request.body, values).encode()
    try:
        response = http.request(request.method, request.path, body, {"Content-Type": request.content_type})
    except NoResponse as error:
        raise RunFailed(f"{name}: {error}") from None
    is_expected = response.status in request.status if request.status else 200 <= response.status < 300
    if not is_expected:
        target = f"{request.method} {http.origin}{request.path}"
        raise RunFailed(f"{name}: {target} got status {response.status}: {response.excerpt()}")


def _fill(text: str, values: Mapping[str, str]) -> str:
    """Replace placeholders, once; other braces stay."""
    return re.sub("|".join(map(re.escape, values)), lambda match: values[match[0]], text)


def _start_requirements(start: StartOptions) -> Requirements:
    source = (ECJ,) if start.source else ()
    return Requirements(artifacts=source, java_version=start.java, maven=start.maven)


def _start_files(start: StartOptions, folder: str) -> Iterator[Path]:
    """Yield the user's files that the server is started from."""
    for path in (start.jar, start.source):
        if path is not None:
            yield Path(folder, path)
    yield from _list_classpath(start, folder)
    if start.command and "/" in start.command[0] and "{" not in start.command[0]:
        yield Path(folder, start.command[0])


def _list_classpath(start: StartOptions, folder: str) -> Iterator[Path]:
    """Yield the files and folders of the class path: those that match a pattern, and the jars in each folder."""
    for entry in start.classpath:
        for path in files.expand_pattern(folder, entry):
            yield path
            yield from sorted(path.glob("*.jar"))


def _find_problem(file: Path, *, may_be_folder: bool) -> str:
    """Return why a server cannot be started from a file; empty if it can."""
    if may_be_folder and ":" in str(file):
        return "java separates the parts of a class path by colons. List each part, or rename it"
    try:
        problem = files.why_not_plain(file)
    except (FileNotFoundError, NotADirectoryError):
        return "no such file"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return problem or ("" if may_be_folder or not file.is_dir() else "it is a folder, not a file")


def _main_arguments(start: StartOptions, folder: str, java: Java) -> tuple[str, ...]:
    """Return the arguments of java that choose what it runs."""
    if start.jar is not None:
        return ("-jar", str(Path(folder, start.jar)))
    jars = map(artifacts.fetch, artifacts.resolve_jars(start.maven))
    path = (*_list_classpath(start, folder), *jars)
    if start.source is None:
        return ("-cp", ":".join(map(str, path)), str(start.main))
    source = Path(folder, start.source)
    classes = compile_classes(java, (source,), path, language=java.version)
    return ("-cp", ":".join(map(str, (classes, *path))), source.stem)


def _quote_option(option: str) -> str:
    """Quote an option for JDK_JAVA_OPTIONS: the java command knows both kinds of quotes and no escapes."""
    mark = "'" if '"' in option else '"'
    if mark in option:
        raise SpecError(f"start.jvm: {option}: an option with both kinds of quotes cannot be passed to a command's JVM")
    return f"{mark}{option}{mark}"


def _log_contains(log: Path, text: str) -> bool:
    """Return True if the beginning of a log contains a text."""
    with log.open("rb") as file:
        return text.encode() in file.read(_MAX_LOG_BYTES)
