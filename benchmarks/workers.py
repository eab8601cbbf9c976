"""Four load processes carry what one carries, when the server or the link is the limit; no document is lost or doubled.

    python benchmarks/workers.py [--seconds 4] [--rounds 8]

Each round sends the same load once with one process and once with four, in turn; the number is the ratio of their
documents per second, and the 95% interval of its mean over the rounds. An interval wider than the promise is no verdict
(exit code 3). Twice: against a sink that takes 50 ms for each answer, so that the users are what limits, and over a
link of 100 Mbit/s, which all connections share.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from lab import Bench, Verdict, interval, opened

from ingest_bench.analysis.run.sample_columns import measured, window_of

USERS = 16
DOCUMENTS = 110
PROCESSES = (1, 4)
LIMITS: Mapping[str, Mapping[str, str]] = {
    "50 ms an answer": {"delay": "50ms"},
    "100 Mbit/s": {"profile": "ethernet-100m"},
}
# Promised: the same within 2%.
WITHIN = 0.02


@dataclass(frozen=True, slots=True)
class Carried:
    """What one load got through."""

    docs_per_s: float
    acked: int
    counted: int


def carried(bench: Bench, name: str, processes: int) -> Carried:
    before = bench.counted()
    report, samples = bench.sent(name, bulk_documents=DOCUMENTS, processes=processes, warm_up_ns=10**9)
    rate = measured(samples, window_of(report))["docs_per_s_mean"]
    if not isinstance(rate, float):
        raise SystemExit(f"{name}: nothing was measured")
    return Carried(rate, int(samples["documents_acked"].sum()), bench.counted() - before)


def rounds_of(seconds: float, rounds: int, setting: Mapping[str, str]) -> dict[int, list[Carried]]:
    """What each number of processes carried, round by round."""
    found: dict[int, list[Carried]] = {processes: [] for processes in PROCESSES}
    with opened(USERS, seconds, **setting) as bench:
        for number in range(rounds):
            # Who begins changes: what comes first finds a cooler machine.
            for processes in PROCESSES if number % 2 else PROCESSES[::-1]:
                found[processes].append(carried(bench, f"{number}-{processes}", processes))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    chosen = parser.parse_args()
    verdict = Verdict()
    lines = ["| the limit | one, docs/s | four, docs/s | four / one (95% interval) | promised | acked | counted |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for limit, setting in LIMITS.items():
        found = rounds_of(chosen.seconds, chosen.rounds, setting)
        ones, fours = (found[processes] for processes in PROCESSES)
        ratios = [four.docs_per_s / one.docs_per_s for one, four in zip(ones, fours, strict=True)]
        mean, low, high = interval(ratios)
        rates = [interval([each.docs_per_s for each in side])[0] for side in (ones, fours)]
        acked, counted = (sum(getattr(each, name) for each in (*ones, *fours)) for name in ("acked", "counted"))
        lines.append(
            f"| {limit} | {rates[0]:,.0f} | {rates[1]:,.0f} | {mean:.4f} ({low:.4f} to {high:.4f}) "
            f"| within {WITHIN:.0%} | {acked:,} | {counted:,} |"
        )
        said = f"{limit}: four carry {mean:.4f} of one ({low:.4f} to {high:.4f}), promised within {WITHIN:.0%}"
        verdict.judge(said, (low, high), (1 - WITHIN, 1 + WITHIN))
        verdict.missed.extend(
            f"{limit}: {each.acked:,} documents acknowledged, {each.counted:,} counted"
            for each in (*ones, *fours)
            if each.acked != each.counted
        )
    print("\n".join(lines))
    return verdict.told()


if __name__ == "__main__":
    sys.exit(main())
