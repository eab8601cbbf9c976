"""May two results be compared? Facts of their machines, and what they are results of. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from ingest_bench.model.results import Summary

# What decides how fast a server is, and is the machine's and not the server's. Another kernel or another version of
# this tool may be what one wants to compare: they are named, and no more.
_DECISIVE = (
    *("machine", "cpu", "cores", "memory_bytes", "cpu_governor"),
    *("transparent_hugepages", "transparent_hugepages_defrag", "numa_balancing", "numad_runs", "swappiness"),
    *("dirty_bytes", "dirty_ratio", "dirty_background_bytes", "dirty_background_ratio", "max_map_count"),
    "tcp_congestion_control",
)
_OF_SERVER = ("target", "java")
_OF_THE_MOMENT = ("load_average",)
# What the files of a plan held (`fingerprints`).
_FILES = "files"
# A kernel keeps some memory for itself, another time a little more.
_SAME_MEMORY = 0.02
NO_FACTS = "nobody knows whether the machines are the same: a summary.csv alone has no facts, a folder has"


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What is judged, or what it is judged by."""

    summaries: Sequence[Summary] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Of its machine; empty where nobody wrote them down."""
    source: str = ""
    """The file of the numbers and its SHA-256, so that a verdict can be traced."""


def machines(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """How the facts of two results differ: what forbids a verdict, and what is only to be known.

    A fact that one of them has not is not compared.
    """
    differing = {
        name: f"{name} was {before[name]}, is {now[name]}"
        for name in before
        if name in now and name not in (*_OF_THE_MOMENT, _FILES) and not _agree(name, before[name], now[name])
    }
    forbidden = [f"another machine: {text}" for name, text in differing.items() if name in _DECISIVE]
    ones, others = (_by_name(facts.get(_FILES)) for facts in (before, now))
    forbidden += [
        f"{name} held something else: {_listed(ones[name])}, now {_listed(others[name])}"
        for name in ones.keys() & others.keys()
        if ones[name] != others[name]
    ]
    return forbidden, [text for name, text in differing.items() if name not in _DECISIVE]


def _by_name(fingerprints: object) -> dict[str, set[str]]:
    """Wherever the files are: they are others' too. In several folders there may be one of the same name."""
    found: dict[str, set[str]] = {}
    for path, text in fingerprints.items() if isinstance(fingerprints, Mapping) else ():
        found.setdefault(PurePath(str(path)).name, set()).add(str(text))
    return found


def experiments(before: Sequence[Summary], now: Sequence[Summary]) -> str:
    """Why the runs of a cell of that name are of another kind; empty where they are of the same."""
    for name in ("experiment", "workload", "network", "netem_backend"):
        ones, others = ({value for run in runs if (value := _text(run, name))} for runs in (before, now))
        if ones and others and ones != others:
            return f"the baseline's {name} is {_listed(ones)}, this one's {_listed(others)}"
    return ""


def servers(before: Sequence[Summary], now: Sequence[Summary]) -> list[str]:
    """How the servers of the runs of a cell differ: their version, and the Java that they ran on.

    It forbids nothing: a new version is what one compares for. But it is said.
    """
    found = []
    for name in _OF_SERVER:
        ones, others = ({str(run.values.get(name) or "") for run in runs} - {""} for runs in (before, now))
        if ones and others and ones != others:
            found.append(f"{name} was {_listed(ones)}, is {_listed(others)}")
    return found


def _agree(name: str, one: object, other: object) -> bool:
    if name == "memory_bytes" and isinstance(one, int) and isinstance(other, int):
        return abs(one - other) <= _SAME_MEMORY * max(one, other)
    return one == other


def _text(run: Summary, name: str) -> str:
    return run.experiment if name == "experiment" else str(run.values.get(name) or "")


def _listed(names: set[str]) -> str:
    return " and ".join(sorted(names))
