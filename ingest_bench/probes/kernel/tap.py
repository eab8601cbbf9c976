"""Child process of probe `kernel-reads`: `python -m ingest_bench.probes.kernel.tap PORTS PID OUT`.

Writes each TCP read of sockets with these local ports to OUT, as `RECORD`s, until SIGTERM or the end of its standard
input. Prints "ready" once it traces, and at the end one JSON line with the number of lost reads and samples of the
clocks.
"""

from __future__ import annotations

import json
import select
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench.probes.kernel import bpf
from ingest_bench.probes.kernel.bpf import (
    ADD,
    AND,
    EQUAL,
    NOT_EQUAL,
    R0,
    R1,
    R2,
    R3,
    R4,
    R6,
    R7,
    R10,
    SET,
    SHIFT_RIGHT,
    Assembler,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# One read as numpy type strings. `header` is the ring's, `at_ns` CLOCK_MONOTONIC, `returned` the return value of the
# read (0: end of stream, negative: an error number), `requested` the caller's buffer room (0: unknown).
RECORD: tuple[tuple[str, str], ...] = (
    ("header", "<u8"),
    ("at_ns", "<u8"),
    ("pid", "<u4"),
    ("returned", "<i4"),
    ("requested", "<u4"),
    ("peer_port", ">u2"),
    ("port", "<u2"),
)
_BYTES = 24
# One second of the fastest measured sender (260,000 reads/s, 32 bytes each), rounded up; drained 20 times per second.
_RING_BYTES = 16 << 20
_PERIOD_S = 0.05
_CLOCK_PERIOD_NS = 10**9
# struct sock_common: skc_dport, big endian, followed by skc_num, the local port (include/net/sock.h).
_SOCK_PORTS = 12
_TCP = 6
_MSG_PEEK = 2
_NO_WAKEUP = 1
# The stack of `reads_program`, from its top: the record without header, the thread, a key.
_AT = {"at_ns": -24, "pid": -16, "returned": -12, "requested": -8, "ports": -4, "thread": -32, "key": -40}


def build_reads_program(
    fields: Mapping[str, int], ports: Iterable[int], pid: int, ring: int, requests: int, lost: int
) -> bytes:
    """Return the program at sock:sock_recv_length: one record per TCP read that consumed data from its socket."""
    a = Assembler()
    a.copy(R6, R1)
    a.call(bpf.PID_TGID)
    a.copy(R7, R0)
    _unless_ours(a, pid)
    a.load(2, R1, R6, fields["protocol"])
    a.jump_if(R1, NOT_EQUAL, _TCP, "out")
    a.load(4, R1, R6, fields["flags"])
    a.compute(R1, AND, _MSG_PEEK)
    a.jump_if(R1, NOT_EQUAL, 0, "out")
    a.load(8, R3, R6, fields["sk"])
    a.compute(R3, ADD, _SOCK_PORTS)
    _stack(a, R1, "ports")
    a.compute(R2, SET, 4)
    a.call(bpf.PROBE_READ_KERNEL)
    a.load(2, R1, R10, _AT["ports"] + 2)
    for port in ports:
        a.jump_if(R1, EQUAL, port, "mine")
    a.jump("out")
    a.label("mine")
    _take_request(a, requests)
    a.load(4, R1, R6, fields["ret"])
    a.store(4, R10, _AT["returned"], R1)
    a.compute(R7, SHIFT_RIGHT, 32)
    a.store(4, R10, _AT["pid"], R7)
    a.call(bpf.KTIME)
    a.store(8, R10, _AT["at_ns"], R0)
    a.map(R1, ring)
    _stack(a, R2, "at_ns")
    a.compute(R3, SET, _BYTES)
    a.compute(R4, SET, _NO_WAKEUP)
    a.call(bpf.RING_OUTPUT)
    a.jump_if(R0, EQUAL, 0, "out")
    _count(a, lost)
    a.label("out")
    a.leave()
    return a.code()


def build_request_program(size: int | None, pid: int, requests: int) -> bytes:
    """Return the program at the entry of a reading system call: it stores the caller's buffer room, or deletes it."""
    a = Assembler()
    a.copy(R6, R1)
    a.call(bpf.PID_TGID)
    a.store(8, R10, -8, R0)
    _unless_ours(a, pid)
    a.map(R1, requests)
    a.copy(R2, R10)
    a.compute(R2, ADD, -8)
    if size is None:
        a.call(bpf.DELETE)
    else:
        a.load(8, R3, R6, size)
        a.store(8, R10, -16, R3)
        a.copy(R3, R10)
        a.compute(R3, ADD, -16)
        a.compute(R4, SET, 0)
        a.call(bpf.UPDATE)
    a.label("out")
    a.leave()
    return a.code()


def _unless_ours(a: Assembler, pid: int) -> None:
    """Skip the event if r0 (thread and process) is another process. 0: any; inside a pid namespace pids differ."""
    if pid:
        a.compute(R0, SHIFT_RIGHT, 32)
        a.jump_if(R0, NOT_EQUAL, pid, "out")


def _take_request(a: Assembler, requests: int) -> None:
    a.store_number(4, R10, _AT["requested"], 0)
    a.store(8, R10, _AT["thread"], R7)
    a.map(R1, requests)
    _stack(a, R2, "thread")
    a.call(bpf.LOOKUP)
    a.jump_if(R0, EQUAL, 0, "unknown")
    a.load(8, R1, R0, 0)
    a.store(4, R10, _AT["requested"], R1)
    a.map(R1, requests)
    _stack(a, R2, "thread")
    a.call(bpf.DELETE)
    a.label("unknown")


def _count(a: Assembler, counters: int) -> None:
    a.store_number(4, R10, _AT["key"], 0)
    a.map(R1, counters)
    _stack(a, R2, "key")
    a.call(bpf.LOOKUP)
    a.jump_if(R0, EQUAL, 0, "out")
    a.compute(R1, SET, 1)
    a.atomic_add(R0, R1)


def _stack(a: Assembler, register: int, what: str) -> None:
    a.copy(register, R10)
    a.compute(register, ADD, _AT[what])


class Tap:
    """Programs that run in the kernel until the process ends."""

    def __init__(self, ports: Iterable[int], pid: int) -> None:
        bpf.ensure_tracefs()
        self.ring = bpf.Ring(_RING_BYTES)
        self.lost = bpf.make_map(bpf.ARRAY, 4, 8, 1)
        requests = bpf.make_map(bpf.HASH, 8, 8, 1 << 16)
        # First the requests: a read whose request was not seen has an unknown one.
        for call, field in (("read", "count"), ("recvfrom", "size"), ("readv", ""), ("recvmsg", "")):
            number, offsets = bpf.read_tracepoint("syscalls", f"sys_enter_{call}")
            bpf.attach(bpf.load_program(build_request_program(offsets.get(field), pid, requests)), number)
        number, offsets = bpf.read_tracepoint("sock", "sock_recv_length")
        code = build_reads_program(offsets, ports, pid, self.ring.descriptor, requests, self.lost)
        bpf.attach(bpf.load_program(code), number)

    def drain(self) -> bytes:
        """Return the records since the previous call."""
        return self.ring.drain(_BYTES)


def main(ports: list[int], pid: int, path: Path) -> None:
    """Trace until the end of standard input."""
    tap = Tap(ports, pid)
    records = 0
    clocks = [_clock()]
    with path.open("wb") as file:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            readable, _, _ = select.select([sys.stdin], [], [], _PERIOD_S)
            records += file.write(tap.drain())
            if readable and not sys.stdin.read(1):
                break
            if time.monotonic_ns() - clocks[-1][0] >= _CLOCK_PERIOD_NS:
                clocks.append(_clock())
    clocks.append(_clock())
    report = {"lost": bpf.read_array_value(tap.lost, 0), "records": records // (_BYTES + 8), "clocks": clocks}
    with suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()


def _clock() -> tuple[int, int]:
    """Return CLOCK_MONOTONIC and the lead of CLOCK_REALTIME over it: the latter may be set at any moment."""
    at_ns = time.monotonic_ns()
    return at_ns, time.time_ns() - at_ns


if __name__ == "__main__":
    main([int(port) for port in sys.argv[1].split(",")], int(sys.argv[2]), Path(sys.argv[3]))
