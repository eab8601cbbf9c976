"""The bpf system call, as far as a probe needs it: maps, programs on tracepoints, a ring buffer. No compiler.

Numbers are of include/uapi/linux/bpf.h and perf_event.h. Needs root, or CAP_BPF, CAP_PERFMON and a readable tracefs.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

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

# Registers, and the instructions in use: class | operation | source.
R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 = range(11)
_ADD, _AND, _RSH, _MOV, _MOV_REG = 0x07, 0x57, 0x77, 0xB7, 0xBF
_LOAD = {2: 0x69, 4: 0x61, 8: 0x79}
_STORE = {2: 0x6B, 4: 0x63, 8: 0x7B}
_STORE_NUMBER = {4: 0x62, 8: 0x7A}
_JUMP, _JUMP_EQ, _JUMP_NE, _CALL, _EXIT, _ATOMIC_ADD, _LOAD_MAP = 0x05, 0x15, 0x55, 0x85, 0x95, 0xDB, 0x18
LOOKUP, UPDATE, DELETE, KTIME, PID_TGID, PROBE_READ_KERNEL, RING_OUTPUT = 1, 2, 3, 5, 14, 113, 130


class Assembler:
    """A program in the making; each method appends one instruction (a map's address takes two)."""

    def __init__(self) -> None:
        self._code: list[list[int]] = []
        self._labels: dict[str, int] = {}
        self._jumps: list[tuple[int, str]] = []

    def _op(self, code: int, to: int = 0, source: int = 0, offset: int = 0, number: int = 0) -> None:
        self._code.append([code, to, source, offset, number])

    def copy(self, to: int, source: int) -> None:
        """To = source."""
        self._op(_MOV_REG, to, source)

    def put(self, to: int, number: int) -> None:
        """To = number."""
        self._op(_MOV, to, number=number)

    def add(self, to: int, number: int) -> None:
        """To += number."""
        self._op(_ADD, to, number=number)

    def mask(self, to: int, number: int) -> None:
        """To &= number."""
        self._op(_AND, to, number=number)

    def shift_right(self, to: int, bits: int) -> None:
        """To >>= bits."""
        self._op(_RSH, to, number=bits)

    def load(self, size: int, to: int, base: int, offset: int) -> None:
        """To = *(size bytes at base + offset)."""
        self._op(_LOAD[size], to, base, offset)

    def store(self, size: int, base: int, offset: int, source: int) -> None:
        """*(size bytes at base + offset) = source."""
        self._op(_STORE[size], base, source, offset)

    def store_number(self, size: int, base: int, offset: int, number: int) -> None:
        """*(size bytes at base + offset) = number."""
        self._op(_STORE_NUMBER[size], base, 0, offset, number)

    def atomic_add(self, base: int, source: int) -> None:
        """*(8 bytes at base) += source, whatever other CPUs do."""
        self._op(_ATOMIC_ADD, base, source)

    def map(self, to: int, descriptor: int) -> None:
        """To = the map behind this file descriptor."""
        self._op(_LOAD_MAP, to, 1, 0, descriptor)
        self._op(0)

    def call(self, helper: int) -> None:
        """r0 = helper(r1 … r5); r1 to r5 are lost."""
        self._op(_CALL, number=helper)

    def jump(self, label: str) -> None:
        """To the label."""
        self._jumps.append((len(self._code), label))
        self._op(_JUMP)

    def jump_if_equal(self, register: int, number: int, label: str) -> None:
        """To the label when register == number."""
        self._jumps.append((len(self._code), label))
        self._op(_JUMP_EQ, register, number=number)

    def jump_unless_equal(self, register: int, number: int, label: str) -> None:
        """To the label when register != number."""
        self._jumps.append((len(self._code), label))
        self._op(_JUMP_NE, register, number=number)

    def label(self, name: str) -> None:
        """The name of the next instruction."""
        self._labels[name] = len(self._code)

    def leave(self) -> None:
        """Return 0: the event goes on to whoever else traces it."""
        self.put(R0, 0)
        self._op(_EXIT)

    def code(self) -> bytes:
        """The program's instructions, jumps resolved."""
        for at, label in self._jumps:
            self._code[at][3] = self._labels[label] - at - 1
        return b"".join(
            struct.pack("<BBhi", code, source << 4 | to, offset, number)
            for code, to, source, offset, number in self._code
        )


def bpf(command: int, attributes: bytes) -> int:
    """The answer of the bpf system call; OSError otherwise."""
    block = ctypes.create_string_buffer(attributes, max(len(attributes), 128))
    return _checked(_LIBC.syscall(_number(0), command, block, len(block)), "bpf")


def make_map(kind: int, key_bytes: int, value_bytes: int, entries: int) -> int:
    """A file descriptor of a new map."""
    return bpf(_MAP_CREATE, struct.pack("<IIIII", kind, key_bytes, value_bytes, entries, 0))


def array_value(descriptor: int, index: int) -> int:
    """A 64-bit value of an array map."""
    key, value = ctypes.create_string_buffer(struct.pack("<I", index), 4), ctypes.create_string_buffer(8)
    bpf(_MAP_LOOKUP, struct.pack("<IIQQQ", descriptor, 0, ctypes.addressof(key), ctypes.addressof(value), 0))
    return int(struct.unpack("<Q", value.raw)[0])


def load(code: bytes) -> int:
    """A file descriptor of a program that the kernel has verified; OSError with the verifier's words otherwise."""
    licence, instructions = ctypes.create_string_buffer(b"GPL"), ctypes.create_string_buffer(code)
    log = ctypes.create_string_buffer(1 << 16)
    addresses = (ctypes.addressof(instructions), ctypes.addressof(licence))
    attributes = struct.pack(
        "<IIQQIIQ", _PROG_TRACEPOINT, len(code) // 8, *addresses, 1, len(log), ctypes.addressof(log)
    )
    try:
        return bpf(_PROG_LOAD, attributes)
    except OSError as error:
        said = log.value.decode(errors="replace")[-1000:]
        raise OSError(error.errno, f"{error.strerror}; the verifier said: {said or 'nothing'}") from None


def attach(program: int, tracepoint: int) -> int:
    """A file descriptor; the program runs at the tracepoint, on all CPUs, until it is closed."""
    # type, size, config, sample_period = 1, sample_type, read_format, flags, wakeup_events = 1
    attributes = struct.pack("<IIQQQQQI", _PERF_TRACEPOINT, _PERF_ATTR_BYTES, tracepoint, 1, 0, 0, 0, 1)
    block = ctypes.create_string_buffer(attributes, _PERF_ATTR_BYTES)
    event = _checked(_LIBC.syscall(_number(1), block, -1, 0, -1, _CLOEXEC), "perf_event_open")
    fcntl.ioctl(event, _SET_BPF, program)
    fcntl.ioctl(event, _ENABLE, 0)
    return event


def tracepoint(group: str, name: str) -> tuple[int, Mapping[str, int]]:
    """The id of a tracepoint and the offsets of its fields."""
    folder = TRACEFS / "events" / group / name
    return int((folder / "id").read_text()), parse_format((folder / "format").read_text())


def parse_format(text: str) -> dict[str, int]:
    """Offsets by field name, from a tracepoint's `format` file."""
    offsets = {}
    for line in text.splitlines():
        if line.strip().startswith("field:"):
            parts = dict(part.split(":", 1) for part in line.strip().split(";") if ":" in part)
            parts = {key.strip(): value for key, value in parts.items()}
            offsets[parts["field"].split()[-1].partition("[")[0]] = int(parts["offset"])
    return offsets


def find_tracefs() -> None:
    """Makes tracefs readable for this process: mounted in a mount namespace of its own where the machine has none."""
    if (TRACEFS / "events").is_dir():
        return
    _checked(_LIBC.unshare(_CLONE_NEWNS), "unshare")
    _checked(_LIBC.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mount --make-rprivate /")
    _checked(_LIBC.mount(b"tracefs", bytes(TRACEFS), b"tracefs", 0, None), f"mount tracefs {TRACEFS}")


class Ring:
    """The reading end of a ring buffer whose records are all of one size."""

    def __init__(self, size_bytes: int) -> None:
        page = mmap.PAGESIZE
        self.descriptor = make_map(RING, 0, 0, size_bytes)
        self._mask = size_bytes - 1
        self._consumer = mmap.mmap(self.descriptor, page)
        # The data lie twice behind each other, so that no record is cut at the end.
        self._producer = mmap.mmap(
            self.descriptor, page + 2 * size_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=page
        )

    def take(self, record_bytes: int) -> bytes:
        """Finished records, each with its header of 8 bytes, and their room given back."""
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
