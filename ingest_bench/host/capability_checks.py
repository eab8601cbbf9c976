"""Capability checks of `doctor`. Each tries one thing by itself, so that a failing one does not hide another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def run_check(name: str, attempt: Callable[[], str], programs: Sequence[str] = (), remedy: str = "") -> Capability:
    """Check a capability by using it, and return the result; it never raises.

    *attempt* requires these programs and returns a detail. Its IngestBenchError says why it fails, and from line 2 what
    to do, in addition to *remedy*.
    """
    if missing := [program for program in programs if system.which(program) is None]:
        return skip_check(name, ", ".join(missing), advise_install(missing))
    try:
        return Capability(name=name, present=True, detail=attempt())
    except IngestBenchError as error:
        detail, _, advice = str(error).removeprefix(f"{name}: ").partition("\n")
        remedy = "\n".join(filter(None, (advice, remedy)))
    except Exception as error:  # noqa: BLE001 - a check that is broken itself must not hide the others
        detail = f"unknown: the check failed: {type(error).__name__}: {error}"
    return Capability(name=name, present=False, detail=detail, remedy=remedy)


def skip_check(name: str, missing: str, remedy: str = "") -> Capability:
    """Return the result of a check whose requirement is missing."""
    return Capability(name=name, present=False, detail=f"skipped: requires {missing}", remedy=remedy)


def advise_install(programs: Sequence[str]) -> str:
    """Return how to install these programs."""
    return f"Install {' '.join(sorted({PACKAGES[program] for program in programs}))}."
