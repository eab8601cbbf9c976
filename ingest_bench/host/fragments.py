"""Take memory and give every second page of it back: `fragments.py SHARE_PPM LEAVE_BYTES`. The standard library alone.

What was taken is free in pieces of one page then, so that a huge page is to be had of the rest or by compaction. It
takes that share of what is available, but no page of a file from the kernel: so much at least it leaves free, and what
the kernel wants to be free. It says in JSON what came of it, and holds every other page until its input ends.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import re
import sys
import time
from pathlib import Path

# linux/mman.h, since Linux 5.14: all pages of a range are there when it returns.
_POPULATE_WRITE = 23
STEP_BYTES = 64 << 20
_PPM = 10**6


def available_bytes() -> int:
    """What the kernel could give without swapping (man 5 proc, MemAvailable)."""
    return _memory_bytes("MemAvailable:")


def free_bytes() -> int:
    """What nobody uses, for a page of a file neither (man 5 proc, MemFree)."""
    return _memory_bytes("MemFree:")


def _memory_bytes(name: str) -> int:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    return 1024 * next(int(line.split()[1]) for line in text.splitlines() if line.startswith(name))


def kept_free_bytes(zoneinfo: str, page: int) -> int:
    """Below so much the kernel may take pages of files to have more free (man 5 proc, zoneinfo): 2 GB of 1 TB."""
    return page * sum(map(int, re.findall(r"^\s+high\s+(\d+)$", zoneinfo, re.MULTILINE)))


def huge_bytes(buddyinfo: str, huge: int, page: int) -> int:
    """How much is free in blocks that hold a huge page of that size: a line counts the blocks of 1, 2, 4 … pages."""
    total = 0
    for line in buddyinfo.splitlines():
        counts = map(int, line.partition("zone")[2].split()[1:])
        total += sum((count << order) * page for order, count in enumerate(counts) if page << order >= huge)
    return total


def _huge_bytes_now() -> int:
    huge = int(Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").read_text(encoding="ascii"))
    return huge_bytes(Path("/proc/buddyinfo").read_text(encoding="ascii"), huge, mmap.PAGESIZE)


def main(share_ppm: int, leave_bytes: int) -> None:
    """Where memory runs out, this process is to be ended first."""
    Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    began, before_bytes = time.monotonic(), _huge_bytes_now()
    most_bytes = available_bytes() * share_ppm // _PPM // STEP_BYTES * STEP_BYTES
    taken_bytes, page = 0, mmap.PAGESIZE
    at_first_bytes = free_bytes()
    leave_bytes = max(leave_bytes, kept_free_bytes(Path("/proc/zoneinfo").read_text(encoding="ascii"), page))
    libc = ctypes.CDLL(None, use_errno=True)
    pieces = []
    while taken_bytes < most_bytes and free_bytes() - STEP_BYTES > leave_bytes:
        piece = mmap.mmap(-1, STEP_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        piece.madvise(mmap.MADV_NOHUGEPAGE)
        start = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(piece)))
        if libc.madvise(start, ctypes.c_size_t(STEP_BYTES), _POPULATE_WRITE):
            sys.exit(f"madvise: errno {ctypes.get_errno()}")
        pieces.append(piece)
        taken_bytes += STEP_BYTES
    for piece in pieces:
        for at in range(0, STEP_BYTES, 2 * page):
            piece.madvise(mmap.MADV_DONTNEED, at, page)
    said = {
        "taken": taken_bytes,
        "before": before_bytes,
        "after": _huge_bytes_now(),
        "s": time.monotonic() - began,
        "free": at_first_bytes,
        "left": leave_bytes,
    }
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
