"""The server of a run and the way to it: one that we start for the run, on a link of its own, or one that is there.

Whoever measures sees one thing, a `Serving`; what belongs to it ends with the block.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingest_bench import attaching, credentials, faults, network, records, targets
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.jvm import process
from ingest_bench.jvm.attach import Attached, reader
from ingest_bench.jvm.java import Java
from ingest_bench.model.experiment import Cell
from ingest_bench.model.network import Promise
from ingest_bench.model.target import Endpoint, Place, TargetOptions, Tls, Url
from ingest_bench.network import Link
from ingest_bench.store import RunFolder
from ingest_bench.targets import Target, running
from ingest_bench.targets.http import Http, ask

Enter = Callable[[Sequence[str]], tuple[str, ...]]
Stage = Callable[[str], contextlib.AbstractContextManager[None]]

# Any port will do: a server of ours has a namespace of its own.
_PORT = 9200
_BOOT_LIMIT_S = 120
_CONNECT_LIMIT_S = 10


def _runs() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A server that is ready, and how to get there."""

    target: Target
    asked: TargetOptions
    """What it is: of a server that was found, its name and the version that it is spoken with."""
    place: Place
    enter: Enter
    """Leads a command to the client's side."""
    http: Http
    told: dict[str, Any]
    """What it says about itself. `runtime`: the Java that reads its recordings, where it has any."""
    link: Link | None = None
    """None: there is no link of ours, and nothing is promised."""
    jvm_pid: int | None = None
    """None: only what it answers can be known of it."""
    jvm: Attached | None = None
    """The JVM of a server that ran before, when all probes can watch it."""
    promises: tuple[Promise, ...] = ()
    notes: tuple[str, ...] = ()
    has_ended: Callable[[], bool] = _runs

    @property
    def is_ours(self) -> bool:
        """Whether it was started for this run: nothing in it is anybody's."""
        return not self.asked.runs_already

    def asking(self) -> contextlib.AbstractContextManager[Http]:
        """Questions over a connection of their own. Call it from the main thread."""
        return connected(self.place, self.enter)


def opened(
    cell: Cell,
    folder: RunFolder,
    stage: Stage,
    jvm_options: Callable[[Java], tuple[str, ...]],
    *,
    netem: str,
    java_home: Path | None,
) -> contextlib.AbstractContextManager[Serving]:
    """The cell's server for the block's time, started or found. Each part is a stage of the run."""
    if cell.target.runs_already:
        return _found(cell.target, stage, java_home)
    return _started(cell, folder, stage, jvm_options, netem=netem, java_home=java_home)


@contextlib.contextmanager
def _started(
    cell: Cell,
    folder: RunFolder,
    stage: Stage,
    jvm_options: Callable[[Java], tuple[str, ...]],
    *,
    netem: str,
    java_home: Path | None,
) -> Iterator[Serving]:
    target = targets.named(cell.target.name)
    assert cell.network is not None  # noqa: S101 - spec: only a server that runs already has a network of its own
    with contextlib.ExitStack() as stack:
        with stage("link"):
            link = stack.enter_context(network.link(cell.network, netem=netem, later=faults.states(cell)))
        with stage("check"):
            promises = network.check(link)
        place = Place(endpoint=Endpoint(link.server_address, _PORT))
        jdk = targets.fetch(target.requirements(cell.target), java_home)
        launch = target.launch_plan(cell.target, jdk, folder.home, place.endpoint, jvm_options(jdk))
        launch = dataclasses.replace(launch, writable=(*launch.writable, folder.raw))
        with stage("boot"):
            http = stack.enter_context(connected(place, link.server.command))
            deadline = time.monotonic() + _BOOT_LIMIT_S
            server = stack.enter_context(
                process.serve(
                    launch,
                    enter=link.server.command,
                    log=folder.log,
                    listen=place.endpoint,
                    ready=lambda left_s: target.is_ready(http.within(left_s)),
                    timeout_s=_BOOT_LIMIT_S,
                )
            )
            try:
                told = target.describe(http.within(deadline - time.monotonic()), cell.target, folder.log)
            except RunFailed as error:
                raise RunFailed(f"{error}. {folder.log} ends:\n{process.last_lines(folder.log)}") from None
        yield Serving(
            target=target,
            asked=cell.target,
            place=place,
            enter=link.client.command,
            http=http,
            told={**told, "runtime": records.to_json(jdk)},
            link=link,
            jvm_pid=server.jvm_pid,
            promises=promises,
            has_ended=lambda: server.popen.poll() is not None,
        )


@contextlib.contextmanager
def _found(options: TargetOptions, stage: Stage, java_home: Path | None) -> Iterator[Serving]:
    try:
        with stage("reach"), contextlib.ExitStack() as stack:
            serving = stack.enter_context(reached(options, java_home))
            kept = stack.pop_all()
    except (SpecError, MissingCapability) as error:
        # It was all right before the first run began: it is the server that has changed.
        raise RunFailed(str(error)) from None
    with kept:
        yield serving


@contextlib.contextmanager
def reached(options: TargetOptions, java_home: Path | None = None) -> Iterator[Serving]:
    """The server at `options.url`, or that of the JVM `options.attach`, or both in one.

    SpecError when it is not one to be measured, MissingCapability when we may not attach to it, RunFailed when nobody
    answers.
    """
    jvm = None if options.attach is None else attaching.jvm_of(options, java_home)
    enter = tuple if jvm is None else attaching.way_to(jvm)
    if jvm is not None and options.url is None:
        options = dataclasses.replace(options, url=attaching.url_of(jvm, lambda at: connected(_plain(at), enter)))
    place = _place(options, enter)
    with connected(place, enter) as http:
        it = running.found(http, targets.TARGETS)
        target = running.spoken(http, it, targets.TARGETS)
        asked = dataclasses.replace(options, name=it.name, version=it.version)
        told = running.described(http, it) | running.replaced(target, asked) | {"url": str(options.url)}
        if jvm is not None:
            told |= attaching.described(jvm) | {"runtime": records.to_json(reader(jvm, java_home))}
        yield Serving(
            target=target,
            asked=asked,
            place=place,
            enter=enter,
            http=http,
            told=told,
            jvm=jvm,
            notes=(*it.notes, *_unencrypted(place)),
            has_ended=_runs if jvm is None else lambda: not jvm.is_alive(),
        )


def connected(place: Place, enter: Enter = tuple) -> contextlib.AbstractContextManager[Http]:
    """Questions to the server there, asked where `enter` leads."""
    headers = credentials.headers(os.environ) if place.credentials else {}
    return ask(enter, place.endpoint, host_header=place.host_header, tls=place.tls, headers=headers)


def _plain(endpoint: Endpoint) -> Place:
    return Place(endpoint=endpoint, credentials=bool(credentials.headers(os.environ)))


def _place(options: TargetOptions, enter: Enter) -> Place:
    url = options.url
    assert url is not None  # noqa: S101 - whoever asks has a URL
    if options.ca_file is not None and url.scheme != "https":
        raise SpecError(f"target.ca_file: {url} has no certificate to verify; is it https://?")
    tls = None
    if url.scheme == "https":
        tls = Tls(name=url.host, ca_pem="" if options.ca_file is None else _certificates(Path(options.ca_file)))
    return Place(
        endpoint=attaching.literal(url) if attaching.is_elsewhere(enter) else _endpoint(url),
        host_header=url.authority,
        tls=tls,
        credentials=bool(credentials.headers(os.environ)),
    )


def _certificates(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
        ssl.create_default_context(cadata=text)
    except OSError as error:
        # ssl.SSLError is one too.
        raise SpecError(f"--ca-file {path}: no certificates can be read from it ({error.strerror or error})") from None
    except ValueError:
        raise SpecError(f"--ca-file {path}: it holds no certificate; a PEM file is needed") from None
    return text


def _endpoint(url: Url) -> Endpoint:
    """The first address of the host that takes a connection: everything of a run goes there."""
    try:
        known = socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise RunFailed(f"{url}: there is no host of this name ({error.strerror}). Is it written right?") from None
    said = ""
    for *_, address in dict.fromkeys(known):
        try:
            socket.create_connection((str(address[0]), url.port), timeout=_CONNECT_LIMIT_S).close()
        except OSError as error:
            said = error.strerror or str(error)
            continue
        return Endpoint(str(address[0]), url.port)
    raise RunFailed(f"{url}: nobody answers there ({said}). Does it run, and is the port open to this machine?")


def _unencrypted(place: Place) -> tuple[str, ...]:
    if place.credentials and place.tls is None and not place.endpoint.host.startswith(("127.", "::1")):
        return ("the credentials go over the network as they are: the URL is http://",)
    return ()
