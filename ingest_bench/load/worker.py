"""What a load worker does: prepares a load, sends it, and leaves its samples and its report on its disk.

Who leads it (`fleet.fleet_worker`) brings Locust's runner, lets the users start, and says when the load begins.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import gevent
from gevent.hub import get_hub
from locust import User

from ingest_bench.errors import RunFailed
from ingest_bench.inputs import credentials
from ingest_bench.inputs.records import to_json
from ingest_bench.load.arrivals import schedule, striped
from ingest_bench.load.health import Watch
from ingest_bench.load.live.figures import Reader
from ingest_bench.load.recorder import Recorder, record, unsent
from ingest_bench.load.tickets import OpenLoop
from ingest_bench.load.users.ingest import TicketUser
from ingest_bench.load.users.query_user import SearchUser
from ingest_bench.load.work import Work
from ingest_bench.model.load import WorkerReport
from ingest_bench.protocols.way import way_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ingest_bench.documents.source import Source
    from ingest_bench.load.plan import LoadPlan
    from ingest_bench.protocols.way import Way

_PROGRESS_NS = 5 * 10**8
# Lines of all workers at one moment would hold up what is due then: one costs the master and `run` 1 ms together.
_APART_NS = 25 * 10**5
# After the end of the measurement answers are waited for so long; then requests are cut off.
_DRAIN_NS = 20 * 10**9


class Lead(Protocol):
    """Who leads a worker through its load."""

    runner: Any
    """Locust's, whose users these are."""

    def say(self, **line: Any) -> None:
        """Whoever measures hears it. It never waits."""

    def ends(self, stop: Callable[[], None]) -> None:
        """`stop` is what ends the load early, in order."""

    def spawned(self, classes: Sequence[type[User]], failed: Callable[[], str]) -> None:
        """Returns when all users of these classes have started, `fixed_count` of each.

        RunFailed as soon as `failed` says why one of them never will.
        """

    def start_ns(self) -> int:
        """The moment at which the load begins, waited for: of our CLOCK_MONOTONIC."""


def send(plan: LoadPlan, lead: Lead) -> None:
    """A whole load, its samples and its report on disk; RunFailed when it was hopeless, also then with both."""
    # Not in this thread: the heartbeats go on, however long it takes.
    aside = get_hub().threadpool.apply
    plan = _with_credentials(aside(plan.unpacked))
    with Recorder(plan.samples) as recorder, _recorder_of_queries(plan) as queries:
        _load(plan, aside(plan.source), recorder, queries, lead)


def _with_credentials(plan: LoadPlan) -> LoadPlan:
    """The plan whose requests say who we are, if they shall. It is not written any more."""
    if not plan.credentials:
        return plan
    found = credentials.headers(os.environ)
    if not found:
        raise RunFailed(
            "the server wants credentials, and the environment of this load worker has none; set "
            f"{credentials.USER} and {credentials.PASSWORD}, or {credentials.API_KEY}"
        )
    return dataclasses.replace(plan, headers=plan.headers | found)


def _recorder_of_queries(plan: LoadPlan) -> AbstractContextManager[Recorder | None]:
    return Recorder(plan.query_samples) if plan.own_query_users else nullcontext()


def _load(plan: LoadPlan, source: Source, recorder: Recorder, queries: Recorder | None, lead: Lead) -> None:
    work = Work(source=source, recorder=recorder, users=plan.own_users)
    way = way_to(*plan.places, headers=plan.headers, first=plan.worker)
    if plan.tells_figures:
        files = plan.samples, plan.query_samples
        work.reader = Reader(plan.worker, *files, way.deadlines.pending, plan.options.timeout_ns)
    if plan.options.arrivals.is_open:
        work.tickets = OpenLoop(_offsets(plan, work))
    classes: list[type[User]] = [_ingesting(plan, work, way)]
    if queries is not None:
        classes.append(_searching(plan, work, way, queries))
    _end_on_any_error(work)
    # What was built so far lives to the end: no collection needs to look at it. The last one takes 20 ms. It comes when
    # each worker is prepared: all users start at one moment, and many workers at once would not be heard for long.
    gc.collect()
    lead.spawned(classes, lambda: work.hopeless)
    gc.freeze()
    lead.say(phase="ready")
    start_ns = lead.start_ns()
    watch = Watch(plan.cpu, plan.standstills, start_ns)
    end_ns = _run(plan, work, [one for one in (recorder, queries) if one is not None], lead, start_ns)
    watch.close()
    _drain(work, way, lead)
    way.deadlines.close()
    # A track's clock ticks on until the last answer, but its corpus is sent: nothing is missing.
    for planned_ns in () if plan.step is not None else work.tickets.unsent():
        recorder.add(record(*unsent(planned_ns, end_ns)))
    recorder.flush()
    if queries is not None:
        for planned_ns in work.query_tickets.unsent():
            queries.add(record(*unsent(planned_ns, end_ns)))
        queries.flush()
    if work.has_failed and not work.hopeless:
        work.give_up()
    report = _report(plan, work, way, start_ns, end_ns, watch)
    plan.report.write_text(json.dumps(to_json(report), indent=1))
    last = {"documents": work.acked, "seconds_left": 0.0, **work.figures()}
    if work.hopeless:
        lead.say(phase="drain", **last)
        raise work.failure()
    lead.say(phase="done", **last)


def _end_on_any_error(work: Work) -> None:
    """From now on an exception in a greenlet or in the event loop ends the load with its text."""
    hub = gevent.get_hub()
    usual = hub.handle_error

    def handle(context: Any, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if not issubclass(kind, hub.NOT_ERROR):
            work.broke(error)
        usual(context, kind, error, trace)

    # The property that gevent's documentation says applications may set.
    hub.handle_error = handle


def _offsets(plan: LoadPlan, work: Work) -> Iterator[int]:
    """This worker's share of the schedule."""
    options, arrivals, workload = plan.options, plan.options.arrivals, plan.workload
    documents = options.bulk_documents or workload.bulk_documents
    body_bytes = options.bulk_bytes or documents * workload.mean_document_bytes
    times = schedule(
        arrivals,
        sizes=work.sizes(arrivals.unit, documents if arrivals.unit == "documents" else body_bytes),
        seed=options.seed,
        recorded_ns=plan.recorded_ns,
    )
    return striped(times, plan.worker, plan.workers)


def _report(plan: LoadPlan, work: Work, way: Way, start_ns: int, end_ns: int, watch: Watch) -> WorkerReport:
    return WorkerReport(
        started_monotonic_ns=start_ns,
        realtime_minus_monotonic_ns=time.time_ns() - time.monotonic_ns(),
        warm_up_end_ns=min(end_ns, start_ns + plan.options.longest_warm_up_ns),
        measure_end_ns=end_ns,
        bytes_written=way.traffic.bytes_written,
        bytes_unread=way.traffic.bytes_unread,
        local_ports=tuple(sorted(way.traffic.local_ports)),
        item_failures=dict(work.item_failures),
        cpu_ns=watch.cpu_ns,
        loop_lag_p99_ns=watch.lateness.quantile_ns(0.99),
        loop_lags=watch.lateness.count,
        errors=work.errors(),
        documents_resent=work.documents_resent,
        documents_repeated=work.documents_repeated,
        tickets_waited=work.tickets.waited,
        tickets_unsent=0 if plan.step is not None else len(work.tickets.unsent()),
        queue_p99_ns=work.tickets.queue.quantile_ns(0.99),
        queue_delays=work.tickets.queue.count,
        is_open=plan.options.arrivals.is_open,
        addresses=() if plan.speaks().picks_nodes else tuple(address.name for address in way.addresses),
    )


def _ingesting(plan: LoadPlan, work: Work, way: Way) -> type[User]:
    protocol = plan.speaks()
    own = {
        "abstract": False,
        "fixed_count": len(plan.own_users),
        "work": work,
        "way": way,
        "judge": staticmethod(protocol.judge),
        "retries": plan.options.retries,
        "aborts": plan.options.on_error == "abort",
        "is_paced": plan.options.arrivals.is_open,
        "timeout_ns": plan.options.timeout_ns,
        "think_time_ns": plan.options.think_time_ns,
        "starts_after_ns": staticmethod(plan.starts_after_ns),
    }
    return type("IngestUser", (TicketUser, protocol.user()), own)


def _searching(plan: LoadPlan, work: Work, way: Way, recorder: Recorder) -> type[User]:
    options, queries, protocol = plan.options, plan.workload.queries, plan.queries()
    if options.query_arrivals.is_open:
        # Another seed than that of the bulks: they must not be due at the same moments.
        times = schedule(options.query_arrivals, seed=options.seed + 1)
        work.query_tickets = OpenLoop(striped(times, plan.worker, min(plan.workers, options.query_users)))
    own = {
        "abstract": False,
        "fixed_count": len(plan.own_query_users),
        "work": work,
        "way": way,
        "judge": staticmethod(protocol.judge),
        "recorder": recorder,
        "numbers": iter(plan.own_query_users),
        "queries": tuple(protocol.body(query.body) for query in queries),
        "aborts": options.on_error == "abort",
        "is_paced": options.query_arrivals.is_open,
        "weights": tuple(query.weight for query in queries),
        "seed": options.seed,
        "timeout_ns": options.timeout_ns,
    }
    return type("SearchUser", (SearchUser, protocol.user()), own)


def _run(plan: LoadPlan, work: Work, recorders: list[Recorder], lead: Lead, start_ns: int) -> int:
    """The end of the measurement: as planned, earlier when it is ended, without bodies or without hope."""
    warm_up_end_ns = start_ns + plan.options.longest_warm_up_ns
    end_ns = warm_up_end_ns + plan.measure_ns
    lead.ends(work.stop)
    runner = lead.runner
    # All that can be done before the start: then only what is due wakes anybody, in each of many workers.
    work.start_ns, work.end_ns = start_ns, end_ns
    if plan.own_documents is not None:
        work.end_after(plan.own_documents, warm_up_end_ns)
    work.tickets.open(start_ns, end_ns)
    if plan.own_query_users:
        work.query_tickets.open(start_ns, end_ns)
    apart_ns = told_after_ns(plan)
    told_ns = start_ns + apart_ns
    is_warm = False
    while True:
        now_ns = time.monotonic_ns()
        if not is_warm and (now_ns >= warm_up_end_ns or warm_up_end_ns == start_ns):
            is_warm = True
            told_ns = min(told_ns, warm_up_end_ns + apart_ns)
        if now_ns >= end_ns or work.stopped or not runner.user_count or work.reached_ns:
            # Stopped before the start it has begun nevertheless, and ends then.
            gevent.sleep(max(0, start_ns - now_ns) / 1e9)
            work.end_ns = min(work.reached_ns or max(now_ns, start_ns), end_ns)
            return work.end_ns
        if now_ns >= told_ns:
            phase = "warm-up" if now_ns < warm_up_end_ns else "measure"
            left_s = None if plan.until_sent else round((end_ns - now_ns) / 1e9, 1)
            for recorder in recorders:
                recorder.flush()
            lead.say(phase=phase, documents=work.acked, seconds_left=left_s, **work.figures())
            told_ns = now_ns + _PROGRESS_NS
        next_ns = min(told_ns, end_ns if is_warm else warm_up_end_ns)
        runner.user_greenlets.join(timeout=max(0, next_ns - now_ns) / 1e9)


def told_after_ns(plan: LoadPlan) -> int:
    """How long after the start of the load, and after its warm-up, this worker tells how it gets on."""
    return plan.worker * min(_APART_NS, _PROGRESS_NS // plan.workers)


def _drain(work: Work, way: Way, lead: Lead) -> None:
    """No request is waiting for its answer any more, and no user is left."""
    runner = lead.runner
    work.close_tickets()
    limit_ns = time.monotonic_ns() + _DRAIN_NS
    while runner.user_count and time.monotonic_ns() < limit_ns:
        lead.say(phase="drain", documents=work.acked, seconds_left=(limit_ns - time.monotonic_ns()) / 1e9)
        runner.user_greenlets.join(timeout=_PROGRESS_NS / 1e9)
    way.deadlines.cut_off()
    runner.user_greenlets.join(timeout=1.0)
    # Not `runner.stop`: for a line of its log it looks through all modules (`inspect.stack`), 46 ms of CPU and 900 page
    # faults at a stretch. 30 workers that did so at once beside busy processes were not heard for 4 s, and were lost.
    runner.stop_users(runner.user_classes_count)
