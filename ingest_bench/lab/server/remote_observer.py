"""Observers on the machines of a server's nodes: `ingest-bench worker --watch PID`, and the run that they join.

`python -m ingest_bench.lab.server.remote_observer`: child of such a worker, which watches one run. It dies with the
worker, and the watchdog then removes everything from the JVM.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingest_bench import probes, system
from ingest_bench.errors import IngestBenchError, MissingCapability, RunFailed, describe_error_for_remote
from ingest_bench.host import settings
from ingest_bench.inputs import files, records
from ingest_bench.jvm.attach import AttachedJvm, attach, read_facts, read_start_id
from ingest_bench.lab.server import reach
from ingest_bench.load.fleet.roster import Fleet, FleetObserver
from ingest_bench.load.fleet.transfer import Observed, Watched, read_realtime_lead_ns
from ingest_bench.model.network import Profile, RealInterface
from ingest_bench.model.results import NodeObserver
from ingest_bench.model.target import Endpoint
from ingest_bench.network.act import interface
from ingest_bench.network.measure.shaped_path import ShapedPath, shape_path
from ingest_bench.probes import observer, recording
from ingest_bench.probes.context import Probe
from ingest_bench.results import layout

# --- On the server's machine


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """A run to watch."""

    run: int
    """Its number, part of each state."""
    raw: Path
    probes: tuple[str, ...]
    limit_s: int
    is_profiling: bool
    link: RealInterface | None = None
    """The interface to shape meanwhile; None: it is not shaped."""
    profile: Profile | None = None
    endpoint: Endpoint | None = None
    """The server's address on it."""


def describe_jvm(pid: int, may_shape: str | None = None) -> Watched:
    """Attach to a JVM of this machine and return what a run must know of it; the errors of `attach`.

    *may_shape* is the interface that the run may shape: SpecError if there is none of that name, MissingCapability if
    we may not.
    """
    if may_shape is not None:
        interface.interface_index(may_shape)
        interface.require_support(Profile(name="", description=""))
    jvm = attach(pid)
    facts = read_facts(jvm)
    unavailable = {}
    for name in probes.PROBES:
        try:
            probes.require_probes([name])
        except MissingCapability as error:
            unavailable[name] = " ".join(str(error).split())
    return Watched(
        pid=pid,
        began=jvm.start_id,
        java=jvm.version,
        collector=facts.collector,
        heap_bytes=facts.heap_bytes,
        addresses=tuple(reach.reachable_endpoints(pid)),
        host=settings.read_settings(),
        unavailable=unavailable,
        may_shape=may_shape,
    )


def build_argv(watched: Watched) -> tuple[str, ...]:
    """Return the command of the child that watches a run, as `join.JoinOptions.observer_argv`."""
    return system.build_module_argv(__name__, str(watched.pid), watched.began, watched.may_shape or "")


def main() -> None:
    """Watch a JVM, and shape an interface: arguments are its pid, when it began, and the interface that may be shaped.

    A request is read from standard input, then a line to stop.
    """
    pid, began, may_shape = sys.argv[1:]
    request = records.from_json(_Request, json.loads(sys.stdin.readline()))
    has_ended = read_start_id(int(pid)) != began
    try:
        if has_ended:
            raise RunFailed(f"the JVM with pid {pid} has ended since the observer joined. Start it for the new pid.")
        jvm = attach(int(pid))
        with _shape(request, may_shape) as path:
            with observer.watch_attached(
                [jvm],
                probes.select_probes(request.probes),
                [request.raw],
                request.limit_s,
                is_profiling=request.is_profiling,
            ):
                _report(Observed(run=request.run, phase="watching", realtime_lead_ns=read_realtime_lead_ns()))
                # Empty if the worker wants no more of it.
                sys.stdin.readline()
            end = _describe_end(jvm, request, path)
        _report(end)
    except (IngestBenchError, OSError) as error:
        error_text = describe_error_for_remote(error)
        _report(Observed(run=request.run, phase="failed", has_ended=has_ended, error=error_text))


def _shape(request: _Request, may_shape: str) -> AbstractContextManager[ShapedPath | None]:
    """Shape the interface of the request during the block; RunFailed without the consent of this machine."""
    link = request.link
    if link is None or request.profile is None or request.endpoint is None:
        return nullcontext()
    if link.name != may_shape or not link.port or link.interface_mtu or link.shared_settings:
        raise RunFailed(f"{link.name}: may not be shaped like this on this machine; --may-shape allows {may_shape!a}")
    limit_s = interface.capped_limit_s(link, request.limit_s)
    return shape_path(link, request.profile, request.endpoint, time_limit_s=limit_s)


def _describe_end(jvm: AttachedJvm, request: _Request, path: ShapedPath | None) -> Observed:
    shaped: dict[str, Any] = {}
    if path is not None:
        shaped = {"link": path.columns(), "link_checks": (*path.checks, *path.check_load())}
    return Observed(
        **shaped,
        run=request.run,
        phase="stopped",
        realtime_lead_ns=read_realtime_lead_ns(),
        files={file.name: file.stat().st_size for file in sorted(request.raw.iterdir()) if file.is_file()},
        has_ended=not jvm.is_alive(),
    )


def _report(state: Observed) -> None:
    sys.stdout.write(json.dumps(records.to_json(state)) + "\n")
    sys.stdout.flush()


# --- On the machine of `run`


def jvm_facts(watched: Watched) -> dict[str, Any]:
    """Return what `reach.describe_jvm` returns for a JVM of this machine."""
    heap = {} if watched.heap_bytes is None else {"heap_bytes": watched.heap_bytes}
    return {
        "pid": watched.pid,
        "began": watched.began,
        "java": watched.java,
        "collector": watched.collector,
        **heap,
    }


@contextmanager
def watch_remote(
    fleet: Fleet, request: Mapping[str, Any], selected: Mapping[str, Probe], raws: Sequence[Path], limit_s: int
) -> Iterator[None]:
    """Let the observers of a fleet watch, one per node. Their files are those of `observer.watch_attached`.

    *request* has the other fields of a request, as JSON.
    RunFailed if an observer fails or is lost, or if its JVM ends. InvalidRun if a clock was set meanwhile.
    """
    try:
        fleet.watch({**request, "probes": list(selected), "limit_s": limit_s})
        try:
            yield
        except RunFailed:
            # An OutOfMemoryError of the server is a result, if the observers can still show it.
            with suppress(IngestBenchError):
                _collect(fleet, raws)
            raise
        _collect(fleet, raws)
        for watching in fleet.observers:
            if watching.has_ended:
                raise RunFailed(f"the JVM with pid {watching.watched.pid} ended during the run ({watching.machine})")
    finally:
        fleet.release_observers()


def link_fields(observers: Sequence[FleetObserver]) -> dict[str, Any]:
    """Return the fields of a run's record about the interfaces that the observers shaped; empty without any."""
    states = [watching.state for watching in observers if watching.state is not None and watching.state.link]
    if not states:
        return {}
    several = len(states) > 1
    checks = tuple(
        dataclasses.replace(check, link=f"node {number}") if several else check
        for number, state in enumerate(states, 1)
        for check in state.link_checks
    )
    links: tuple[dict[str, int | None], ...] = tuple(
        {str(name): value for name, value in state.link.items()} for state in states
    )
    link = links[0]
    if several:
        counts = {name: [columns.get(name) for columns in links] for name in ("wire_packets", "qdisc_drops")}
        link = {name: None if None in values else sum(filter(None, values)) for name, values in counts.items()}
    return {"link": link, "link_checks": checks} | ({"node_links": links} if several else {})


def _collect(fleet: Fleet, raws: Sequence[Path]) -> None:
    """Bring the files of all observers here, each with the offset of the clock that its times are on."""
    for watching, clock, raw in zip(fleet.observers, fleet.unwatch(), raws, strict=True):
        watched = NodeObserver(pid=watching.watched.pid, clock=clock)
        files.write_json(raw / layout.OBSERVER, records.to_json(watched))
        fleet.fetch_raw(watching, raw)
        # Only we may write what we read later without the recording.
        for name in recording.CACHES:
            (raw / name).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
