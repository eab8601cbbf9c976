"""Capability checks of `doctor`. Each tries one thing by itself, so that a failing one does not hide another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ingest_bench import system
from ingest_bench.errors import IngestBenchError
from ingest_bench.model.experiment import Capability

# Programs that ingest-bench starts, each with its Debian package.
PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "sysctl": "procps",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CapabilityCheck:
    """A check of one capability."""

    name: str
    attempt: Callable[[], str]
    """Uses the capability and returns a detail. An IngestBenchError says why it fails, and from line 2 what to do."""
    programs: tuple[str, ...] = ()
    """Programs that the attempt requires."""
    remedy: str = ""
    """What to do if it fails."""


def run_check(check: CapabilityCheck) -> Capability:
    """Run a check and return its result; it never raises."""
    missing = [program for program in check.programs if system.which(program) is None]
    if missing:
        return skip_check(check, ", ".join(missing), advise_install(missing))
    try:
        return Capability(name=check.name, present=True, detail=check.attempt())
    except IngestBenchError as error:
        detail, _, advice = str(error).removeprefix(f"{check.name}: ").partition("\n")
        remedy = "\n".join(filter(None, (advice, check.remedy)))
    except Exception as error:  # noqa: BLE001 - a check that is broken itself must not hide the others
        detail, remedy = f"unknown: the check failed: {type(error).__name__}: {error}", check.remedy
    return Capability(name=check.name, present=False, detail=detail, remedy=remedy)


def skip_check(check: CapabilityCheck, missing: str, remedy: str = "") -> Capability:
    """Return the result of a check whose requirement is missing."""
    return Capability(name=check.name, present=False, detail=f"skipped: requires {missing}", remedy=remedy)


def advise_install(programs: list[str]) -> str:
    """Return how to install these programs."""
    return f"Install {' '.join(sorted({PACKAGES[program] for program in programs}))}."
