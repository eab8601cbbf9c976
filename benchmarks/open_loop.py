"""An open loop keeps its plan, and a server that stalls shows: beside it, what a closed-loop generator says.

    python benchmarks/open_loop.py [--seconds 6] [--rounds 3] [--rate 2000]

First the lateness of sends (sent - planned) at a fixed rate of 4 kB bulks. Then a sink that stands still once for a
second: response times (done - planned) of our open loop beside its service times (done - sent), and what Locust's
FastHttpUser with constant_throughput says of the same stall at the same rate. That one waits with its next request
until the last one is answered, and so leaves out of its percentiles whoever would have come meanwhile.

Promises about times are for an idle machine: on another one a promise that is not kept has no verdict (exit code 3).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from lab import Bench, Verdict, busy_share, one_body, opened, poster

from ingest_bench import system
from ingest_bench.analysis.run.sample_columns import Samples, Window, window_of
from ingest_bench.model.load import Arrivals, Rate

DOCUMENTS = 8
USERS = 8
WARM_UP_S = 2
STALL_MS = 1000
SHARES = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}
# Of all processors, by whoever else runs: what a machine with nothing to do has.
IDLE_SHARE = 0.05
# Promised: 99% of sends within 1 ms of plan; a stall of 1 s is 1 s in p99.9 of the response time.
LATE_MS_P99 = 1.0
STALL_SEEN_MS = (0.9 * STALL_MS, 1.5 * STALL_MS)


def lateness_ms(samples: Samples, window: Window) -> dict[str, float]:
    """How late the requests of the measurement were sent."""
    planned = _planned(samples, window)
    return shares((planned["sent_ns"] - planned["planned_ns"]) / 1e6)


def shares(times_ms: Samples) -> dict[str, float]:
    """Their number, their quantiles as `SHARES` names them, and how many saw at least half of the stall."""
    found = {name: float(np.percentile(times_ms, share)) for name, share in SHARES.items()}
    return {"requests": len(times_ms), "stalled": int((times_ms >= STALL_MS / 2).sum())} | found


def _planned(samples: Samples, window: Window) -> Samples:
    inside: Samples = samples[(samples["planned_ns"] >= window.start_ns) & (samples["planned_ns"] < window.end_ns)]
    return inside


def ours(bench: Bench, name: str, rate: float) -> tuple[Samples, Window]:
    report, samples = bench.sent(
        name,
        bulk_documents=DOCUMENTS,
        arrivals=Arrivals(shape="constant", rate=Rate(rate)),
        warm_up_ns=WARM_UP_S * 10**9,
    )
    return samples, window_of(report)


def locust(bench: Bench, rate: float) -> dict[str, float]:
    """What Locust's own statistics say after the same warm-up and time."""
    body = one_body(DOCUMENTS, bench.folder)
    argv = (sys.executable, __file__, "--as-locust", str(rate), str(bench.seconds), str(body), f"http://{bench.listen}")
    said = system.run(bench.link.client.command(argv), timeout_s=bench.seconds + 60)
    return dict(json.loads(said.splitlines()[-1]))


def be_locust(rate: float, seconds: float, body: Path, host: str) -> None:
    """A child process: FastHttpUser at a fixed rate, and the statistics that Locust shows, as JSON."""
    import gevent  # noqa: PLC0415 - Locust patches what is imported after it
    import locust as framework  # noqa: PLC0415
    from locust.env import Environment  # noqa: PLC0415

    paced = poster(framework.FastHttpUser, body, host, wait_time=framework.constant_throughput(rate / USERS))
    environment = Environment(user_classes=[paced])
    runner = environment.create_local_runner()
    runner.start(USERS, spawn_rate=USERS)
    gevent.sleep(WARM_UP_S)
    environment.stats.reset_all()
    gevent.sleep(seconds)
    total = environment.stats.total
    said = {name: total.get_response_time_percentile(share / 100) for name, share in SHARES.items()}
    stalled = sum(count for time_ms, count in total.response_times.items() if time_ms >= STALL_MS / 2)
    print(json.dumps({"requests": total.num_requests, "stalled": stalled} | said))
    runner.quit()


def late_table(rounds: list[dict[str, float]]) -> str:
    """Markdown: the median of the rounds and their range."""
    cells = []
    for name in SHARES:
        values = [each[name] for each in rounds]
        cells.append(f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})")
    lines = [f"| requests | late, ms: {' | '.join(SHARES)} | promised |", "|---|---|---|---|---|---|"]
    requests = sum(int(each["requests"]) for each in rounds)
    return "\n".join([*lines, f"| {requests:,} | {' | '.join(cells)} | p99 at most {LATE_MS_P99:g} ms |"])


def stall_table(told: Mapping[str, Mapping[str, float]]) -> str:
    """Markdown: the same stall, as each kind of number tells it."""
    head = f"| a stall of 1 s, told by | requests | of 0.5 s and more | ms: {' | '.join(SHARES)} |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for name, found in told.items():
        times = " | ".join(f"{found[share]:,.1f}" for share in SHARES)
        lines.append(f"| {name} | {found['requests']:,} | {found['stalled']:,} | {times} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=2000, help="bulks a second")
    chosen = parser.parse_args()
    busy = busy_share()
    with opened(USERS, chosen.seconds) as bench:
        rounds = [lateness_ms(*ours(bench, f"late-{number}", chosen.rate)) for number in range(chosen.rounds)]
    # In the middle of the measurement. Once: each generator has a sink of its own.
    stall = {"stall": f"{STALL_MS}ms", "stall_after": f"{WARM_UP_S + chosen.seconds / 3:.2f}s"}
    with opened(USERS, chosen.seconds, **stall) as bench:
        samples, window = ours(bench, "stalled", chosen.rate)
    with opened(USERS, chosen.seconds, **stall) as bench:
        theirs = locust(bench, chosen.rate)
    planned = _planned(samples, window)
    response = shares((planned["done_ns"] - planned["planned_ns"]) / 1e6)
    service = shares((planned["done_ns"] - planned["sent_ns"]) / 1e6)
    told = {"our response time": response, "our service time": service, "FastHttpUser, constant_throughput": theirs}
    print(f"{late_table(rounds)}\n\n{stall_table(told)}")
    late = statistics.median(each["p99"] for each in rounds)
    not_kept = [f"sends: p99 is {late:.3f} ms late, promised at most {LATE_MS_P99:g}"] if late > LATE_MS_P99 else []
    low, high = STALL_SEEN_MS
    if not low <= response["p99.9"] <= high or service["p50"] > STALL_MS / 10:
        not_kept.append(
            f"stall: p99.9 of the response time is {response['p99.9']:.0f} ms, promised {low:g} to {high:g}; "
            f"p50 of the service time is {service['p50']:.0f} ms, promised at most {STALL_MS / 10:g}"
        )
    if busy <= IDLE_SHARE:
        return Verdict(missed=not_kept).told()
    print(f"\nBefore the start {busy:.0%} of this machine's processors was in use by others: it was not idle.")
    return Verdict(undecided=not_kept).told()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-locust"]:
        rate, seconds, body, host = sys.argv[2:]
        be_locust(float(rate), float(seconds), Path(body), host)
    else:
        sys.exit(main())
