"""The tool as an instrument: two results of one thing are not called different, and a slowdown of 3% is found.

    python benchmarks/against_itself.py pairs RESULTS [--replicates 3]
    python benchmarks/against_itself.py slowdown AGAINST_ITSELF SLOWED

`pairs`: RESULTS is what `ingest-bench run benchmarks/against_itself.toml --aa 300` left, or as much of it as there is.
Its replicates, three by three, are the two sides of 100 pairs that share no run. Each pair is a table of all columns
that are compared. In at most 5 of 100 anything may be called distinct.

`slowdown`: AGAINST_ITSELF says how many replicates would show 3%. SLOWED is what these left, or more, of two levels:
`--set setting.sink.delay=50ms,51500us --replicates N`. With so many replicates the slowdown is found, and with fewer
there is no verdict. A delay of 51.5 ms in place of 50 ms is 3% of it.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingest_bench.analysis.compare import comparison, noise
from ingest_bench.analysis.compare.comparison import Comparison
from ingest_bench.lab import evaluation
from ingest_bench.model.results import Summary
from ingest_bench.results import layout

PAIRS, MOST_SHARE = 100, 0.05
COLUMN, SLOWDOWN = "docs_per_s_mean", 0.03


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sides of one thing, and what was called distinct between them."""

    replicates: tuple[int, ...]
    compared: int
    distinct: tuple[str, ...]


def pairs(summaries: Sequence[Summary], size: int) -> list[Pair]:
    """As many as there are whole ones: no run is in two of them."""
    numbers = sorted({summary.replicate for summary in summaries})
    found = []
    for at in range(0, len(numbers) - size + 1, size):
        chosen = tuple(numbers[at : at + size])
        runs = [run for run in summaries if run.replicate in chosen and run.state == "measured"]
        if len(runs) < 2 * size:
            continue
        judged = comparison.table(runs, comparison.COMPARED)
        distinct = tuple(each.column for each in judged if each.is_distinct)
        found.append(Pair(chosen, len(judged), distinct))
    return found


def csv_of(found: Iterable[Pair]) -> str:
    """A row for each pair."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["pair", "replicates", "compared", "distinct"])
    for number, pair in enumerate(found, 1):
        writer.writerow([number, " ".join(map(str, pair.replicates)), pair.compared, " ".join(pair.distinct)])
    return out.getvalue()


def told(found: Sequence[Pair]) -> int:
    """Says it; 0: at most 5% have anything distinct, 1: more, 3: fewer than 100 pairs."""
    wrong = sum(bool(pair.distinct) for pair in found)
    print(f"{wrong} of {len(found)} pairs have a column that is called distinct")
    if len(found) < PAIRS:
        print(f"no verdict: {PAIRS} pairs are asked for; `ingest-bench run --resume` does the rest")
        return 3
    return 0 if wrong <= MOST_SHARE * len(found) else 1


def first(summaries: Sequence[Summary], replicates: int) -> Comparison | None:
    """The comparison of that column by the first replicates; None with no number."""
    runs = [run for run in summaries if run.replicate <= replicates]
    return next(iter(comparison.table(runs, (COLUMN,))), None)


def slowdown(itself: Sequence[Summary], slowed: Sequence[Summary]) -> tuple[int | None, list[tuple[int, Comparison]]]:
    """How many replicates the noise asks for, and the comparison by 1, 2, … of them."""
    (seen,) = noise.noise(itself, (COLUMN,))
    most = max(run.replicate for run in slowed)
    found = [(count, one) for count in range(1, most + 1) if (one := first(slowed, count)) is not None]
    return seen.replicates(SLOWDOWN), found


def said(count: int, found: Comparison) -> list[str]:
    """A row: how many replicates, the change and what is said of it."""
    low, high = found.relative_interval or (None, None)
    interval = "" if low is None or high is None else f"{low:+.2%} to {high:+.2%}"
    verdict = {True: "distinct", False: "no verdict", None: "no verdict: one run a side"}[found.is_distinct]
    return [str(count), f"{found.relative:+.2%}" if found.relative is not None else "", interval, verdict]


def main() -> int:
    """The exit code: 0 kept, 1 not kept, 3 no verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    of_pairs = commands.add_parser("pairs")
    of_pairs.add_argument("results", type=Path)
    of_pairs.add_argument("--replicates", type=int, default=3)
    of_pairs.add_argument("--out", type=Path, help="a CSV for the pairs")
    of_slowdown = commands.add_parser("slowdown")
    of_slowdown.add_argument("itself", type=Path)
    of_slowdown.add_argument("slowed", type=Path)
    of_slowdown.add_argument("--out", type=Path, help="a CSV for the verdicts")
    asked = parser.parse_args()
    if asked.what == "pairs":
        found = pairs(evaluation.summaries(layout.open_results(asked.results)), asked.replicates)
        if asked.out:
            asked.out.write_text(csv_of(found), encoding="utf-8")
        return told(found)
    sides = (evaluation.summaries(layout.open_results(path)) for path in (asked.itself, asked.slowed))
    enough, by_count = slowdown(*sides)
    rows = [["replicates", "change", "interval", "verdict"], *(said(count, one) for count, one in by_count)]
    text = "\n".join(",".join(row) for row in rows) + "\n"
    print(f"run --aa proposes {enough} replicates for {SLOWDOWN:.0%} of {COLUMN}\n{text}", end="")
    if asked.out:
        asked.out.write_text(text, encoding="utf-8")
    known = dict(by_count)
    if enough is None or enough not in known:
        print("no verdict: there are fewer replicates than it proposes")
        return 3
    return 0 if known[enough].is_distinct and known[enough].difference < 0 else 1


if __name__ == "__main__":
    sys.exit(main())
