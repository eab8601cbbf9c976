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
    ATOMIC_ADD_8,
    CALL,
    COPY,
    EXIT,
    JUMP,
    JUMP_EQUAL,
    JUMP_NOT_EQUAL,
    LOAD_2,
    LOAD_4,
    LOAD_8,
    LOAD_MAP,
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
    STORE_4,
    STORE_8,
    STORE_NUMBER_4,
    Step,
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
    return bpf.assemble(
        (
            Step(COPY, R6, R1),
            Step(CALL, number=bpf.PID_TGID),
            Step(COPY, R7, R0),
            *_unless_ours(pid),
            Step(LOAD_2, R1, R6, fields["protocol"]),
            Step(JUMP_NOT_EQUAL, R1, offset="out", number=_TCP),
            Step(LOAD_4, R1, R6, fields["flags"]),
            Step(AND, R1, number=_MSG_PEEK),
            Step(JUMP_NOT_EQUAL, R1, offset="out", number=0),
            Step(LOAD_8, R3, R6, fields["sk"]),
            Step(ADD, R3, number=_SOCK_PORTS),
            *_stack(R1, "ports"),
            Step(SET, R2, number=4),
            Step(CALL, number=bpf.PROBE_READ_KERNEL),
            Step(LOAD_2, R1, R10, _AT["ports"] + 2),
            *(Step(JUMP_EQUAL, R1, offset="mine", number=port) for port in ports),
            Step(JUMP, offset="out"),
            "mine",
            *_take_request(requests),
            Step(LOAD_4, R1, R6, fields["ret"]),
            Step(STORE_4, R10, R1, _AT["returned"]),
            Step(SHIFT_RIGHT, R7, number=32),
            Step(STORE_4, R10, R7, _AT["pid"]),
            Step(CALL, number=bpf.KTIME),
            Step(STORE_8, R10, R0, _AT["at_ns"]),
            Step(LOAD_MAP, R1, number=ring),
            *_stack(R2, "at_ns"),
            Step(SET, R3, number=_BYTES),
            Step(SET, R4, number=_NO_WAKEUP),
            Step(CALL, number=bpf.RING_OUTPUT),
            Step(JUMP_EQUAL, R0, offset="out", number=0),
            *_count(lost),
            *_LEAVE,
        )
    )


def build_request_program(size: int | None, pid: int, requests: int) -> bytes:
    """Return the program at the entry of a reading system call: it stores the caller's buffer room, or deletes it."""
    store_room = (
        Step(LOAD_8, R3, R6, size or 0),
        Step(STORE_8, R10, R3, -16),
        Step(COPY, R3, R10),
        Step(ADD, R3, number=-16),
        Step(SET, R4, number=0),
        Step(CALL, number=bpf.UPDATE),
    )
    return bpf.assemble(
        (
            Step(COPY, R6, R1),
            Step(CALL, number=bpf.PID_TGID),
            Step(STORE_8, R10, R0, -8),
            *_unless_ours(pid),
            Step(LOAD_MAP, R1, number=requests),
            Step(COPY, R2, R10),
            Step(ADD, R2, number=-8),
            *([Step(CALL, number=bpf.DELETE)] if size is None else store_room),
            *_LEAVE,
        )
    )


# Return 0, so that other tracers get the event too.
_LEAVE = ("out", Step(SET, R0, number=0), Step(EXIT))


def _unless_ours(pid: int) -> tuple[Step, ...]:
    """Skip the event if r0 (thread and process) is another process. 0: any; inside a pid namespace pids differ."""
    return (Step(SHIFT_RIGHT, R0, number=32), Step(JUMP_NOT_EQUAL, R0, offset="out", number=pid)) if pid else ()


def _take_request(requests: int) -> tuple[Step | str, ...]:
    return (
        Step(STORE_NUMBER_4, R10, offset=_AT["requested"], number=0),
        Step(STORE_8, R10, R7, _AT["thread"]),
        Step(LOAD_MAP, R1, number=requests),
        *_stack(R2, "thread"),
        Step(CALL, number=bpf.LOOKUP),
        Step(JUMP_EQUAL, R0, offset="unknown", number=0),
        Step(LOAD_8, R1, R0),
        Step(STORE_4, R10, R1, _AT["requested"]),
        Step(LOAD_MAP, R1, number=requests),
        *_stack(R2, "thread"),
        Step(CALL, number=bpf.DELETE),
        "unknown",
    )


def _count(counters: int) -> tuple[Step, ...]:
    return (
        Step(STORE_NUMBER_4, R10, offset=_AT["key"], number=0),
        Step(LOAD_MAP, R1, number=counters),
        *_stack(R2, "key"),
        Step(CALL, number=bpf.LOOKUP),
        Step(JUMP_EQUAL, R0, offset="out", number=0),
        Step(SET, R1, number=1),
        Step(ATOMIC_ADD_8, R0, R1),
    )


def _stack(register: int, what: str) -> tuple[Step, ...]:
    return Step(COPY, register, R10), Step(ADD, register, number=_AT[what])


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
    clocks = [_clock()]
    with path.open("wb") as file:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            readable, _, _ = select.select([sys.stdin], [], [], _PERIOD_S)
            file.write(tap.drain())
            if readable and not sys.stdin.read(1):
                break
            if time.monotonic_ns() - clocks[-1][0] >= _CLOCK_PERIOD_NS:
                clocks.append(_clock())
    clocks.append(_clock())
    report = {"lost": bpf.read_array_value(tap.lost, 0), "clocks": clocks}
    with suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()


def _clock() -> tuple[int, int]:
    """Return CLOCK_MONOTONIC and the lead of CLOCK_REALTIME over it: the latter may be set at any moment."""
    at_ns = time.monotonic_ns()
    return at_ns, time.time_ns() - at_ns


if __name__ == "__main__":
    main([int(port) for port in sys.argv[1].split(",")], int(sys.argv[2]), Path(sys.argv[3]))
