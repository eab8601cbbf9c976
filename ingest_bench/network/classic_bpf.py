"""Assemble classic BPF programs, which an ordinary user may load, and attach them to sockets.

A program is a list of instructions (code, jump if true, jump if false, value). A jump is the number of instructions to
skip, or a label of `assemble`. Offsets count from the Ethernet header; X is the index register, A the accumulator.
"""

from __future__ import annotations

import ctypes
import itertools
import socket
import struct
from collections.abc import Mapping, Sequence

Instruction = tuple[int, int, int, int]
LabelledInstruction = tuple[int, int | str, int | str, int]

# linux/bpf_common.h. Loads into A: from the frame, from the frame at X; the IP header's length into X.
LOAD_WORD, LOAD_HALF, LOAD_BYTE, LOAD_HALF_X, LOAD_BYTE_X = 0x20, 0x28, 0x30, 0x48, 0x50
LOAD_FRAME_LENGTH, LOAD_X_CONSTANT, LOAD_X_IP_HEADER_LENGTH = 0x80, 0x01, 0xB1
AND, SHIFT_RIGHT, ADD, ADD_X, SUBTRACT_X, COPY_TO_X, COPY_FROM_X = 0x54, 0x74, 0x04, 0x0C, 0x1C, 0x07, 0x87
JUMP_EQUAL, JUMP_ABOVE, JUMP_ABOVE_X, JUMP_AT_LEAST, JUMP_IF_BITS = 0x15, 0x25, 0x2D, 0x35, 0x45
RETURN, RETURN_A = 0x06, 0x16

# asm-generic/socket.h
_SO_ATTACH_FILTER = 26


def assemble(parts: Mapping[str, Sequence[LabelledInstruction]]) -> list[Instruction]:
    """Return the parts as one program, with jumps to their labels resolved."""
    labels = dict(zip(parts, itertools.accumulate(map(len, parts.values()), initial=0), strict=False))

    def resolve(target: int | str, position: int) -> int:
        return labels[target] - position - 1 if isinstance(target, str) else target

    instructions = itertools.chain.from_iterable(parts.values())
    return [
        (code, resolve(if_true, position), resolve(if_false, position), value)
        for position, (code, if_true, if_false, value) in enumerate(instructions)
    ]


def pack(program: Sequence[Instruction]) -> bytes:
    """Return the program as an array of `struct sock_filter` (linux/filter.h)."""
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def attach(opened: socket.socket, program: Sequence[Instruction]) -> None:
    """Attach the program to a socket, instead of the socket's present one."""
    code = ctypes.create_string_buffer(pack(program))
    argument = struct.pack("HP", len(program), ctypes.addressof(code))
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, argument)


def format_for_tc(program: Sequence[Instruction]) -> str:
    """Return the program as `tc filter … bpf bytecode` takes it."""
    return ",".join((str(len(program)), *(" ".join(map(str, instruction)) for instruction in program)))


def parse_tc_format(text: str) -> list[Instruction]:
    """Return the program from the output of `format_for_tc`."""
    instructions = (tuple(map(int, instruction.split())) for instruction in text.split(",")[1:])
    return [(code, if_true, if_false, value) for code, if_true, if_false, value in instructions]
