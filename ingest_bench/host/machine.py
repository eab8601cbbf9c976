"""What this machine is, read from /proc and /sys."""

from __future__ import annotations

from pathlib import Path


def numa_nodes() -> int:
    """How many NUMA nodes it has; 1 where the kernel knows nothing of them."""
    return max(1, len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))))
