"""The address of a server that is already running, by its URLs, its JVM's pid, and the interface that leads to it."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ingest_bench import system
from ingest_bench.errors import IngestBenchError, MissingCapability, RunFailed, SpecError
from ingest_bench.inputs import credentials
from ingest_bench.jvm.attach import AttachedJvm, attach, find_endpoints, read_facts, read_start_id
from ingest_bench.model.experiment import Cell, Plan
from ingest_bench.model.network import PortRange, Profile, RealInterface, RemoteAddress
from ingest_bench.model.target import Endpoint, ServerAddress, TargetOptions, Tls, Url
from ingest_bench.network.act import interface
from ingest_bench.network.measure.shaped_path import ShapedPath, shape_path
from ingest_bench.targets import detect
from ingest_bench.targets.http import Enter, open_http

CONNECT_LIMIT_S = 10
# For a load of unknown length; and the time that requests, waits and counting take in addition to a known one.
_MAX_LOAD_S, _OVERHEAD_S = 24 * 3600.0, 1800.0


# --- URLs


def urls_of(options: TargetOptions) -> tuple[Url, ...]:
    """Return all URLs of the server."""
    assert options.url is not None  # noqa: S101 - callers have a URL
    return options.url, *options.more_urls


def resolve_address(options: TargetOptions, enter: Enter) -> ServerAddress:
    """Return the address of the server by its URLs and certificates; SpecError if these contradict each other."""
    urls = urls_of(options)
    first = urls[0]
    if len({url.scheme for url in urls}) > 1:
        raise SpecError(f"--url: {', '.join(map(str, urls))}: the addresses of a cluster must all be https://, or none")
    cert, key = credentials.read_client_certificate(os.environ)
    cert, key = options.client_cert or cert, options.client_key or key
    for name, path in {"target.ca_file": options.ca_file, "target.client_cert": options.client_cert}.items():
        if path and first.scheme != "https":
            raise SpecError(f"{name}: {first} does not use TLS. Give an https:// URL.")
    ca_pem = "" if options.ca_file is None else credentials.read_ca_certificates(Path(options.ca_file))
    if cert and first.scheme == "https":
        credentials.load_client_certificate(ssl.create_default_context(), cert, key)
    has_credentials = bool(credentials.read_authorization(os.environ))

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
    is_elsewhere = is_other_namespace(enter)
    reachable, endpoint = (first, _literal_endpoint(first)) if is_elsewhere else _first_reachable(urls)
    others = [
        address(url, _literal_endpoint(url) if is_elsewhere else Endpoint(url.host, url.port))
        for url in urls
        if url is not reachable
    ]
    return dataclasses.replace(address(reachable, endpoint), other_addresses=tuple(others))


def _first_reachable(urls: Sequence[Url]) -> tuple[Url, Endpoint]:
    """Return the first URL that accepts a connection, and its address; RunFailed if none does."""
    failures = []
    for url in urls:
        try:
            return url, _reachable_endpoint(url)
        except RunFailed as error:
            failures.append(str(error))
    raise RunFailed("\n".join(failures))


def _reachable_endpoint(url: Url) -> Endpoint:
    """Return the first address of the host that accepts a connection: the complete run uses it."""
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
            f"--url {url}: the JVM is in another network namespace, where this name may be another host. Give the "
            "address as a number."
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
        if options.attach is not None and options.attached_process_start is None:
            options = dataclasses.replace(options, attached_process_start=_process_start(options.attach))
        runs.append(dataclasses.replace(run, cell=dataclasses.replace(run.cell, target=options)))
    return dataclasses.replace(plan, runs=tuple(runs))


def attach_jvm(options: TargetOptions, java_home: Path | None) -> AttachedJvm:
    """Return the JVM of `options.attach`; SpecError if it is not a JVM, or not the process of the plan."""
    assert options.attach is not None  # noqa: S101 - callers have a pid
    if options.attached_process_start not in (None, _process_start(options.attach)):
        raise SpecError(
            f"--attach {options.attach}: this pid now belongs to another process than when the plan was made. "
            "Its runs cannot be continued: start a new experiment with the pid of the server."
        )
    return attach(options.attach, java_home)


def _process_start(pid: int) -> str:
    start = read_start_id(pid)
    if start is None:
        raise SpecError(f"--attach {pid}: there is no such process. `jcmd -l` lists the JVMs of this user.")
    return start


def enter_namespace_of(jvm: AttachedJvm) -> Enter:
    """Return how to run a command in the JVM's network namespace; MissingCapability without the privilege."""
    namespace = Path(f"/proc/{jvm.pid}/ns/net")
    if namespace.readlink() == Path("/proc/self/ns/net").readlink():
        return tuple
    if not system.is_root():
        raise MissingCapability(
            f"attach: pid {jvm.pid} is in another network namespace (a container). Only root can send from there: run "
            "as root, or run ingest-bench inside it."
        )
    return lambda argv: ("nsenter", f"--net={namespace}", "--", *argv)


def is_other_namespace(enter: Enter) -> bool:
    """Return True if *enter* leads to another network namespace than ours."""
    return enter is not tuple


def find_url(jvm: AttachedJvm, enter: Enter, options: TargetOptions) -> Url:
    """Return the only URL at which the JVM is a known server; SpecError if there is none or more than one."""
    has_credentials = bool(credentials.read_authorization(os.environ))
    attempts: list[str] = []
    urls: list[Url] = []
    for endpoint in find_endpoints(jvm.pid):
        url = Url(scheme="http", host=endpoint.host, port=endpoint.port)
        try:
            with open_http(ServerAddress(endpoint=endpoint, has_credentials=has_credentials), enter) as http:
                name = detect.identify_name(http, options)
        except IngestBenchError as error:
            attempts.append(str(error).splitlines()[0])
        else:
            urls.append(url)
            attempts.append(f"{url}: {name}")
    if len(urls) == 1:
        return urls[0]
    results = "".join(f"\n  {line}" for line in attempts) or " it listens on no TCP port"
    raise SpecError(f"--attach {jvm.pid}: the URL is ambiguous or unknown. Give --url too. Found:{results}")


def describe_jvm(jvm: AttachedJvm) -> dict[str, Any]:
    """Return facts about the JVM in addition to the server's own description."""
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

    SpecError if the server is in another network namespace.
    """
    link = cell.target.interface
    assert link is not None  # noqa: S101 - a cell with a network and a running server has one
    if is_other_namespace(enter):
        raise SpecError(
            f"--interface {link.name}: the server is in another network namespace of this machine, so the load uses no "
            "interface. Remove --interface."
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
