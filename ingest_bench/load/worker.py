"""Load worker: prepare a load, send it, leave samples and a report on disk. `python -m ingest_bench.load.worker`.

A child process of the supervisor, or of a worker of a fleet (`fleet.worker`). Its users run in Locust's LocalRunner.
Commands come as lines of JSON on standard input, and its status goes as lines of JSON to standard output.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import gevent
from gevent.event import AsyncResult, Event
from gevent.hub import get_hub
from locust import User
from locust.env import Environment

from ingest_bench.documents.source import Source
from ingest_bench.errors import IngestBenchError, RunFailed, describe_error, describe_error_for_remote
from ingest_bench.inputs import credentials
from ingest_bench.inputs.records import from_json, to_json
from ingest_bench.load.arrivals import schedule, take_share
from ingest_bench.load.channel import LineChannel, run_child
from ingest_bench.load.figures import LoadFigures, RequestFigures, read_cpu_mark
from ingest_bench.load.loops import OpenLoop
from ingest_bench.load.plan import LoadPlan
from ingest_bench.load.recorder import ProcessMonitor, Recorder, pack_sample, unsent_sample
from ingest_bench.load.users import QueryUser, RetryingUser, ScheduledUser
from ingest_bench.load.worker_state import WorkerState
from ingest_bench.model.load import GRPC, Arrivals
from ingest_bench.model.samples import WorkerReport
from ingest_bench.protocols.bulk import Search
from ingest_bench.protocols.protocol import Protocol
from ingest_bench.protocols.upstream import Upstream, resolve_upstream

_STATUS_INTERVAL_NS = 5 * 10**8
# Status messages of all workers at one moment would delay what is due then: one costs master and supervisor 1 ms.
_STATUS_STAGGER_NS = 25 * 10**5
# After the end of the measurement, wait this long for responses; then requests are cut off.
_DRAIN_NS = 20 * 10**9
# Between two status messages: 100,000 take 0.3 s, and a silent worker of a fleet is given up.
_UNSENT_SAMPLES = 100_000
# From "prepared" until all users have started.
_SPAWN_TIMEOUT_S = 300.0
_SPAWN_POLL_S = 0.005


def send_load(plan: LoadPlan, leader: Leader) -> None:
    """Send a whole load and leave samples and report on disk; RunFailed if it was hopeless, then with both too."""
    # In a thread: heartbeats continue meanwhile.
    run_in_thread = get_hub().threadpool.apply
    plan = _add_credentials(run_in_thread(plan.with_decompressed_files))
    kinds = ("samples", "queries") if plan.worker_query_users else ("samples",)
    with ExitStack() as stack:
        recorders = [
            stack.enter_context(Recorder(plan.record_file(kind), computes_figures=plan.reports_figures))
            for kind in kinds
        ]
        _WorkerLoad(plan, run_in_thread(plan.open_source), recorders, leader).run()


def status_offset_ns(plan: LoadPlan) -> int:
    """Return how long after the start of the load, and of its measurement, this worker sends its first status."""
    return plan.worker * min(_STATUS_STAGGER_NS, _STATUS_INTERVAL_NS // plan.workers)


def _add_credentials(plan: LoadPlan) -> LoadPlan:
    """Add the credentials of this process's environment to the headers, if the plan needs them."""
    if not plan.server.has_credentials:
        return plan
    headers = credentials.read_authorization(os.environ)
    if not headers:
        raise RunFailed(
            "the server requires credentials, and the environment of this load worker has none. Set "
            f"{credentials.USER} and {credentials.PASSWORD}, or {credentials.API_KEY}."
        )
    return dataclasses.replace(plan, headers=plan.headers | headers)


class _WorkerLoad:
    """One load of this process. *recorders*: of the bulks, and of the queries if it has query users."""

    def __init__(self, plan: LoadPlan, source: Source, recorders: Sequence[Recorder], leader: Leader) -> None:
        self._plan, self._recorders, self._leader = plan, recorders, leader
        self._state = state = WorkerState(source=source, users=len(plan.worker_users))
        alpn = "" if plan.options.http2_windows is None and plan.wire.protocol != GRPC else "h2"
        self._upstream = resolve_upstream(*plan.server_addresses, headers=plan.headers, first=plan.worker, alpn=alpn)
        self._first_mark = read_cpu_mark()
        options = plan.options
        if options.arrivals.is_open_loop:
            state.arrivals = OpenLoop(_bulk_offsets_ns(plan, state))
        if plan.worker_query_users and options.query_arrivals.is_open_loop:
            # With the seed of the bulks, queries would be due at the same moments.
            times = schedule(options.query_arrivals, seed=options.seed + 1)
            state.query_arrivals = OpenLoop(take_share(times, plan.worker, min(plan.workers, options.query_users)))

    def run(self) -> None:
        """Start the users, send, drain, and report."""
        plan, state, leader = self._plan, self._state, self._leader
        classes = self._user_classes()
        _end_load_on_error(state)
        # What exists now lives until the end, so that no later collection needs to look at it. This one takes 20 ms:
        # now, because later all users start at one moment, and many workers at once would miss heartbeats.
        gc.collect()
        leader.wait_for_spawn()
        self._spawn(classes)
        gc.freeze()
        leader.report(phase="ready")
        start_ns = leader.wait_for_start()
        monitor = ProcessMonitor(plan.record_file("cpu"), plan.record_file("loop_stalls"), start_ns)
        end_ns = self._measure(start_ns)
        monitor.close()
        self._drain()
        self._record_unsent(end_ns)
        if state.has_failed and state.failure is None:
            state.give_up()
        report = _build_report(plan, state, self._upstream, (start_ns, end_ns), monitor)
        plan.report_file.write_text(json.dumps(to_json(report), indent=1))
        last = {"documents": state.acknowledged, "seconds_left": 0.0, **self._figures()}
        if state.failure is not None:
            leader.report(phase="drain", **last)
            raise state.failure
        leader.report(phase="done", **last)

    def _spawn(self, classes: list[type[User]]) -> None:
        """Start the users; RunFailed if one fails, or after 300 s."""
        runner, state = self._leader.runner, self._state
        runner.environment.user_classes = classes
        runner.spawn_users({user.__name__: user.fixed_count for user in classes})
        users = sum(user.fixed_count for user in classes)
        limit = time.monotonic() + _SPAWN_TIMEOUT_S
        # Let new greenlets run, so that a user that fails at once is noticed.
        gevent.sleep(0)
        while runner.user_count != users or state.failure:
            if state.failure is not None:
                raise state.failure
            if time.monotonic() > limit:
                raise RunFailed(f"{runner.user_count} of {users} users started within {_SPAWN_TIMEOUT_S:.0f} s")
            gevent.sleep(_SPAWN_POLL_S)

    def _user_classes(self) -> list[type[User]]:
        plan, options = self._plan, self._plan.options
        bulks = self._user_class(
            ScheduledUser,
            plan.build_protocol(),
            options.arrivals,
            plan.worker_users,
            recorder=self._recorders[0],
            retries=options.retries,
            think_time_ns=options.think_time_ns,
            start_delay_ns=staticmethod(plan.user_start_delay_ns),
        )
        if not plan.worker_query_users:
            return [bulks]
        search = Search(plan.search_path, options.http2_windows)
        queries = self._user_class(
            QueryUser,
            search,
            options.query_arrivals,
            plan.worker_query_users,
            recorder=self._recorders[1],
            queries=tuple(search.build_body(query.body) for query in plan.workload.queries),
            weights=tuple(query.weight for query in plan.workload.queries),
            seed=options.seed,
        )
        return [bulks, queries]

    def _user_class(
        self,
        kind: type[RetryingUser],
        protocol: Protocol | Search,
        arrivals: Arrivals,
        numbers: range,
        **attributes: Any,
    ) -> type[User]:
        options = self._plan.options
        attributes |= {
            "abstract": False,
            "fixed_count": len(numbers),
            "numbers": iter(numbers),
            "state": self._state,
            "upstream": self._upstream,
            "judge": staticmethod(protocol.judge),
            "aborts": options.on_error == "abort",
            "is_open_loop": arrivals.is_open_loop,
            "timeout_ns": options.timeout_ns,
        }
        return type(kind.__name__, (kind, protocol.user_class()), attributes)

    def _measure(self, start_ns: int) -> int:
        """Return the end of the measurement: as planned, or earlier if stopped, out of bodies, or given up."""
        plan, state, runner = self._plan, self._state, self._leader.runner
        warm_up_end_ns = start_ns + plan.options.max_warm_up_ns
        end_ns = warm_up_end_ns + plan.measure_ns
        self._leader.on_stop(state.stop)
        # Everything that can be done before the start: afterwards only due arrivals wake up, in each of many workers.
        state.start_ns, state.end_ns = start_ns, end_ns
        if plan.worker_documents is not None:
            state.end_after(plan.worker_documents, warm_up_end_ns)
        state.arrivals.open(start_ns, end_ns)
        if plan.worker_query_users:
            state.query_arrivals.open(start_ns, end_ns)
        offset_ns = status_offset_ns(plan)
        status_ns = start_ns + offset_ns
        is_warm = False
        while True:
            now_ns = time.monotonic_ns()
            if not is_warm and (now_ns >= warm_up_end_ns or warm_up_end_ns == start_ns):
                is_warm = True
                status_ns = min(status_ns, warm_up_end_ns + offset_ns)
            if now_ns >= end_ns or state.stopped or not runner.user_count or state.documents_reached_ns:
                # A load that is stopped before its start ends at its start.
                gevent.sleep(max(0, start_ns - now_ns) / 1e9)
                state.end_ns = min(state.documents_reached_ns or max(now_ns, start_ns), end_ns)
                return state.end_ns
            if now_ns >= status_ns:
                phase = "warm-up" if now_ns < warm_up_end_ns else "measure"
                self._report_progress(phase, None if plan.ends_when_sent else round((end_ns - now_ns) / 1e9, 1))
                status_ns = now_ns + _STATUS_INTERVAL_NS
            next_ns = min(status_ns, end_ns if is_warm else warm_up_end_ns)
            runner.user_greenlets.join(timeout=max(0, next_ns - now_ns) / 1e9)

    def _report_progress(self, phase: str, seconds_left: float | None) -> None:
        for recorder in self._recorders:
            recorder.flush()
        documents = self._state.acknowledged
        self._leader.report(phase=phase, documents=documents, seconds_left=seconds_left, **self._figures())

    def _figures(self) -> dict[str, Any]:
        """Return the live figures for a status message; {} if they are not reported."""
        plan, first, last = self._plan, self._first_mark, read_cpu_mark()
        if not plan.reports_figures:
            return {}
        deadlines = self._upstream.deadlines.pending()
        bulks, queries = [*(recorder.figures for recorder in self._recorders), RequestFigures()][:2]
        load = LoadFigures(
            bulks=bulks,
            queries=queries,
            in_flight=len(deadlines),
            oldest_ns=max(0, last.at_ns + plan.options.timeout_ns - min(deadlines)) if deadlines else 0,
            cpu_ns={
                f"{plan.worker} user": last.user_ns - first.user_ns,
                f"{plan.worker} system": last.system_ns - first.system_ns,
            },
        )
        return {"figures": to_json(load)}

    def _drain(self) -> None:
        """Wait for the responses to all requests, cut off those that take too long, and stop all users."""
        runner, deadlines = self._leader.runner, self._upstream.deadlines
        self._state.close_arrivals()
        limit_ns = time.monotonic_ns() + _DRAIN_NS
        while runner.user_count and time.monotonic_ns() < limit_ns:
            seconds_left = (limit_ns - time.monotonic_ns()) / 1e9
            self._leader.report(phase="drain", documents=self._state.acknowledged, seconds_left=seconds_left)
            runner.user_greenlets.join(timeout=_STATUS_INTERVAL_NS / 1e9)
        deadlines.cut_off()
        runner.user_greenlets.join(timeout=1.0)
        # Not `runner.stop`: for a log line it looks through all modules (`inspect.stack`), 46 ms of CPU and 900 page
        # faults at once. 30 workers that did so next to busy processes missed heartbeats for 4 s and were lost.
        runner.stop_users(runner.user_classes_count)
        deadlines.close()

    def _record_unsent(self, end_ns: int) -> None:
        """Record samples of the arrivals that were due and never sent."""
        # A track's clock continues until the last response, but its corpus is sent: nothing is missing.
        unsent = () if self._plan.step is not None else self._state.arrivals.unsent()
        for recorder, times_ns in zip(self._recorders, (unsent, self._state.query_arrivals.unsent()), strict=False):
            for first in range(0, len(times_ns) + 1, _UNSENT_SAMPLES):
                for scheduled_ns in times_ns[first : first + _UNSENT_SAMPLES]:
                    recorder.add(pack_sample(*unsent_sample(scheduled_ns, end_ns)))
                self._report_progress("drain", 0.0)
                gevent.sleep(0)


def _end_load_on_error(state: WorkerState) -> None:
    """From now on, an exception in a greenlet or in the event loop ends the load with its text."""
    hub = gevent.get_hub()
    handle_error = hub.handle_error

    def handle(context: Any, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if not issubclass(kind, hub.NOT_ERROR):
            state.fail(error)
        handle_error(context, kind, error, trace)

    # The property that applications may set, according to gevent's documentation.
    hub.handle_error = handle


def _bulk_offsets_ns(plan: LoadPlan, state: WorkerState) -> Iterator[int]:
    """Return this worker's share of the schedule."""
    options, arrivals, workload = plan.options, plan.options.arrivals, plan.workload
    documents = options.bulk_documents or workload.bulk_documents
    body_bytes = options.bulk_bytes or documents * workload.mean_document_bytes
    times = schedule(
        arrivals,
        sizes=state.sizes(arrivals.unit, documents if arrivals.unit == "documents" else body_bytes),
        seed=options.seed,
        recorded_ns=plan.recorded_ns,
    )
    return take_share(times, plan.worker, plan.workers, burst=arrivals.requests)


def _build_report(
    plan: LoadPlan, state: WorkerState, upstream: Upstream, span_ns: tuple[int, int], monitor: ProcessMonitor
) -> WorkerReport:
    start_ns, end_ns = span_ns
    arrivals, traffic = state.arrivals, upstream.traffic
    return WorkerReport(
        started_monotonic_ns=start_ns,
        realtime_minus_monotonic_ns=time.time_ns() - time.monotonic_ns(),
        warm_up_end_ns=min(end_ns, start_ns + plan.options.max_warm_up_ns),
        measure_end_ns=end_ns,
        bytes_written=traffic.bytes_written,
        bytes_unread=traffic.bytes_unread,
        local_ports=tuple(sorted(traffic.local_ports)),
        item_failures=dict(state.item_failures),
        item_reasons=state.item_reasons,
        cpu_ns=monitor.cpu_ns,
        loop_lag_p99_ns=monitor.lateness.quantile_ns(0.99),
        loop_lag_samples=monitor.lateness.count,
        errors=state.errors(),
        window_stalls=traffic.window_stalls,
        window_stalled_ns=traffic.window_stalled_ns,
        stream_window_bytes=traffic.stream_window_bytes,
        documents_resent=state.documents_resent,
        documents_repeated=state.documents_repeated,
        arrivals_waited=arrivals.waited,
        arrivals_unsent=0 if plan.step is not None else len(arrivals.unsent()),
        send_delay_p99_ns=arrivals.send_delay.quantile_ns(0.99),
        send_delay_samples=arrivals.send_delay.count,
        is_open_loop=plan.options.arrivals.is_open_loop,
        addresses=() if plan.build_protocol().picks_nodes else tuple(address.name for address in upstream.addresses),
    )


class Leader:
    """Leads the load of this process by commands of the supervisor: `spawn`, `begin`, `end`, and `alive` in a fleet."""

    def __init__(self, channel: LineChannel) -> None:
        self._channel, self._lines = channel, channel.lines()
        self._may_spawn = Event()
        self._start_ns: AsyncResult[int] = AsyncResult()
        self._stop: Callable[[], None] | None = None
        self._is_stopped = False
        # Locust's own behaviour is to log an exception in a user and to continue; here it ends the load.
        self.runner: Any = Environment(catch_exceptions=False).create_local_runner()

    def run(self) -> None:
        """Send one load: its plan is the first line."""
        plan = from_json(LoadPlan, next(self._lines))
        gevent.spawn(self._read_commands)
        try:
            send_load(plan, self)
        except Exception as error:
            if not isinstance(error, IngestBenchError):
                logging.exception("the load worker failed")
            # The second one for other machines: without contents of files.
            self.report(phase="failed", error=describe_error(error), remote_error=describe_error_for_remote(error))

    def report(self, **status: Any) -> None:
        """Send a status message to the supervisor. Never waits."""
        self._channel.send(status)

    def on_stop(self, stop: Callable[[], None]) -> None:
        """Call *stop* when the supervisor sends `end` or closes our input; at once if it has already."""
        self._stop = stop
        if self._is_stopped:
            stop()

    def wait_for_spawn(self) -> None:
        """Wait for `spawn`: the users may start."""
        self.report(phase="prepared")
        self._may_spawn.wait()

    def wait_for_start(self) -> int:
        """Wait for `begin`: the load begins at that moment, in the future (our CLOCK_MONOTONIC)."""
        return int(self._start_ns.get())

    def _read_commands(self) -> None:
        # A silent parent is suspended: nothing else would end the load.
        with suppress(TimeoutError):
            for line in self._lines:
                if line["do"] == "spawn":
                    self._may_spawn.set()
                elif line["do"] == "begin":
                    self._start_ns.set(line["start_ns"])
                elif line["do"] == "alive":
                    self._channel.timeout_s = line["timeout_s"]
                else:
                    self._end()
        if self._stop is None:
            # Before the load begins there is nothing to end in order.
            os._exit(0)
        self._end()

    def _end(self) -> None:
        self._is_stopped = True
        if self._stop is not None:
            self._stop()


def main() -> None:
    """Send one load for the supervisor."""
    with run_child() as channel:
        Leader(channel).run()


if __name__ == "__main__":
    main()
