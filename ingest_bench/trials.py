"""What this machine can do: each thing is tried by itself, so that nothing that is missing or broken hides another.

And whether its processors were ours meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ingest_bench import system
from ingest_bench.errors import IngestBenchError
from ingest_bench.model.capability import Capability

# The programs that we start, each with its package in Debian.
PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "sysctl": "procps",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One thing to be tried."""

    name: str
    attempt: Callable[[], str]
    """What was seen when it works. An IngestBenchError says why not: a line, and after it what to do."""
    needs: tuple[str, ...] = ()
    """Programs without which there is nothing to try."""
    remedy: str = ""
    """What to do when it does not work."""


def tried(trial: Trial) -> Capability:
    """What became of it. No error ever comes out of here."""
    missing = [program for program in trial.needs if system.which(program) is None]
    if missing:
        return not_tried(trial, ", ".join(missing), installing(missing))
    try:
        return Capability(name=trial.name, present=True, detail=trial.attempt())
    except IngestBenchError as error:
        detail, _, advice = str(error).removeprefix(f"{trial.name}: ").partition("\n")
        remedy = "\n".join(filter(None, (advice, trial.remedy)))
    except Exception as error:  # noqa: BLE001 - a check that is broken itself must not hide the others
        detail, remedy = f"not found out, the check itself failed: {type(error).__name__}: {error}", trial.remedy
    return Capability(name=trial.name, present=False, detail=detail, remedy=remedy)


def not_tried(trial: Trial, missing: str, remedy: str = "") -> Capability:
    """What becomes of it where something is missing that it needs."""
    return Capability(name=trial.name, present=False, detail=f"not tried, for want of {missing}", remedy=remedy)


def installing(programs: list[str]) -> str:
    """How to get these programs."""
    return f"Install {' '.join(sorted({PACKAGES[program] for program in programs}))}."


def parse_ticks(stat: str) -> tuple[int, int, int]:
    """Busy, idle and stolen ticks of all processors since the start (proc(5), /proc/stat).

    Stolen: something here would have run, and the hypervisor let another machine run.
    """
    user, nice, kernel, idle, iowait, irq, softirq, steal = map(int, stat.split("\n", 1)[0].split()[1:9])
    return user + nice + kernel + irq + softirq, idle + iowait, steal


def processor_ticks() -> tuple[int, int]:
    """The ticks of all processors that were stolen, and all, since the start."""
    ticks = parse_ticks(Path("/proc/stat").read_text(encoding="ascii"))
    return ticks[2], sum(ticks)


def stolen_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """How much of the time of all processors between two moments was somebody else's."""
    return (after[0] - before[0]) / max(1, after[1] - before[1])
