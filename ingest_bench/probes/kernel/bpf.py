"""Bindings of the bpf system call: maps, programs on tracepoints, a ring buffer. No compiler.

Constants are from include/uapi/linux/bpf.h and perf_event.h. Requires root, or CAP_BPF, CAP_PERFMON and a readable
tracefs.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


def read_array_value(descriptor: int, index: int) -> int:
    """Return a 64-bit value of an array map."""
    key, value = ctypes.create_string_buffer(struct.pack("<I", index), 4), ctypes.create_string_buffer(8)
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

    def drain(self, record_bytes: int) -> bytes:
        """Return and free the finished records, each with its header of 8 bytes."""
        start = int.from_bytes(self._consumer[:8], "little")
        end = int.from_bytes(self._producer[:8], "little")
        at = mmap.PAGESIZE + (start & self._mask)
        data = self._producer[at : at + end - start]
        step = record_bytes + 8
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
