"""The server of a run and the path to it: launched for the run on a link of its own, or already running.

Callers get one `RunningServer` in both cases; everything that belongs to it ends with the block.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ingest_bench import probes, targets
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.faults import checks
from ingest_bench.faults.new_connections import NodeNames, serve_names
from ingest_bench.host import node_resources as node_resources_module
from ingest_bench.host import settings as settings_module
from ingest_bench.host.node_resources import NodeResources
from ingest_bench.inputs import records
from ingest_bench.jvm import jmx, process
from ingest_bench.jvm.attach import AttachedJvm, find_reader, launched
from ingest_bench.jvm.java import Java
from ingest_bench.jvm.process import ServerProcess
from ingest_bench.lab.server import reach, remote_observer
from ingest_bench.load.fleet.roster import Fleet
from ingest_bench.model.experiment import Cell, HostSettings
from ingest_bench.model.network import LinkCheck, Profile
from ingest_bench.model.target import Endpoint, LaunchPlan, ServerAddress, TargetOptions, Tls
from ingest_bench.network.act import link as links_module
from ingest_bench.network.act.link import Links
from ingest_bench.network.measure import check, readings
from ingest_bench.network.measure.shaped_path import ShapedPath
from ingest_bench.probes import observer, oom, recording
from ingest_bench.probes.oom import OutOfMemory
from ingest_bench.results.layout import NodeFolder, RunFolder
from ingest_bench.targets import detect
from ingest_bench.targets.base import NodeStart, Target
from ingest_bench.targets.http import Enter, Http, open_http
from ingest_bench.units import quote_name

PrepareLoad = Callable[[ServerAddress, Enter], AbstractContextManager[Callable[[], None]]]
"""Entered before a launched server boots; yields a function to call repeatedly while it boots."""

# A JVM in a pid namespace takes the counters of all JVMs outside (/tmp/hsperfdata_USER/PID) for those of dead ones.
# Before Java 11.0.17 and 17.0.5 it deletes them (JDK-8286030).
_OWN_COUNTERS = "-XX:+PerfDisableSharedMem"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetup:
    """Parameters of opening a server that are not part of the cell."""

    phase: Callable[[str], AbstractContextManager[None]] = lambda _: contextlib.nullcontext()
    """Times a part of the run."""
    netem: str
    java_home: Path | None
    is_profiling: bool = False
    """The JVM records the JDK's profiling events too."""
    observers: Fleet | None = None
    """Observers on the machines of a server's nodes."""
    prepare_load: PrepareLoad = lambda _, __: contextlib.nullcontext(lambda: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that is ready, and the path to it."""

    target: Target
    options: TargetOptions
    """Options of the cell; for a server that was already running, with its name and version as identified."""
    address: ServerAddress
    enter: Enter
    nodes: tuple[Http, ...]
    """A connection to each node; to a server that was already running, only to the first one."""
    address_nodes: tuple[int, ...] = ()
    """Number of the attached node at each address of the load; empty: unknown, or launched."""
    others: tuple[Http, ...] = ()
    """Connections to its other addresses if each counts only its own documents, unlike nodes of a cluster."""
    description: dict[str, Any]
    """The server's description of itself. `runtime`: the Java that reads its recordings, if it has any."""
    watch: observer.Watch
    host: dict[str, str] = field(default_factory=dict)
    """Settings of its machine; empty if that is not this one."""
    links: Links | None = None
    """None: the server has no link of its own, and no link was checked."""
    processes: tuple[ServerProcess, ...] = ()
    """One per node of a launched server."""
    resources: tuple[NodeResources, ...] = ()
    """One per node of a launched server."""
    names: NodeNames | None = None
    """The load resolves each node by name for each new connection; None: by address."""
    real_path: ShapedPath | None = None
    """The shaped real path to a server that was already running."""
    link_checks: tuple[LinkCheck, ...] = ()
    path: str = ""
    """Where local processes send the load from, and over which devices; empty: over the links of the run."""
    notes: tuple[str, ...] = ()
    ended_nodes: Callable[[], tuple[int, ...]] = tuple
    """Returns the indices of the nodes that have ended."""
    remote_link_fields: Callable[[], dict[str, Any]] = dict
    """Returns fields of the record about interfaces that observers shaped."""

    @property
    def http(self) -> Http:
        """Connection to the first node."""
        return self.nodes[0]

    @property
    def java(self) -> Java:
        """Java of a launched server."""
        return records.from_json(Java, self.description["runtime"])

    @property
    def is_launched(self) -> bool:
        """Return True if it was launched for this run, so that all its data are ours."""
        return not self.options.is_already_running

    def count(self, indices: Sequence[str]) -> int | None:
        """Return the number of documents in these indices; None if the server cannot count."""
        return self.target.count((*self.nodes, *self.others), indices)

    def connect(self) -> AbstractContextManager[Http]:
        """Open a separate connection. Call it from the main thread."""
        return open_http(self.address, self.enter)

    def flush(self, indices: Sequence[str]) -> None:
        """Flush the in-memory documents of these indices to files on all nodes of a launched server at once."""
        assert self.target.flush is not None, self.target.name  # noqa: S101 - refused by `steps` and `checks`
        jvms = [launched(node.jvm_pid, self.java) for node in self.processes]
        self.target.flush(self.nodes, jvms, indices)


def open_server(cell: Cell, folder: RunFolder, setup: ServerSetup) -> AbstractContextManager[RunningServer]:
    """Launch or reach the cell's server for the block's time. Each part is a phase of the run."""
    if cell.target.is_already_running:
        return _open_running(cell, setup)
    return _launch(cell, folder, setup)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """Where the nodes of a launched server run, in the order of the nodes."""

    links: Links
    endpoints: tuple[Endpoint, ...]
    tls: Tls | None
    folders: tuple[NodeFolder, ...]
    resources: tuple[NodeResources, ...]

    @property
    def addresses(self) -> tuple[ServerAddress, ...]:
        """Return the address of each node; with TLS, servers compare the Host header with their certificate."""
        name = "" if self.tls is None else self.tls.name
        return tuple(
            ServerAddress(endpoint=endpoint, host_header=name and f"{name}:{endpoint.port}", tls=self.tls)
            for endpoint in self.endpoints
        )


@contextlib.contextmanager
def _launch(cell: Cell, folder: RunFolder, setup: ServerSetup) -> Iterator[RunningServer]:
    target = targets.resolve(cell.target)
    with ExitStack() as stack:
        settings, links, link_checks = _open_links(cell, target, setup, stack)
        java = targets.fetch(target.requirements(cell.target), setup.java_home)
        site = _prepare_site(cell, target, folder, links, setup, stack)
        profile = recording.profile_path(java.home) if setup.is_profiling else None
        plans = []
        for index, node in enumerate(site.folders):
            jvm_options = (_OWN_COUNTERS, *probes.jvm_options(cell.probes, node.jvm, java.version, profile))
            start = NodeStart(cell.target, java, node.home, index, site.endpoints, jvm_options)
            plans.append(target.launch_plan(start))
        names = stack.enter_context(serve_names(links.client, site.endpoints)) if checks.needs_names(cell) else None
        address = _load_address(cell, site, names)
        while_booting = stack.enter_context(setup.prepare_load(address, links.client.command))
        with setup.phase("boot"):
            nodes, processes, description = _boot(cell, target, plans, site, while_booting, stack)
        yield RunningServer(
            target=target,
            options=cell.target,
            address=address,
            enter=links.client.command,
            nodes=nodes,
            description={**description, "runtime": records.to_json(java)},
            watch=functools.partial(observer.watch_launched, tuple(node.jvm_pid for node in processes)),
            host=settings,
            links=links,
            processes=processes,
            resources=site.resources,
            names=names,
            link_checks=link_checks,
            ended_nodes=lambda: tuple(index for index, node in enumerate(processes) if node.popen.poll() is not None),
        )


def _open_links(
    cell: Cell, target: Target, setup: ServerSetup, stack: ExitStack
) -> tuple[dict[str, str], Links, tuple[LinkCheck, ...]]:
    settings = settings_module.read_settings()
    if cell.host != HostSettings():
        with setup.phase("host"):
            settings |= stack.enter_context(settings_module.apply_settings(cell.host))
    with setup.phase("link"):
        accepts_loopback_peers = target.listens(cell.target).accepts_loopback_peers
        links = stack.enter_context(
            links_module.open_links(
                checks.list_link_profiles(cell), netem=setup.netem, in_loopback_range=accepts_loopback_peers
            )
        )
        # Several links share a namespace.
        namespaces = {end.pid: end for link in links.by_name.values() for end in (link.client, link.server)}
        for namespace in namespaces.values():
            settings |= settings_module.apply_in_namespace(cell.host, namespace.run)
    with setup.phase("check"):
        link_checks = tuple(result for link in links.by_name.values() for result in check.check_link(link))
        readings.start_counting(*links.by_name.values())
    return settings, links, link_checks


def _prepare_site(
    cell: Cell, target: Target, folder: RunFolder, links: Links, setup: ServerSetup, stack: ExitStack
) -> _Site:
    listens = target.listens(cell.target)
    folders = folder.nodes(len(links.clients))
    for node in folders:
        node.create_folders()
    needs = checks.list_needs(cell)
    with setup.phase("node resources") if needs else contextlib.nullcontext():
        resources = stack.enter_context(node_resources_module.create_resources(needs, [node.home for node in folders]))
    endpoints = tuple(Endpoint(link.server_address, listens.port) for link in links.clients)
    return _Site(links=links, endpoints=endpoints, tls=listens.tls, folders=folders, resources=tuple(resources))


def _load_address(cell: Cell, site: _Site, names: NodeNames | None) -> ServerAddress:
    """Return the address of the node that the load goes to, or of all nodes in turn."""
    addresses = site.addresses
    if names is not None:
        addresses = tuple(dataclasses.replace(address, tls=site.tls) for address in names.addresses)
    if cell.load.nodes != "all":
        return addresses[cell.load.nodes - 1]
    return dataclasses.replace(addresses[0], other_addresses=addresses[1:])


def _boot(
    cell: Cell,
    target: Target,
    plans: Sequence[LaunchPlan],
    site: _Site,
    while_booting: Callable[[], None],
    stack: ExitStack,
) -> tuple[tuple[Http, ...], tuple[ServerProcess, ...], dict[str, Any]]:
    """Start all nodes; return connections to them, their processes and the description of the first one."""
    ready_timeout_s = target.listens(cell.target).ready_timeout_s
    nodes = tuple(
        stack.enter_context(open_http(address, link.server.command, node.log, node.home))
        for address, link, node in zip(site.addresses, site.links.clients, site.folders, strict=True)
    )

    def launch(index: int, plan: LaunchPlan) -> process.Launch:
        folder = site.folders[index]
        return process.Launch(
            plan=dataclasses.replace(plan, writable=(*plan.writable, folder.jvm)),
            enter=lambda argv: site.links.clients[index].server.command(site.resources[index].wrap(argv)),
            log=folder.log,
            listen=site.endpoints[index],
            is_ready=lambda limit_s: target.is_ready(index, [http.with_deadline(limit_s) for http in nodes]),
            name="server" if len(plans) == 1 else f"node {index + 1}",
            restarts=checks.count_restarts(cell, index + 1),
        )

    deadline = time.monotonic() + ready_timeout_s
    launches = [launch(index, plan) for index, plan in enumerate(plans)]
    processes = stack.enter_context(process.serve(*launches, timeout_s=ready_timeout_s, meanwhile=while_booting))
    descriptions = [_describe(target, cell.target, http.with_deadline(deadline - time.monotonic())) for http in nodes]
    return nodes, processes, descriptions[0]


def _describe(target: Target, options: TargetOptions, http: Http) -> dict[str, Any]:
    """Return a node's description of itself; RunFailed with the end of its log."""
    assert http.log is not None  # noqa: S101 - a launched server has one
    try:
        return detect.shorten_texts(target.describe(http, options))
    except RunFailed as error:
        raise RunFailed(f"{error}. {http.log} ends:\n{process.read_last_lines(http.log)}") from None


@contextlib.contextmanager
def _open_running(cell: Cell, setup: ServerSetup) -> Iterator[RunningServer]:
    try:
        with ExitStack() as stack:
            with setup.phase("reach"):
                server = stack.enter_context(
                    reach_server(
                        cell.target,
                        setup.java_home,
                        is_profiling=setup.is_profiling,
                        observers=setup.observers,
                        network=cell.network,
                    )
                )
            if cell.network is not None and not cell.target.is_shaped_remotely:
                with setup.phase("link"):
                    path = stack.enter_context(reach.shape_interface(cell, cell.network, server.address, server.enter))
                server = dataclasses.replace(server, real_path=path, link_checks=path.checks)
            opened = stack.pop_all()
    except (SpecError, MissingCapability) as error:
        # The plan was checked against this server before the first run, so the server has changed since then.
        raise RunFailed(str(error)) from None
    with opened:
        yield server


@contextlib.contextmanager
def reach_server(
    options: TargetOptions,
    java_home: Path | None = None,
    *,
    is_profiling: bool = False,
    observers: Fleet | None = None,
    network: Profile | None = None,
) -> Iterator[RunningServer]:
    """Connect to the server at `options.url`, or that of the JVMs `options.attach`, or one that is both.

    Without *observers*, a server that they watch can be reached, and not watched. They shape their interface with the
    profile *network* if the options say so.
    SpecError if it cannot be measured, MissingCapability if we may not attach to it, RunFailed if it does not respond.
    """
    jvms = reach.attach_jvms(options, java_home)
    reached = reach.find_origin(options, jvms)
    options, address, enter = reached.options, reached.address, reached.enter
    connect = functools.partial(open_http, address, enter)
    with ExitStack() as stack:
        http = stack.enter_context(connect())
        server = detect.identify(http, options)
        reachable, notes = _check_other_addresses(address, server, enter)
        others = () if server.counts_for_all else tuple(stack.enter_context(open_http(a, enter)) for a in reachable)
        description: dict[str, Any] = server.description | {"url": str(options.url)}
        if address.other_addresses:
            description["urls"] = [str(url) for url in reach.urls_of(options)]
        watched = _WatchedJvms(watch=functools.partial(observer.watch_external, connect, server.target.jvm_stats))
        if jvms:
            watched = _attach(jvms, is_profiling=is_profiling)
        elif options.watchers and observers is not None:
            request: dict[str, Any] = {"is_profiling": is_profiling}
            if options.is_shaped_remotely:
                request |= {"link": options.interface, "profile": network, "endpoint": address.endpoint}
            watched = _join_observers(observers, records.to_json(request))
        elif options.watch_jmx:
            recorded = [stack.enter_context(jmx.connect(node, options.ca_file)) for node in options.watch_jmx]
            watched = _record_jmx(recorded)
            notes += reach.unencrypted_jmx_notes(recorded)
        address_nodes: tuple[int, ...] = ()
        if watched.facts:
            reader = find_reader([int(facts["java"].split(".")[0]) for facts in watched.facts], java_home)
            description |= reach.combine_facts(watched.facts) | {"runtime": records.to_json(reader)}
            address_nodes = reach.find_address_nodes(address, watched.listening) if watched.listening else ()
            notes += [
                f"the JVM with pid {facts['pid']} listens at no address of the load: it was not checked that it "
                "belongs to this cluster"
                for number, facts in enumerate(watched.facts, 1)
                if len(watched.listening) > 1 and number not in address_nodes
            ]
        yield RunningServer(
            target=server.target,
            options=server.options,
            address=address,
            enter=enter,
            nodes=(http,),
            others=others,
            address_nodes=address_nodes,
            description=description,
            watch=watched.watch,
            host=watched.host,
            path=reached.describe_path(),
            notes=(*server.notes, *reach.unencrypted_notes(address), *notes, *reach.memory_notes(options.attach)),
            ended_nodes=watched.ended_nodes,
            remote_link_fields=watched.link_fields,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _WatchedJvms:
    """The JVMs of a server that was already running, one per node."""

    watch: observer.Watch
    facts: tuple[dict[str, Any], ...] = ()
    """Those of `reach.describe_jvm`; empty if only the server's API is known."""
    listening: tuple[tuple[Endpoint, ...], ...] = ()
    """Where each listens; empty if that is unknown."""
    host: dict[str, str] = field(default_factory=dict)
    ended_nodes: Callable[[], tuple[int, ...]] = tuple
    link_fields: Callable[[], dict[str, Any]] = dict


def _attach(jvms: Sequence[AttachedJvm], *, is_profiling: bool) -> _WatchedJvms:
    """Return JVMs of this machine."""
    return _WatchedJvms(
        watch=functools.partial(observer.watch_attached, jvms, is_profiling=is_profiling),
        facts=tuple(map(reach.describe_jvm, jvms)),
        listening=tuple(tuple(reach.reachable_endpoints(jvm.pid)) for jvm in jvms),
        host=settings_module.read_settings(),
        ended_nodes=lambda: tuple(index for index, jvm in enumerate(jvms) if not jvm.is_alive()),
    )


def _join_observers(fleet: Fleet, request: Mapping[str, Any]) -> _WatchedJvms:
    """Return the JVMs that observers on other machines watch; RunFailed if one of these is missing."""
    joined = fleet.gather_observers()
    return _WatchedJvms(
        watch=functools.partial(remote_observer.watch_remote, fleet, request),
        facts=tuple(remote_observer.jvm_facts(watching.watched) for watching in joined),
        listening=tuple(watching.watched.addresses for watching in joined),
        host=reach.find_common([watching.watched.host for watching in joined]),
        ended_nodes=lambda: tuple(index for index, watching in enumerate(joined) if watching.has_ended),
        link_fields=lambda: remote_observer.link_fields(joined),
    )


def _record_jmx(jvms: Sequence[jmx.JmxJvm]) -> _WatchedJvms:
    """Return JVMs that are connected over JMX."""
    return _WatchedJvms(
        watch=functools.partial(observer.watch_jmx, jvms), facts=tuple(map(reach.describe_jmx_jvm, jvms))
    )


def _check_other_addresses(
    address: ServerAddress, server: detect.Identified, enter: Enter
) -> tuple[list[ServerAddress], list[str]]:
    """Return the other addresses that respond, and a note for each that does not; SpecError for another cluster."""
    reachable, notes = [], []
    for other in address.other_addresses:
        try:
            with open_http(other, enter) as http:
                cluster = detect.read_cluster_id(http.with_deadline(reach.CONNECT_LIMIT_S), server.target)
        except RunFailed as error:
            notes.append(f"{other} does not respond: its part of the load goes to the others ({error})")
            continue
        if cluster != server.cluster_id:
            raise SpecError(
                f"--url {other}: it belongs to another cluster ({quote_name(str(cluster))}) than {address} "
                f"({quote_name(str(server.cluster_id))}). Measure one cluster at a time."
            )
        reachable.append(other)
    return reachable, notes


def find_out_of_memory(folder: RunFolder, server: RunningServer, *, is_alive: bool) -> OutOfMemory | None:
    """Return the first OutOfMemoryError of any node; None without one."""
    errors = []
    for node in folder.nodes(server.options.node_count):
        # The files of a launched JVM move to the raw files after the run.
        jvm_folder = node.jvm if server.is_launched else node.raw
        # The server's own log may quote text of a document. It is read only if the exceptions log may lack an
        # exception: it was rotated, or the JVM has ended.
        has_all = is_alive and len(list(jvm_folder.glob("exceptions.log*"))) == 1
        if (error := oom.find_oom(jvm_folder, None if has_all else node.log)) is not None:
            errors.append(dataclasses.replace(error, at_ns=int(node.clock.to_ours(np.array(error.at_ns)))))
    return min(errors, key=lambda error: error.at_ns, default=None)


def describe_failure(folder: RunFolder, server: RunningServer, error: RunFailed) -> str:
    """Return the failure, after the end of the log of each node that has ended."""
    nodes = folder.nodes(server.options.node_count)
    reason = str(error)
    for index in server.ended_nodes():
        name = "the server" if len(nodes) == 1 else f"node {index + 1}"
        log = f"; its log ends:\n{process.read_last_lines(nodes[index].log)}" if server.is_launched else ""
        reason = f"{name} ended during the run{log}\n{reason}"
    return reason
