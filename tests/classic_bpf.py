"""The kernel's interpreter of classic BPF, as linux/filter.h has it: what a program of ours returns of a frame."""

from __future__ import annotations

from collections.abc import Sequence


def returned(steps: Sequence[Sequence[int]], frame: bytes) -> int:  # noqa: C901, PLR0912 - a case for each instruction
    """A program is steps of (operation, jump if true, jump if false, value)."""
    a = x = at = 0
    while True:
        operation, yes, no, value = steps[at]
        at += 1
        match operation:
            case 0x20:
                a = int.from_bytes(frame[value : value + 4], "big")
            case 0x28:
                a = int.from_bytes(frame[value : value + 2], "big")
            case 0x30:
                a = frame[value]
            case 0x50:
                a = frame[x + value]
            case 0xB1:
                x = (frame[value] & 0xF) * 4
            case 0x01:
                x = value
            case 0x07:
                x = a
            case 0x87:
                a = x
            case 0x54:
                a &= value
            case 0x74:
                a >>= value
            case 0x04:
                a += value
            case 0x0C:
                a += x
            case 0x1C:
                a -= x
            case 0x25:
                at += yes if a > value else no
            case 0x15:
                at += yes if a == value else no
            case 0x45:
                at += yes if a & value else no
            case 0x16:
                return a
            case 0x06:
                return value
            case _:
                raise AssertionError(operation)
