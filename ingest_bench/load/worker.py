"""A load worker: `python -m ingest_bench.load.worker PLAN.json`, started by `load.supervisor` inside the namespace.

It prepares, says {"phase": "ready"}, waits on its standard input for {"start_ns": N} (CLOCK_MONOTONIC), then says
where it is twice a second. It ends with its report and exit code 0, or with 3 when the load was hopeless.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import json
import os
import signal
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
from gevent.socket import wait_read
from locust import User
from locust.env import Environment

from ingest_bench import credentials
from ingest_bench.errors import IngestBenchError, RunFailed
from ingest_bench.load import plan as plans
from ingest_bench.load.arrivals import schedule, striped
from ingest_bench.load.health import LoopLag
from ingest_bench.load.recorder import Recorder, unsent
from ingest_bench.load.tickets import OpenLoop
from ingest_bench.load.users.bulk import TicketUser
from ingest_bench.load.users.search import SearchUser
from ingest_bench.load.work import Work
from ingest_bench.model.load import WorkerReport
from ingest_bench.records import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest_bench.load.plan import LoadPlan

_PROGRESS_S = 0.5
# After the end of the measurement answers are waited for so long; then requests are cut off.
_DRAIN_NS = 20 * 10**9
_PR_SET_PDEATHSIG = 1


def main(path: Path) -> int:
    """The exit code of a whole load."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.set_blocking(1, False)
    try:
        # Of one that joined from another machine: nobody has unpacked its files yet.
        plan = _with_credentials(plans.read(path).unpacked())
        with Recorder(plan.samples) as recorder, _recorder_of_queries(plan) as queries:
            return _load(plan, recorder, queries)
    except IngestBenchError as error:
        _say(phase="failed", error=str(error))
        return 3


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
    return Recorder(plan.queries) if plan.own_query_users else nullcontext()


def _load(plan: LoadPlan, recorder: Recorder, queries: Recorder | None) -> int:
    work = Work(address=plan.address, verify=plan.tls, source=plan.source(), recorder=recorder, users=plan.own_users)
    if plan.options.arrivals.is_open:
        work.tickets = OpenLoop(_offsets(plan, work))
    classes: list[type[User]] = [_user_class(plan, work)]
    if queries is not None:
        classes.append(_search_class(plan, work, queries))
    users = len(plan.own_users) + len(plan.own_query_users)
    _end_on_any_error(work)
    # Locust's own way is to log an exception in a user and to go on.
    runner = Environment(user_classes=classes, catch_exceptions=False).create_local_runner()
    runner.start(users, spawn_rate=max(1, users))
    gevent.wait([runner.spawning_greenlet])
    # What was built so far lives to the end: no collection needs to look at it.
    gc.collect()
    gc.freeze()
    _say(phase="ready")
    start_ns = _heard_start()
    lag, cpu_ns = LoopLag(), time.process_time_ns()
    end_ns = _run(plan, work, [one for one in (recorder, queries) if one is not None], runner, start_ns)
    cpu_ns = time.process_time_ns() - cpu_ns
    lag.close()
    _drain(work, runner)
    runner.quit()
    work.deadlines.close()
    # A track's clock ticks on until the last answer, but its corpus is sent: nothing is missing.
    for planned_ns in () if plan.step is not None else work.tickets.unsent():
        recorder.add(*unsent(planned_ns, end_ns))
    recorder.flush()
    if queries is not None:
        for planned_ns in work.query_tickets.unsent():
            queries.add(*unsent(planned_ns, end_ns))
    if not work.acked and not work.hopeless:
        work.give_up()
    report = _report(plan, work, start_ns, end_ns, cpu_ns, lag)
    plan.report.write_text(json.dumps(to_json(report), indent=1))
    if work.hopeless:
        _say(phase="failed", error=work.hopeless)
        return 3
    _say(phase="done", documents=work.acked, seconds_left=0.0)
    return 0


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


def _report(plan: LoadPlan, work: Work, start_ns: int, end_ns: int, cpu_ns: int, lag: LoopLag) -> WorkerReport:
    return WorkerReport(
        started_monotonic_ns=start_ns,
        realtime_minus_monotonic_ns=time.time_ns() - time.monotonic_ns(),
        warm_up_end_ns=min(end_ns, start_ns + plan.options.longest_warm_up_ns),
        measure_end_ns=end_ns,
        bytes_written=work.traffic.bytes_written,
        local_ports=tuple(sorted(work.traffic.local_ports)),
        item_failures=dict(work.item_failures),
        cpu_ns=cpu_ns,
        loop_lag_p99_ns=lag.lateness.quantile_ns(0.99),
        errors=work.errors(),
        cpu_share_ppm=cpu_ns * 10**6 // max(1, end_ns - start_ns),
        documents_resent=work.documents_resent,
        documents_repeated=work.documents_repeated,
        tickets_waited=work.tickets.waited,
        tickets_unsent=0 if plan.step is not None else len(work.tickets.unsent()),
        queue_p99_ns=work.tickets.queue.quantile_ns(0.99),
        is_open=plan.options.arrivals.is_open,
    )


def _user_class(plan: LoadPlan, work: Work) -> type[TicketUser]:
    own = {
        "abstract": False,
        "fixed_count": len(plan.own_users),
        "work": work,
        "head": plan.request_head,
        "retries": plan.options.retries,
        "timeout_ns": plan.options.timeout_ns,
    }
    return type("BulkUser", (TicketUser,), own)


def _search_class(plan: LoadPlan, work: Work, recorder: Recorder) -> type[SearchUser]:
    options, queries = plan.options, plan.workload.queries
    if options.query_arrivals.is_open:
        # Another seed than that of the bulks: they must not be due at the same moments.
        times = schedule(options.query_arrivals, seed=options.seed + 1)
        work.query_tickets = OpenLoop(striped(times, plan.worker, min(plan.workers, options.query_users)))
    own = {
        "abstract": False,
        "fixed_count": len(plan.own_query_users),
        "work": work,
        "recorder": recorder,
        "numbers": iter(plan.own_query_users),
        "head": plan.search_head,
        "queries": tuple(json.dumps(query.body).encode() for query in queries),
        "weights": tuple(query.weight for query in queries),
        "seed": options.seed,
        "timeout_ns": options.timeout_ns,
    }
    return type("SearchUser", (SearchUser,), own)


def _heard_start() -> int:
    """The moment at which the supervisor wants the load to begin; the process ends when the supervisor is gone."""
    heard = b""
    while not heard.endswith(b"\n"):
        wait_read(0)
        got = os.read(0, 4096)
        if not got:
            sys.exit(3)
        heard += got
    return int(json.loads(heard)["start_ns"])


def _run(plan: LoadPlan, work: Work, recorders: list[Recorder], runner: Any, start_ns: int) -> int:
    """The end of the measurement: as planned, earlier after SIGTERM, without bodies or without hope."""
    warm_up_end_ns = start_ns + plan.options.longest_warm_up_ns
    end_ns = warm_up_end_ns + plan.measure_ns
    gevent.signal_handler(signal.SIGTERM, work.stop)
    gevent.sleep(max(0, start_ns - time.monotonic_ns()) / 1e9)
    work.end_ns = end_ns
    work.tickets.open(start_ns, end_ns)
    work.query_tickets.open(start_ns, end_ns)
    work.gate.set()
    acked_before = None
    while True:
        now_ns = time.monotonic_ns()
        if acked_before is None and now_ns >= warm_up_end_ns:
            acked_before = work.acked
        if now_ns >= end_ns or work.stopped or not runner.user_count or _has_enough(plan, work, acked_before):
            work.end_ns = min(now_ns, end_ns)
            return work.end_ns
        phase = "warm-up" if now_ns < warm_up_end_ns else "measure"
        left_s = None if plan.until_sent else round((end_ns - now_ns) / 1e9, 1)
        _say(phase=phase, documents=work.acked, seconds_left=left_s)
        for recorder in recorders:
            recorder.flush()
        next_ns = end_ns if acked_before is not None else warm_up_end_ns
        runner.user_greenlets.join(timeout=min(_PROGRESS_S, (next_ns - now_ns) / 1e9))


def _has_enough(plan: LoadPlan, work: Work, acked_before: int | None) -> bool:
    """Whether the documents that end the measurement are acknowledged. `acked_before`: at its beginning."""
    enough = plan.own_documents
    return enough is not None and acked_before is not None and work.acked - acked_before >= enough


def _drain(work: Work, runner: Any) -> None:
    """No request is waiting for its answer any more."""
    work.close_tickets()
    limit_ns = time.monotonic_ns() + _DRAIN_NS
    while runner.user_count and time.monotonic_ns() < limit_ns:
        _say(phase="drain", documents=work.acked, seconds_left=(limit_ns - time.monotonic_ns()) / 1e9)
        runner.user_greenlets.join(timeout=_PROGRESS_S)
    work.deadlines.cut_off()
    runner.user_greenlets.join(timeout=1.0)


def _say(**line: Any) -> None:
    """One line of the protocol. It is dropped when nobody reads: the load must not wait for its supervisor."""
    try:
        os.write(1, json.dumps(line).encode() + b"\n")
    except BlockingIOError:
        return


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
