"""The kernel's interpreter of classic BPF, as linux/filter.h has it: returns the result of a program for a frame."""

from __future__ import annotations

from collections.abc import Sequence

# How many bytes each of them loads.
_LOADS = {0x20: 4, 0x28: 2, 0x30: 1, 0x48: 2, 0x50: 1, 0xB1: 1}


def returned(steps: Sequence[Sequence[int]], frame: bytes) -> int:  # noqa: C901, PLR0912, PLR0915 - a case for each one
    """A program is steps of (operation, jump if true, jump if false, value). A load from behind the end returns 0."""
    a = x = at = 0
    while True:
        operation, yes, no, value = steps[at]
        at += 1
        if operation in _LOADS and value + (x if operation in (0x48, 0x50) else 0) + _LOADS[operation] > len(frame):
            return 0
        match operation:
            case 0x20:
                a = int.from_bytes(frame[value : value + 4], "big")
            case 0x28:
                a = int.from_bytes(frame[value : value + 2], "big")
            case 0x30:
                a = frame[value]
            case 0x48:
                a = int.from_bytes(frame[x + value : x + value + 2], "big")
            case 0x50:
                a = frame[x + value]
            case 0x80:
                a = len(frame)
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
                a = (a - x) % 2**32
            case 0x25:
                at += yes if a > value else no
            case 0x2D:
                at += yes if a > x else no
            case 0x35:
                at += yes if a >= value else no
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
