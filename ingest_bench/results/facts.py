"""Facts of this machine, written next to each result and printed by `doctor`."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import psutil

from ingest_bench import system

_HOST_FILES = {
    "transparent_hugepages": "/sys/kernel/mm/transparent_hugepage/enabled",
    "transparent_hugepages_defrag": "/sys/kernel/mm/transparent_hugepage/defrag",
    "numa_balancing": "/proc/sys/kernel/numa_balancing",
    "swappiness": "/proc/sys/vm/swappiness",
    # The ratio applies while the number of bytes is 0.
    "dirty_bytes": "/proc/sys/vm/dirty_bytes",
    "dirty_ratio": "/proc/sys/vm/dirty_ratio",
    "dirty_background_bytes": "/proc/sys/vm/dirty_background_bytes",
    "dirty_background_ratio": "/proc/sys/vm/dirty_background_ratio",
    "max_map_count": "/proc/sys/vm/max_map_count",
    "cpu_governor": "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    "tcp_congestion_control": "/proc/sys/net/ipv4/tcp_congestion_control",
}


def collect_facts() -> dict[str, Any]:
    """Return machine, kernel and versions: what must agree before two results may be compared."""
    lines = (system.read_text("/proc/cpuinfo") or "").splitlines()
    try:
        distribution = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        distribution = ""
    return {
        "machine": platform.machine(),
        "cpu": next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""),
        "cores": os.cpu_count(),
        "memory_bytes": memory_bytes(),
        "kernel": platform.release(),
        "distribution": distribution,
        "python": platform.python_version(),
        "ingest_bench": metadata.version("ingest-bench"),
        "locust": metadata.version("locust"),
        "uid": os.getuid(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "numad_runs": is_numad_running(),
        **{name: system.read_text(path) for name, path in _HOST_FILES.items()},
    }


def memory_bytes() -> int:
    """Return the memory of this machine, or the limit of our control group if that is less."""
    limit = system.read_text("/sys/fs/cgroup/memory.max")
    total: int = psutil.virtual_memory().total
    return min(total, int(limit)) if limit and limit.isdigit() else total


def is_numad_running() -> bool:
    """Return True if a process `numad` runs, which moves memory between NUMA nodes."""
    return any(process.info["name"] == "numad" for process in psutil.process_iter(["name"]))
