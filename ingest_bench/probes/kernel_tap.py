"""Child process of probe `kernel-reads`: `python -m ingest_bench.probes.kernel_tap PORTS PID OUT`.

Writes each TCP read of sockets with these local ports to OUT, as `RECORD`s, until SIGTERM or the end of its standard
input. Prints "ready" once it traces, and at the end one JSON line with the number of lost reads and samples of the
clocks. Requires root, or CAP_BPF, CAP_PERFMON and a readable tracefs.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import re
import select
import struct
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

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

# --- Bindings of the bpf system call, without a compiler. Constants: include/uapi/linux/bpf.h and perf_event.h.

_LIBC = ctypes.CDLL(None, use_errno=True)
_CALLS = {"x86_64": (321, 298), "aarch64": (280, 241)}  # bpf, perf_event_open
_MAP_CREATE, _MAP_LOOKUP, _PROG_LOAD = 0, 1, 5
HASH, ARRAY, RING = 1, 2, 27
_PROG_TRACEPOINT = 5
_PERF_TRACEPOINT = 2
_PERF_ATTR_BYTES = 112  # PERF_ATTR_SIZE_VER5
_SET_BPF, _ENABLE = 0x40042408, 0x2400
_CLOEXEC = 8
_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
TRACEFS = Path("/sys/kernel/tracing")

# Registers, and the codes of the instructions in use: class | operation | source.
R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 = range(11)
COPY, SET, ADD, AND, SHIFT_RIGHT = 0xBF, 0xB7, 0x07, 0x57, 0x77
LOAD_2, LOAD_4, LOAD_8, LOAD_MAP = 0x69, 0x61, 0x79, 0x18
STORE_4, STORE_8, STORE_NUMBER_4, ATOMIC_ADD_8 = 0x63, 0x7B, 0x62, 0xDB
JUMP, JUMP_EQUAL, JUMP_NOT_EQUAL, CALL, EXIT = 0x05, 0x15, 0x55, 0x85, 0x95
LOOKUP, UPDATE, DELETE, KTIME, PID_TGID, PROBE_READ_KERNEL, RING_OUTPUT = 1, 2, 3, 5, 14, 113, 130


class Step(NamedTuple):
    """One instruction. A call sets r0 to helper(r1 … r5) and clobbers r1 to r5."""

    code: int
    to: int = 0
    """The register that is set or compared, or whose address is written to."""
    source: int = 0
    offset: int | str = 0
    """Bytes from the address in a register; the label that a jump goes to."""
    number: int = 0
    """The operand, the helper of a call, or the file descriptor of a map."""


def assemble(steps: Iterable[Step | str]) -> bytes:
    """Return the code of a program. A text is the label of the next instruction. A map's address takes two."""
    instructions: list[Step] = []
    labels: dict[str, int] = {}
    for step in steps:
        if isinstance(step, str):
            labels[step] = len(instructions)
        else:
            instructions += [step._replace(source=1), Step(0)] if step.code == LOAD_MAP else [step]
    return b"".join(
        struct.pack(
            "<BBhi",
            code,
            source << 4 | to,
            labels[offset] - at - 1 if isinstance(offset, str) else offset,
            number,
        )
        for at, (code, to, source, offset, number) in enumerate(instructions)
    )


def bpf(command: int, attributes: bytes) -> int:
    """Return the result of the bpf system call; OSError if it fails."""
    block = ctypes.create_string_buffer(attributes, max(len(attributes), 128))
    return _checked(_LIBC.syscall(_number(0), command, block, len(block)), "bpf")


def make_map(kind: int, key_bytes: int, value_bytes: int, entries: int) -> int:
    """Return the file descriptor of a new map."""
    return bpf(_MAP_CREATE, struct.pack("<IIIII", kind, key_bytes, value_bytes, entries, 0))


def read_counter(descriptor: int) -> int:
    """Return the only value of an array map, of 64 bits."""
    key, value = ctypes.create_string_buffer(4), ctypes.create_string_buffer(8)
    bpf(_MAP_LOOKUP, struct.pack("<IIQQQ", descriptor, 0, ctypes.addressof(key), ctypes.addressof(value), 0))
    return int(struct.unpack("<Q", value.raw)[0])


def load_program(code: bytes) -> int:
    """Return the file descriptor of a verified program; OSError with the verifier's message otherwise."""
    licence, instructions = ctypes.create_string_buffer(b"GPL"), ctypes.create_string_buffer(code)
    log = ctypes.create_string_buffer(1 << 16)
    addresses = (ctypes.addressof(instructions), ctypes.addressof(licence))
    attributes = struct.pack(
        "<IIQQIIQ", _PROG_TRACEPOINT, len(code) // 8, *addresses, 1, len(log), ctypes.addressof(log)
    )
    try:
        return bpf(_PROG_LOAD, attributes)
    except OSError as error:
        message = log.value.decode(errors="replace")[-1000:]
        raise OSError(error.errno, f"{error.strerror}; message of the verifier: {message or 'none'}") from None


def attach(program: int, tracepoint: int) -> int:
    """Return a file descriptor; the program runs at the tracepoint, on all CPUs, until it is closed."""
    # type, size, config, sample_period = 1, sample_type, read_format, flags, wakeup_events = 1
    attributes = struct.pack("<IIQQQQQI", _PERF_TRACEPOINT, _PERF_ATTR_BYTES, tracepoint, 1, 0, 0, 0, 1)
    block = ctypes.create_string_buffer(attributes, _PERF_ATTR_BYTES)
    event = _checked(_LIBC.syscall(_number(1), block, -1, 0, -1, _CLOEXEC), "perf_event_open")
    fcntl.ioctl(event, _SET_BPF, program)
    fcntl.ioctl(event, _ENABLE, 0)
    return event


def read_tracepoint(group: str, name: str) -> tuple[int, Mapping[str, int]]:
    """Return the id of a tracepoint and the offsets of its fields."""
    folder = TRACEFS / "events" / group / name
    return int((folder / "id").read_text()), parse_format((folder / "format").read_text())


def parse_format(text: str) -> dict[str, int]:
    """Return offsets by field name, from a tracepoint's `format` file."""
    fields = re.findall(r"field:[^;]*?(\w+)(?:\[\w*\])?;\s*offset:(\d+);", text)
    return {name: int(offset) for name, offset in fields}


def ensure_tracefs() -> None:
    """Make tracefs readable for this process; if the machine has none, mount it in a separate mount namespace."""
    if (TRACEFS / "events").is_dir():
        return
    _checked(_LIBC.unshare(_CLONE_NEWNS), "unshare")
    _checked(_LIBC.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mount --make-rprivate /")
    _checked(_LIBC.mount(b"tracefs", bytes(TRACEFS), b"tracefs", 0, None), f"mount tracefs {TRACEFS}")


class Ring:
    """Reading end of a ring buffer whose records all have the same size."""

    def __init__(self, size_bytes: int) -> None:
        page = mmap.PAGESIZE
        self.descriptor = make_map(RING, 0, 0, size_bytes)
        self._mask = size_bytes - 1
        self._consumer = mmap.mmap(self.descriptor, page)
        # The data are mapped twice in a row, so that no record is cut at the end.
        self._producer = mmap.mmap(
            self.descriptor, page + 2 * size_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=page
        )

    def drain(self) -> bytes:
        """Return and free the finished records, each with its header of 8 bytes."""
        start = int.from_bytes(self._consumer[:8], "little")
        end = int.from_bytes(self._producer[:8], "little")
        at = mmap.PAGESIZE + (start & self._mask)
        data = self._producer[at : at + end - start]
        step = _BYTES + 8
        # The top bit of a header: still being written.
        busy = next((index for index in range(0, len(data), step) if data[index + 3] & 0x80), len(data))
        self._consumer[:8] = (start + busy).to_bytes(8, "little")
        return data[:busy]


def _number(index: int) -> int:
    machine = os.uname().machine
    if machine not in _CALLS:
        raise OSError(0, f"no system call numbers for {machine}; known: {', '.join(_CALLS)}")
    return _CALLS[machine][index]


def _checked(answer: int, what: str) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return answer


# --- The programs at tracepoints, and the process that reads their records.

# struct sock_common: skc_dport, big endian, followed by skc_num, the local port (include/net/sock.h).
_SOCK_PORTS = 12
_TCP = 6
_MSG_PEEK = 2
_NO_WAKEUP = 1
# The stack of `build_reads_program`, from its top: the record without header, the thread, a key.
_AT = {"at_ns": -24, "pid": -16, "returned": -12, "requested": -8, "ports": -4, "thread": -32, "key": -40}


def build_reads_program(
    fields: Mapping[str, int], ports: Iterable[int], pid: int, ring: int, requests: int, lost: int
) -> bytes:
    """Return the program at sock:sock_recv_length: one record per TCP read that consumed data from its socket."""
    return assemble(
        (
            Step(COPY, R6, R1),
            Step(CALL, number=PID_TGID),
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
            Step(CALL, number=PROBE_READ_KERNEL),
            Step(LOAD_2, R1, R10, _AT["ports"] + 2),
            *(Step(JUMP_EQUAL, R1, offset="mine", number=port) for port in ports),
            Step(JUMP, offset="out"),
            "mine",
            *_take_request(requests),
            Step(LOAD_4, R1, R6, fields["ret"]),
            Step(STORE_4, R10, R1, _AT["returned"]),
            Step(SHIFT_RIGHT, R7, number=32),
            Step(STORE_4, R10, R7, _AT["pid"]),
            Step(CALL, number=KTIME),
            Step(STORE_8, R10, R0, _AT["at_ns"]),
            Step(LOAD_MAP, R1, number=ring),
            *_stack(R2, "at_ns"),
            Step(SET, R3, number=_BYTES),
            Step(SET, R4, number=_NO_WAKEUP),
            Step(CALL, number=RING_OUTPUT),
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
        Step(CALL, number=UPDATE),
    )
    return assemble(
        (
            Step(COPY, R6, R1),
            Step(CALL, number=PID_TGID),
            Step(STORE_8, R10, R0, -8),
            *_unless_ours(pid),
            Step(LOAD_MAP, R1, number=requests),
            Step(COPY, R2, R10),
            Step(ADD, R2, number=-8),
            *([Step(CALL, number=DELETE)] if size is None else store_room),
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
        Step(CALL, number=LOOKUP),
        Step(JUMP_EQUAL, R0, offset="unknown", number=0),
        Step(LOAD_8, R1, R0),
        Step(STORE_4, R10, R1, _AT["requested"]),
        Step(LOAD_MAP, R1, number=requests),
        *_stack(R2, "thread"),
        Step(CALL, number=DELETE),
        "unknown",
    )


def _count(counters: int) -> tuple[Step, ...]:
    return (
        Step(STORE_NUMBER_4, R10, offset=_AT["key"], number=0),
        Step(LOAD_MAP, R1, number=counters),
        *_stack(R2, "key"),
        Step(CALL, number=LOOKUP),
        Step(JUMP_EQUAL, R0, offset="out", number=0),
        Step(SET, R1, number=1),
        Step(ATOMIC_ADD_8, R0, R1),
    )


def _stack(register: int, what: str) -> tuple[Step, ...]:
    return Step(COPY, register, R10), Step(ADD, register, number=_AT[what])


def start_tracing(ports: Iterable[int], pid: int) -> tuple[Ring, int]:
    """Start programs that run in the kernel until this process ends; return their records and the map of lost ones."""
    ensure_tracefs()
    ring, lost = Ring(_RING_BYTES), make_map(ARRAY, 4, 8, 1)
    requests = make_map(HASH, 8, 8, 1 << 16)
    # First the requests: a read whose request was not seen has an unknown one.
    for call, field in (("read", "count"), ("recvfrom", "size"), ("readv", ""), ("recvmsg", "")):
        number, offsets = read_tracepoint("syscalls", f"sys_enter_{call}")
        attach(load_program(build_request_program(offsets.get(field), pid, requests)), number)
    number, offsets = read_tracepoint("sock", "sock_recv_length")
    attach(load_program(build_reads_program(offsets, ports, pid, ring.descriptor, requests, lost)), number)
    return ring, lost


def main(ports: list[int], pid: int, path: Path) -> None:
    """Trace until the end of standard input."""
    ring, lost = start_tracing(ports, pid)
    clocks = [_clock()]
    with path.open("wb") as file:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            readable, _, _ = select.select([sys.stdin], [], [], _PERIOD_S)
            file.write(ring.drain())
            if readable and not sys.stdin.read(1):
                break
            if time.monotonic_ns() - clocks[-1][0] >= _CLOCK_PERIOD_NS:
                clocks.append(_clock())
    clocks.append(_clock())
    report = {"lost": read_counter(lost), "clocks": clocks}
    with suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()


def _clock() -> tuple[int, int]:
    """Return CLOCK_MONOTONIC and the lead of CLOCK_REALTIME over it: the latter may be set at any moment."""
    at_ns = time.monotonic_ns()
    return at_ns, time.time_ns() - at_ns


if __name__ == "__main__":
    main([int(port) for port in sys.argv[1].split(",")], int(sys.argv[2]), Path(sys.argv[3]))
