"""The server of a run and the way to it: one that we start for the run, on a link of its own, or one that is there.

Whoever measures sees one thing, a `RunningServer`; what belongs to it ends with the block.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ingest_bench import targets
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.faults import checks
from ingest_bench.faults.clients import names as clients_names
from ingest_bench.faults.clients.names import Names
from ingest_bench.host import node_resources as host_shares
from ingest_bench.host import settings as settings_module
from ingest_bench.host.node_resources import NodeResources
from ingest_bench.inputs import records
from ingest_bench.jvm import process
from ingest_bench.jvm.attach import reader
from ingest_bench.jvm.java import Java
from ingest_bench.jvm.process import ServerProcess
from ingest_bench.lab.server import addresses, attaching, real_path
from ingest_bench.model.experiment import Cell
from ingest_bench.model.host_settings import HostSettings
from ingest_bench.model.network import Promise
from ingest_bench.model.target import Endpoint, Place, TargetOptions
from ingest_bench.network.act import links as links_module
from ingest_bench.network.act.links import Links
from ingest_bench.network.measure import check, readings
from ingest_bench.network.measure.one_end import OneEnd
from ingest_bench.probes import vantage as observers
from ingest_bench.results.run_folder import RunFolder
from ingest_bench.targets import Target, running
from ingest_bench.targets.http import Http
from ingest_bench.units import spelled

Enter = Callable[[Sequence[str]], tuple[str, ...]]
Stage = Callable[[str], contextlib.AbstractContextManager[None]]
Beside = Callable[[Place, Enter], contextlib.AbstractContextManager[Callable[[], None]]]
"""What lasts from the boot of a server to its end: it gives what is to be called while the server boots."""


# A JVM in a process namespace takes the counters of all JVMs outside (/tmp/hsperfdata_USER/PID) for those of dead ones.
# Before Java 11.0.17 and 17.0.5 it deletes them (JDK-8286030).
_OWN_COUNTERS = "-XX:+PerfDisableSharedMem"


def _none() -> tuple[int, ...]:
    return ()


def _nothing(place: Place, enter: Enter) -> contextlib.AbstractContextManager[Callable[[], None]]:
    del place, enter
    return contextlib.nullcontext(lambda: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that is ready, and how to get there."""

    target: Target
    asked: TargetOptions
    """What it is: of a server that was found, its name and the version that it is spoken with."""
    place: Place
    enter: Enter
    """Leads a command to the client's side."""
    nodes: tuple[Http, ...]
    """How each node is asked; of a server that ran before, the first one alone."""
    others: tuple[Http, ...] = ()
    """Clients of its other addresses, where each counts its own documents: those of a cluster all count the same."""
    told: dict[str, Any]
    """What it says about itself. `runtime`: the Java that reads its recordings, where it has any."""
    vantage: observers.Vantage
    """From where its JVMs are watched."""
    host: dict[str, str] = field(default_factory=dict)
    """What its machine is set to; empty where that is not this one."""
    links: Links | None = None
    """None: there is no link of ours, and nothing is promised."""
    processes: tuple[ServerProcess, ...] = ()
    """Of each node of a server of ours."""
    shares: tuple[NodeResources, ...] = ()
    """The same: what it has of the machine for itself."""
    names: Names | None = None
    """Where the load looks up each node for each new connection; None: it knows their addresses."""
    path: OneEnd | None = None
    """The real path to a server that ran before, where it is shaped."""
    promises: tuple[Promise, ...] = ()
    notes: tuple[str, ...] = ()
    ended: Callable[[], tuple[int, ...]] = _none
    """The places of the nodes that have ended."""

    @property
    def http(self) -> Http:
        """How the first node is asked."""
        return self.nodes[0]

    @property
    def jvm_pids(self) -> tuple[int, ...]:
        """The JVM of each node of a server of ours, as it runs now."""
        return tuple(one.jvm_pid for one in self.processes)

    @property
    def java(self) -> Java:
        """The Java that a server of ours runs on."""
        return records.from_json(Java, self.told["runtime"])

    @property
    def is_ours(self) -> bool:
        """Whether it was started for this run: nothing in it is anybody's."""
        return not self.asked.runs_already

    def count(self, indices: Sequence[str]) -> int | None:
        """Return the number of documents in these indices; None: the server cannot count."""
        return self.target.count((*self.nodes, *self.others), indices)

    def asking(self) -> contextlib.AbstractContextManager[Http]:
        """Questions over a connection of their own. Call it from the main thread."""
        return addresses.connected(self.place, self.enter)


def opened(
    cell: Cell,
    folder: RunFolder,
    stage: Stage,
    jvm_options: Callable[[Java, Path], tuple[str, ...]],
    *,
    netem: str,
    java_home: Path | None,
    profiles: bool = False,
    beside: Beside = _nothing,
) -> contextlib.AbstractContextManager[RunningServer]:
    """The cell's server for the block's time, started or found. Each part is a stage of the run.

    With `profiles` a JVM that is attached to records for profiling, too; one of ours by its `jvm_options`. `beside` is
    entered before one of ours boots, with its place and the way to the client's side.
    """
    if cell.target.runs_already:
        return _found(cell, stage, java_home, profiles=profiles)
    return _started(cell, folder, stage, jvm_options, netem=netem, java_home=java_home, beside=beside)


@contextlib.contextmanager
def _started(
    cell: Cell,
    folder: RunFolder,
    stage: Stage,
    jvm_options: Callable[[Java, Path], tuple[str, ...]],
    *,
    netem: str,
    java_home: Path | None,
    beside: Beside,
) -> Iterator[RunningServer]:
    target = targets.of(cell.target)
    listens = target.listens(cell.target)
    with contextlib.ExitStack() as stack:
        settings = settings_module.found()
        if cell.host != HostSettings():
            with stage("host"):
                settings |= stack.enter_context(settings_module.applied(cell.host))
        with stage("link"):
            states = checks.states(cell)
            links = stack.enter_context(links_module.links(states, netem=netem, seen_as_local=listens.seen_as_local))
            # Several links share a namespace.
            places = {place.pid: place for each in links.by_name.values() for place in (each.client, each.server)}
            for place in places.values():
                settings |= settings_module.set_in_namespace(cell.host, place.run)
        with stage("check"):
            promises = tuple(promise for link in links.by_name.values() for promise in check.check(link))
            readings.start(*links.by_name.values())
        jdk = targets.fetch(target.requirements(cell.target), java_home)
        endpoints = tuple(Endpoint(link.server_address, listens.port) for link in links.clients)
        folders = folder.nodes(len(endpoints))
        for node in folders:
            node.make()
        needs = checks.needs(cell)
        with stage("shares") if needs else contextlib.nullcontext():
            shares = stack.enter_context(host_shares.shares(needs, [node.home for node in folders]))
        plans = [
            target.launch_plan(
                cell.target, jdk, node.home, place, endpoints, (_OWN_COUNTERS, *jvm_options(jdk, node.jvm))
            )
            for place, node in enumerate(folders)
        ]
        names = None
        if checks.needs_names(cell):
            names = stack.enter_context(clients_names.names(links.client, endpoints))
        server = _to([Place(endpoint=one) for one in endpoints] if names is None else names.places, cell.load.nodes)
        meanwhile = stack.enter_context(beside(server, links.client.command))
        with stage("boot"):
            nodes = tuple(
                stack.enter_context(
                    addresses.connected(Place(endpoint=endpoint), link.server.command, node.log, node.home)
                )
                for endpoint, link, node in zip(endpoints, links.clients, folders, strict=True)
            )
            launches = [
                process.Launch(
                    plan=dataclasses.replace(plan, writable=(*plan.writable, folders[place].jvm)),
                    enter=_within(shares[place], links.clients[place].server.command),
                    log=folders[place].log,
                    listen=endpoints[place],
                    ready=functools.partial(_is_ready, target, place, nodes),
                    name="server" if len(plans) == 1 else f"node {place + 1}",
                    restarts=checks.restarts(cell, place + 1),
                )
                for place, plan in enumerate(plans)
            ]
            deadline = time.monotonic() + listens.within_s
            started = stack.enter_context(process.serve(*launches, timeout_s=listens.within_s, meanwhile=meanwhile))
            told = [_told(target, cell.target, http.within(deadline - time.monotonic())) for http in nodes]
        yield RunningServer(
            target=target,
            asked=cell.target,
            place=server,
            enter=links.client.command,
            nodes=nodes,
            told={**told[0], "runtime": records.to_json(jdk)},
            vantage=observers.Started(tuple(one.jvm_pid for one in started)),
            host=settings,
            links=links,
            processes=started,
            shares=shares,
            names=names,
            promises=promises,
            ended=lambda: tuple(place for place, node in enumerate(started) if node.popen.poll() is not None),
        )


def _within(share: NodeResources, enter: Enter) -> Enter:
    """The way into a place, and there to what a node has for itself."""
    return lambda argv: enter(share.command(argv))


def _to(places: Sequence[Place], nodes: int | Literal["all"]) -> Place:
    """Where a load goes: to all nodes in turn, or to that one."""
    first, *others = places if nodes == "all" else (places[nodes - 1],)
    return dataclasses.replace(first, others=tuple(others))


def _is_ready(target: Target, place: int, nodes: Sequence[Http], left_s: float) -> bool:
    return target.is_ready(place, [http.within(left_s) for http in nodes])


def _told(target: Target, asked: TargetOptions, http: Http) -> dict[str, Any]:
    """What a node says about itself; RunFailed with the end of its log."""
    assert http.log is not None  # noqa: S101 - a server of ours writes one
    try:
        return running.bounded(target.describe(http, asked))
    except RunFailed as error:
        raise RunFailed(f"{error}. {http.log} ends:\n{process.last_lines(http.log)}") from None


@contextlib.contextmanager
def _found(cell: Cell, stage: Stage, java_home: Path | None, *, profiles: bool) -> Iterator[RunningServer]:
    try:
        with contextlib.ExitStack() as stack:
            with stage("reach"):
                server = stack.enter_context(reached(cell.target, java_home, profiles=profiles))
            if cell.network is not None:
                with stage("link"):
                    path = stack.enter_context(real_path.shaped(cell, cell.network, server.place, server.enter))
                server = dataclasses.replace(server, path=path, promises=path.promises)
            kept = stack.pop_all()
    except (SpecError, MissingCapability) as error:
        # The plan was checked against this server before the first run, so the server has changed since then.
        raise RunFailed(str(error)) from None
    with kept:
        yield server


@contextlib.contextmanager
def reached(
    options: TargetOptions, java_home: Path | None = None, *, profiles: bool = False
) -> Iterator[RunningServer]:
    """The server at `options.url`, or that of the JVM `options.attach`, or both in one.

    SpecError when it is not one to be measured, MissingCapability when we may not attach to it, RunFailed when nobody
    answers.
    """
    jvm = None if options.attach is None else attaching.jvm_of(options, java_home)
    enter = tuple if jvm is None else attaching.way_to(jvm)
    if jvm is not None and options.url is None:
        options = dataclasses.replace(
            options, url=attaching.url_of(jvm, lambda at: addresses.connected(addresses.plain(at), enter), options)
        )
    place = addresses.place_of(options, enter)
    connected = functools.partial(addresses.connected, place, enter)
    with contextlib.ExitStack() as stack:
        http = stack.enter_context(connected())
        it = running.identified(http, options, targets.TARGETS)
        reachable, notes = _others(place, it, enter)
        others = () if it.counts_for_all else (addresses.connected(other, enter) for other in reachable)
        urls = {"url": str(options.url)} | (
            {"urls": [str(url) for url in addresses.urls_of(options)]} if place.others else {}
        )
        told = it.told | urls
        if jvm is not None:
            told |= attaching.described(jvm) | {"runtime": records.to_json(reader(jvm, java_home))}
        yield RunningServer(
            target=it.target,
            asked=it.asked,
            place=place,
            enter=enter,
            nodes=(http,),
            others=tuple(stack.enter_context(other) for other in others),
            told=told,
            vantage=(
                observers.FromOutside(connected, it.target.jvm_stats)
                if jvm is None
                else observers.AttachedTo(jvm, profiles)
            ),
            host={} if jvm is None else settings_module.found(),
            notes=(*it.notes, *addresses.unencrypted(place), *notes),
            ended=_none if jvm is None else lambda: () if jvm.is_alive() else (0,),
        )


def _others(place: Place, server: running.Identified, enter: Enter) -> tuple[list[Place], list[str]]:
    """Return the other addresses that answer, and a note for each other one; SpecError for one of another cluster."""
    reachable, notes = [], []
    for other in place.others:
        try:
            with addresses.connected(other, enter) as http:
                cluster = running.cluster(http.within(addresses.CONNECT_LIMIT_S), server.target)
        except RunFailed as error:
            notes.append(f"{other} does not answer: its share goes to the others ({error})")
            continue
        if cluster != server.cluster:
            raise SpecError(
                f"--url {other}: it is of another cluster ({spelled(str(cluster))}) than {place} "
                f"({spelled(str(server.cluster))}); give one at a time"
            )
        reachable.append(other)
    return reachable, notes
