"""Fragment free memory: `fragments.py SHARE_PPM MIN_FREE_BYTES`. Standard library only.

It allocates SHARE_PPM of the available memory and frees every second page. That memory is then free in single pages, so
a huge page must come from the rest or from compaction. It never makes the kernel reclaim pages of files: it leaves
MIN_FREE_BYTES and the kernel's own watermarks free. It prints its result as JSON, and holds the other pages until its
standard input ends.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import re
import sys
import time
from pathlib import Path

# linux/mman.h, since Linux 5.14: populates all pages of a range before it returns.
_POPULATE_WRITE = 23
STEP_BYTES = 64 << 20
_PPM = 10**6


def read_memory_bytes(name: str) -> int:
    """Return a value of /proc/meminfo (man 5 proc).

    MemAvailable: what the kernel can provide without swapping. MemFree: unused, also by pages of files.
    """
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    return 1024 * next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name}:"))


def parse_watermark_bytes(zoneinfo: str, page_bytes: int) -> int:
    """Return the free memory below which the kernel may reclaim pages of files (man 5 proc, zoneinfo): 2 GB of 1 TB."""
    return page_bytes * sum(map(int, re.findall(r"^\s+high\s+(\d+)$", zoneinfo, re.MULTILINE)))


def parse_huge_block_bytes(buddyinfo: str, huge_bytes: int, page_bytes: int) -> int:
    """Return the free memory in blocks of at least *huge_bytes*: a line counts blocks of 1, 2, 4 … pages."""
    total = 0
    for line in buddyinfo.splitlines():
        counts = map(int, line.partition("zone")[2].split()[1:])
        total += sum(
            (count << order) * page_bytes for order, count in enumerate(counts) if page_bytes << order >= huge_bytes
        )
    return total


def _read_huge_block_bytes() -> int:
    huge_bytes = int(Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").read_text(encoding="ascii"))
    return parse_huge_block_bytes(Path("/proc/buddyinfo").read_text(encoding="ascii"), huge_bytes, mmap.PAGESIZE)


def main(share_ppm: int, min_free_bytes: int) -> None:
    """Run the program. The kernel kills it first if memory runs out."""
    Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    start_s, before_bytes = time.monotonic(), _read_huge_block_bytes()
    max_bytes = read_memory_bytes("MemAvailable") * share_ppm // _PPM // STEP_BYTES * STEP_BYTES
    taken_bytes, page_bytes = 0, mmap.PAGESIZE
    initial_free_bytes = read_memory_bytes("MemFree")
    zoneinfo = Path("/proc/zoneinfo").read_text(encoding="ascii")
    min_free_bytes = max(min_free_bytes, parse_watermark_bytes(zoneinfo, page_bytes))
    libc = ctypes.CDLL(None, use_errno=True)
    pieces = []
    while taken_bytes < max_bytes and read_memory_bytes("MemFree") - STEP_BYTES > min_free_bytes:
        piece = mmap.mmap(-1, STEP_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        piece.madvise(mmap.MADV_NOHUGEPAGE)
        address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(piece)))
        if libc.madvise(address, ctypes.c_size_t(STEP_BYTES), _POPULATE_WRITE):
            sys.exit(f"madvise: errno {ctypes.get_errno()}")
        pieces.append(piece)
        taken_bytes += STEP_BYTES
    for piece in pieces:
        for offset in range(0, STEP_BYTES, 2 * page_bytes):
            piece.madvise(mmap.MADV_DONTNEED, offset, page_bytes)
    result = {
        "taken_bytes": taken_bytes,
        "before_bytes": before_bytes,
        "after_bytes": _read_huge_block_bytes(),
        "duration_s": time.monotonic() - start_s,
        "free_bytes": initial_free_bytes,
        "min_free_bytes": min_free_bytes,
    }
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
