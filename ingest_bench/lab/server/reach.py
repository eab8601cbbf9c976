"""The address of a server that is already running, by its URLs, its JVM's pid, and the interface that leads to it."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ingest_bench import system
from ingest_bench.errors import IngestBenchError, MissingCapability, RunFailed, SpecError
from ingest_bench.host import cgroup_files
from ingest_bench.inputs import credentials
from ingest_bench.jvm.attach import AttachedJvm, attach, find_endpoints, read_facts, read_start_id
from ingest_bench.jvm.jmx import JmxJvm
from ingest_bench.model.experiment import Cell, Plan
from ingest_bench.model.network import PortRange, Profile, RealInterface, RemoteAddress
from ingest_bench.model.target import Endpoint, ServerAddress, TargetOptions, Tls, Url
from ingest_bench.network.act import interface
from ingest_bench.network.measure.shaped_path import ShapedPath, shape_path
from ingest_bench.targets import detect
from ingest_bench.targets.http import Enter, open_http
from ingest_bench.units import format_bytes

_Value = TypeVar("_Value")

CONNECT_LIMIT_S = 10
# The flight recorder has 15 MiB of buffers (Java 11 to 25: 10 MB of global ones, 8 KiB for each thread). When it starts
# and stops, the JVM commits up to 46 MB more than before (native memory tracking, Java 17). `JFR.configure
# memorysize=2M` changed neither.
_RECORDER_BYTES = 64 << 20
# For a load of unknown length; and the time that requests, waits and counting take in addition to a known one.
_MAX_LOAD_S, _OVERHEAD_S = 24 * 3600.0, 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A server that accepts connections, and where the load is sent from."""

    options: TargetOptions
    """With the URLs of the server."""
    address: ServerAddress
    enter: Enter
    """Returns the argv that runs a command where the load is sent from."""
    place: str
    """The same in words."""

    def describe_path(self) -> str:
        """Return where the load is sent from, and over which devices to which addresses."""
        paths = []
        for server in (self.address, *self.address.other_addresses):
            host = min((endpoint.host for endpoint in _resolve(server.endpoint)), default=server.endpoint.host)
            route = re.search(r" dev (\S+)", system.run(self.enter(("ip", "-o", "route", "get", host)), check=False))
            device = route[1] if route else "an unknown device"
            paths.append(f"{host} over {'loopback' if device == 'lo' else device}")
        return f"the load is sent from {self.place} to {', '.join(dict.fromkeys(paths))}"


# --- URLs


def urls_of(options: TargetOptions) -> tuple[Url, ...]:
    """Return all URLs of the server."""
    assert options.url is not None  # noqa: S101 - callers have a URL
    return options.url, *options.more_urls


def resolve_address(options: TargetOptions, enter: Enter) -> ServerAddress:
    """Return the address of the server by its URLs and certificates; RunFailed if none accepts a connection.

    SpecError if these contradict each other.
    """
    urls = urls_of(options)
    first = urls[0]
    if len(set(urls)) < len(urls):
        raise SpecError(f"--url: {', '.join(map(str, urls))}: an address is given twice. Remove one of them.")
    if len({url.scheme for url in urls}) > 1:
        raise SpecError(f"--url: {', '.join(map(str, urls))}: the addresses of a cluster must begin with one scheme")
    if options.custom is not None and first.scheme == "cassandra":
        raise SpecError(f"--url {first}: {options.name} is reached over HTTP or TCP. Give an http:// URL.")
    cert, key = credentials.read_client_certificate(os.environ)
    cert, key = options.client_cert or cert, options.client_key or key
    # The CA may be that of JMX alone.
    ca_file = None if options.watch_jmx else options.ca_file
    for name, path in {"target.ca_file": ca_file, "target.client_cert": options.client_cert}.items():
        if path and first.scheme != "https":
            raise SpecError(f"{name}: {first} does not use TLS. Give an https:// URL.")
    ca_pem = "" if options.ca_file is None else credentials.read_ca_certificates(Path(options.ca_file))
    if cert and first.scheme == "https":
        credentials.load_client_certificate(ssl.create_default_context(), cert, key)
    # CQL: requests carry none.
    has_credentials = first.scheme != "cassandra" and bool(credentials.read_authorization(os.environ))

    def address(url: Url, endpoint: Endpoint) -> ServerAddress:
        tls = Tls(name=url.host, ca_pem=ca_pem, client_cert=cert, client_key=key) if url.scheme == "https" else None
        return ServerAddress(
            endpoint=endpoint,
            host_header=url.authority,
            path_prefix=url.path_prefix,
            tls=tls,
            has_credentials=has_credentials,
        )

    # Our requests use the first URL that accepts a connection; load workers resolve the others themselves.
    reachable, endpoint = _first_reachable(urls, enter)
    others = [
        address(url, _literal_endpoint(url) if is_other_namespace(enter) else Endpoint(url.host, url.port))
        for url in urls
        if url is not reachable
    ]
    return dataclasses.replace(address(reachable, endpoint), other_addresses=tuple(others))


def _first_reachable(urls: Sequence[Url], enter: Enter) -> tuple[Url, Endpoint]:
    """Return the first URL that accepts a connection, and its address; RunFailed if none does."""
    failures = []
    for url in urls:
        try:
            return url, _reachable_endpoint(url, enter)
        except RunFailed as error:
            failures.append(str(error))
    raise RunFailed("\n".join(failures))


def _reachable_endpoint(url: Url, enter: Enter) -> Endpoint:
    """Return the first address of the host that accepts a connection: the complete run uses it."""
    if is_other_namespace(enter):
        endpoint = _literal_endpoint(url)
        with open_http(ServerAddress(endpoint=endpoint), enter) as http:
            http.connect(CONNECT_LIMIT_S)
        return endpoint
    try:
        addresses = socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise RunFailed(f"{url}: unknown host ({error.strerror}). Check its spelling.") from None
    reason = ""
    for *_, address in dict.fromkeys(addresses):
        try:
            socket.create_connection((str(address[0]), url.port), timeout=CONNECT_LIMIT_S).close()
        except OSError as error:
            reason = error.strerror or str(error)
            continue
        return Endpoint(str(address[0]), url.port)
    raise RunFailed(f"{url}: cannot connect ({reason}). Check that it runs and that the port is open to this machine.")


def _literal_endpoint(url: Url) -> Endpoint:
    """Return the numeric address of a URL: host names are resolved here and may differ in another namespace."""
    try:
        return Endpoint(str(ipaddress.ip_address(url.host)), url.port)
    except ValueError:
        raise SpecError(
            f"--url {url}: it is not reachable from here, and in the network namespace of the JVM this name may be "
            "another host. Give the address as a number."
        ) from None


def unencrypted_notes(address: ServerAddress) -> tuple[str, ...]:
    """Return a note if credentials are sent over a network without TLS."""
    if address.has_credentials and address.tls is None and not address.endpoint.host.startswith(("127.", "::1")):
        return ("the credentials are sent unencrypted: the URL is http://",)
    return ()


# --- The JVM of a pid


def pin_processes(plan: Plan) -> Plan:
    """Return the plan with the start time of each process given by a pid, so that no other process is measured."""
    runs = []
    for run in plan.runs:
        options = run.cell.target
        if options.attach and not options.attached_process_starts:
            options = dataclasses.replace(options, attached_process_starts=tuple(map(_process_start, options.attach)))
        runs.append(dataclasses.replace(run, cell=dataclasses.replace(run.cell, target=options)))
    return dataclasses.replace(plan, runs=tuple(runs))


def attach_jvms(options: TargetOptions, java_home: Path | None) -> tuple[AttachedJvm, ...]:
    """Return the JVMs of `options.attach`; SpecError if one is not a JVM, or not the process of the plan."""
    for pid, start in zip(options.attach, options.attached_process_starts, strict=False):
        if start != _process_start(pid):
            raise SpecError(
                f"--attach {pid}: this pid now belongs to another process than when the plan was made. Its runs cannot "
                "be continued: start a new experiment with the pid of the server."
            )
    return tuple(attach(pid, java_home) for pid in options.attach)


def _process_start(pid: int) -> str:
    start = read_start_id(pid)
    if start is None:
        raise SpecError(f"--attach {pid}: there is no such process. `jcmd -l` lists the JVMs of this user.")
    return start


def enter_namespace_of(jvm: AttachedJvm) -> Enter:
    """Return how to run a command in the JVM's network namespace, which is not ours; MissingCapability unless root."""
    if not system.is_root():
        raise MissingCapability(
            f"attach: pid {jvm.pid} is in another network namespace (a container), and only root can send from there. "
            "Give a --url that is reachable from here, or run as root."
        )
    return lambda argv: ("nsenter", f"--net=/proc/{jvm.pid}/ns/net", "--", *argv)


def is_other_namespace(enter: Enter) -> bool:
    """Return True if *enter* leads to another network namespace than ours."""
    return enter is not tuple


def find_origin(options: TargetOptions, jvms: Sequence[AttachedJvm]) -> Reached:
    """Return how the server is reached: from here, as its other clients do, or from a JVM's network namespace.

    RunFailed if it accepts no connection from either; SpecError if its URLs are unknown or contradict each other.
    """
    failures: list[str] = []
    try:
        for origin in (None, *_other_namespaces(jvms)):
            enter = tuple if origin is None else enter_namespace_of(origin)
            place = "this machine" if origin is None else f"the network namespace of the JVM with pid {origin.pid}"
            located = options
            if options.url is None:
                urls = [_find_urls(jvm, enter, origin, options, failures) for jvm in jvms]
                if any(len(choices) != 1 for choices in urls):
                    continue
                located = dataclasses.replace(options, url=urls[0][0], more_urls=tuple(url for (url,) in urls[1:]))
            try:
                return Reached(options=located, address=resolve_address(located, enter), enter=enter, place=place)
            except RunFailed as error:
                failures.append(str(error))
    except (MissingCapability, SpecError) as error:
        # The reason is often that of the failure from here: a server that has ended, a misspelled host.
        raise type(error)("\n".join((*failures, str(error)))) from None
    if options.url is not None:
        raise RunFailed("\n".join(dict.fromkeys(failures)))
    results = "".join(f"\n  {line}" for line in dict.fromkeys(failures)) or " it listens on no TCP port"
    pids = ", ".join(str(jvm.pid) for jvm in jvms)
    raise SpecError(f"--attach {pids}: the URL is ambiguous or unknown. Give --url too. Found:{results}")


def _other_namespaces(jvms: Sequence[AttachedJvm]) -> Iterator[AttachedJvm]:
    """Yield one JVM of each network namespace other than ours."""
    namespaces = {_network_namespace("self")}
    for jvm in jvms:
        if (namespace := _network_namespace(jvm.pid)) not in namespaces:
            namespaces.add(namespace)
            yield jvm


def _network_namespace(pid: int | str) -> Path:
    return Path(f"/proc/{pid}/ns/net").readlink()


def _find_urls(
    jvm: AttachedJvm, enter: Enter, origin: AttachedJvm | None, options: TargetOptions, attempts: list[str]
) -> list[Url]:
    """Return the URLs at which the JVM is a known server, seen from the namespace of *origin*; add to *attempts*."""
    is_elsewhere = _network_namespace(jvm.pid) != _network_namespace("self" if origin is None else origin.pid)
    urls: list[Url] = []
    for endpoint in find_endpoints(jvm.pid):
        if is_elsewhere and ipaddress.ip_address(endpoint.host).is_loopback:
            # Another server may have this address here.
            continue
        try:
            url, name = _identify_endpoint(endpoint, enter, options)
        except IngestBenchError as error:
            attempts.append(str(error).splitlines()[0])
        else:
            urls.append(url)
            attempts.append(f"{url}: {name}")
    return urls


def _identify_endpoint(endpoint: Endpoint, enter: Enter, options: TargetOptions) -> tuple[Url, str]:
    """Return the URL and the name of the known server that listens there; an error if there is none."""
    url = Url(scheme="http", host=endpoint.host, port=endpoint.port)
    has_credentials = bool(credentials.read_authorization(os.environ))
    with open_http(ServerAddress(endpoint=endpoint, has_credentials=has_credentials), enter) as http:
        try:
            return url, detect.identify_name(http, options)
        except detect.NotHttpError:
            url = dataclasses.replace(url, scheme="cassandra")
            with contextlib.suppress(RunFailed):
                return url, detect.identify_name(http, dataclasses.replace(options, url=url))
            raise


def memory_notes(pids: Iterable[int]) -> Iterator[str]:
    """Yield a note for each JVM that a flight recording may push over the memory limit of its cgroup."""
    for pid in pids:
        try:
            left_bytes = cgroup_files.read_headroom(cgroup_files.find_process_cgroup(pid, "memory"))
        except MissingCapability:
            continue
        if left_bytes is not None and left_bytes < _RECORDER_BYTES:
            left, needed = format_bytes(max(left_bytes, 0)), format_bytes(_RECORDER_BYTES)
            yield (
                f"the JVM with pid {pid} has {left} left below the memory limit of its cgroup, and a flight "
                f"recording needs up to {needed}: the kernel may kill the JVM. Raise the limit, or do not attach."
            )


def find_address_nodes(address: ServerAddress, listening: Sequence[Collection[Endpoint]]) -> tuple[int, ...]:
    """Return the number of the JVM that listens at each address; empty if that is unknown for one of them.

    It is unknown behind a proxy, and behind a published port of a container.
    """
    numbers_by_address = [
        [number for number, endpoints in enumerate(listening, 1) if not _resolve(server.endpoint).isdisjoint(endpoints)]
        for server in (address, *address.other_addresses)
    ]
    is_known = all(len(numbers) == 1 for numbers in numbers_by_address)
    return tuple(numbers[0] for numbers in numbers_by_address) if is_known else ()


def reachable_endpoints(pid: int) -> Iterator[Endpoint]:
    """Yield the addresses at which clients may reach a process: for a wildcard all addresses of its namespace."""
    network = Path(f"/proc/{pid}/net")
    hosts = re.findall(r"\|-- ([0-9.]+)\n +/32 host LOCAL", (network / "fib_trie").read_text(encoding="ascii"))
    if (inet6 := system.read_text(network / "if_inet6")) is not None:
        hosts += [str(ipaddress.ip_address(bytes.fromhex(line.split()[0]))) for line in inet6.splitlines()]
    for endpoint in find_endpoints(pid):
        yield endpoint
        # `find_endpoints` returns this for a wildcard, too.
        if endpoint.host == "127.0.0.1":
            yield from (Endpoint(host, endpoint.port) for host in hosts)


def _resolve(endpoint: Endpoint) -> set[Endpoint]:
    """Return the numeric addresses of an endpoint; empty for an unknown host."""
    try:
        addresses = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {Endpoint(str(address[0]), endpoint.port) for *_, address in addresses}


def combine_facts(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return facts about JVMs in addition to the server's own description: what they share, and each of several."""
    return find_common(facts) | ({"jvms": [*facts]} if len(facts) > 1 else {})


def find_common(tables: Sequence[Mapping[str, _Value]]) -> dict[str, _Value]:
    """Return the entries that all tables share; there is at least one table."""
    first, *others = tables
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}


def describe_jmx_jvm(jvm: JmxJvm) -> dict[str, Any]:
    """Return facts about a JVM that is connected over JMX. `pid` is that of its machine."""
    pid, _, machine = jvm.name.partition("@")
    heap = {} if jvm.facts.heap_bytes is None else {"heap_bytes": jvm.facts.heap_bytes}
    # The name is the JVM's text; a pid has at most 7 digits.
    facts = {"pid": int(pid) if re.fullmatch("[0-9]{1,10}", pid) else 0, "machine": f"{machine[:100]}, {jvm.endpoint}"}
    facts["round_trip_ns"] = jvm.round_trip_ns
    return facts | {"java": jvm.version, "collector": jvm.facts.collector} | heap


def unencrypted_jmx_notes(jvms: Sequence[JmxJvm]) -> list[str]:
    """Return a note if credentials are sent to JMX without TLS."""
    if not credentials.read_jmx_credentials(os.environ):
        return []
    plain = [jvm.endpoint for jvm in jvms if not jvm.is_encrypted and not jvm.endpoint.host.startswith(("127.", "::1"))]
    return [f"the JMX credentials are sent unencrypted to {', '.join(map(str, plain))}"] if plain else []


def describe_jvm(jvm: AttachedJvm) -> dict[str, Any]:
    """Return facts about a JVM of this machine."""
    facts = read_facts(jvm)
    heap = {} if facts.heap_bytes is None else {"heap_bytes": facts.heap_bytes}
    return {"pid": jvm.pid, "began": read_start_id(jvm.pid), "java": jvm.version, "collector": facts.collector, **heap}


# --- The real interface that leads to it


def check_interface(cell: Cell, address: ServerAddress, enter: Enter) -> None:
    """Raise SpecError or MissingCapability if the path to the server cannot be shaped as the cell requires."""
    if cell.network is not None:
        interface.require_support(cell.network)
        link = interface_of(cell, address, enter)
        interface.plan_steps(link, cell.network)
        load_s, limit_s = _max_load_s(cell), interface.capped_limit_s(link, _shaping_limit_s(cell))
        if load_s is not None and load_s >= limit_s:
            raise SpecError(
                f"--interface {link.name}: your SSH connection uses it, so it may be shaped for {limit_s:g} s, and the "
                f"load takes {load_s:g} s. Shorten the load, or raise --ssh-limit."
            )


def shape_interface(
    cell: Cell, profile: Profile, address: ServerAddress, enter: Enter
) -> AbstractContextManager[ShapedPath]:
    """Shape the path to the server with the profile during the block."""
    link = interface_of(cell, address, enter)
    limit_s = interface.capped_limit_s(link, _shaping_limit_s(cell))
    return shape_path(link, profile, address.endpoint, time_limit_s=limit_s)


def interface_of(cell: Cell, address: ServerAddress, enter: Enter) -> RealInterface:
    """Return the cell's interface with the traffic to shape: all addresses of the server, and others that it names.

    SpecError if the load is sent from another network namespace.
    """
    link = cell.target.interface
    assert link is not None  # noqa: S101 - a cell with a network and a running server has one
    if is_other_namespace(enter):
        raise SpecError(
            f"--interface {link.name}: {address} is not reachable from here, so the load is sent from the network "
            "namespace of the JVM and uses no interface of this machine. Give a --url that is reachable from here."
        )
    if link.port:
        return link
    remotes = (
        remote for server in (address, *address.other_addresses) for remote in _remote_addresses(server.endpoint)
    )
    return dataclasses.replace(link, to=tuple(dict.fromkeys((*remotes, *link.to))))


def _remote_addresses(endpoint: Endpoint) -> Iterator[RemoteAddress]:
    """Yield all addresses of the endpoint's host: a worker may use any of them."""
    try:
        addresses = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SpecError(f"{endpoint}: unknown host ({error.strerror}). Check its spelling.") from None
    for *_, address in addresses:
        yield RemoteAddress(str(address[0]), None, (PortRange(endpoint.port, endpoint.port),))


def _shaping_limit_s(cell: Cell) -> float:
    """Return the time after which the watchdog restores the interface in any case."""
    load_s = _max_load_s(cell)
    return _MAX_LOAD_S if load_s is None else load_s + _OVERHEAD_S


def _max_load_s(cell: Cell) -> float | None:
    """Return the maximum length of the load; None if it is unknown."""
    if cell.load.track is not None or cell.load.measure_documents is not None:
        return None
    return (cell.load.max_warm_up_ns + cell.load.measure_ns) / 1e9
