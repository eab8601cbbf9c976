"""What this machine is, read from /proc and /sys."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

import psutil

from ingest_bench.ledger.steps import chosen

_GOVERNORS = "cpu[0-9]*/cpufreq/scaling_governor"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What `advice` judges. None: this machine has no such thing, or it cannot be read."""

    transparent_hugepages: str | None = None
    numad_runs: bool = False
    swap_bytes: int = 0
    swappiness: int | None = None
    max_map_count: int | None = None
    open_files: int | None = None
    """The most that a process may raise its own limit to, as a JVM does at its start; None: there is no limit."""
    cpu_governors: tuple[str, ...] = ()
    """Each one once. None in virtual machines: their host chooses the frequency."""


def facts() -> MachineFacts:
    """This machine now, for a process that we start."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    pages = _text("/sys/kernel/mm/transparent_hugepage/enabled")
    governors = {_text(path) or "" for path in Path("/sys/devices/system/cpu").glob(_GOVERNORS)}
    return MachineFacts(
        transparent_hugepages=None if pages is None else chosen(pages),
        numad_runs=any(process.info["name"] == "numad" for process in psutil.process_iter(["name"])),
        swap_bytes=psutil.swap_memory().total,
        swappiness=_number("/proc/sys/vm/swappiness"),
        max_map_count=_number("/proc/sys/vm/max_map_count"),
        open_files=None if most == resource.RLIM_INFINITY else most,
        cpu_governors=tuple(sorted(governors - {""})),
    )


def numa_nodes() -> int:
    """How many NUMA nodes it has; 1 where the kernel knows nothing of them."""
    return max(1, len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))))


def _number(path: str) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdigit() else None


def _text(path: str | Path) -> str | None:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return None
