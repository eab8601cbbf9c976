"""Filters at the receiving end of a link, in which packets vanish without a word. Pure.

At the receiver, because what is dropped on the sender's own egress is reported to the sender. Classic BPF, because an
ordinary user may load it, and because a kernel without cls_matchall or act_gact has it too.
"""

from __future__ import annotations

import socket
from typing import Literal

Lines = tuple[str, ...]
What = Literal["all", "data"] | int

_LOAD_WORD, _LOAD_HALF, _LOAD_BYTE, _LOAD_BYTE_X = 0x20, 0x28, 0x30, 0x50
_LOAD_X_HEADER_LENGTH, _COPY_TO_X = 0xB1, 0x07
_AND, _SHIFT_RIGHT, _ADD_X, _SUBTRACT_X = 0x54, 0x74, 0x0C, 0x1C
_JUMP_EQUAL, _JUMP_ABOVE, _RETURN = 0x15, 0x25, 0x06
# linux/pkt_cls.h: TC_ACT_SHOT drops, TC_ACT_UNSPEC (-1) asks the next filter.
_SHOT, _UNSPECIFIED = 2, 0xFFFFFFFF
_IPV4, _TCP = 0x0800, 6
# Offsets in an Ethernet frame with IPv4 in it.
_ETHER_TYPE_AT, _IP_AT = 12, 14
_TOTAL_LENGTH_AT, _PROTOCOL_AT, _DESTINATION_AT = _IP_AT + 2, _IP_AT + 9, _IP_AT + 16
_TCP_HEADER_LENGTH_AT = _IP_AT + 12  # after the IP header, whose length is in X

_Step = tuple[int, int | str, int | str, int]


def swallow(device: str, address: str, what: What, preference: int) -> Lines:
    """The lines of `tc -batch` after which packets to that address vanish as they come in.

    `what`: "all"; "data", TCP segments that carry data, so that a handshake and bare acknowledgements pass; or the
    largest number of bytes that an IP packet may have and pass. The device needs a clsact.
    """
    code = bytecode(address, what)
    return (f"filter add dev {device} ingress pref {preference} protocol ip bpf da bytecode '{code}'",)


def spare(device: str, preference: int) -> Lines:
    """The end of a `swallow` with that preference."""
    return (f"filter del dev {device} ingress pref {preference}",)


def bytecode(address: str, what: What, *, found: int = _SHOT, others: int = _UNSPECIFIED) -> str:
    """The program, as tc takes it: what it says of a packet that vanishes, and of any other."""
    number = int.from_bytes(socket.inet_aton(address), "big")
    steps: list[_Step] = [
        (_LOAD_HALF, 0, 0, _ETHER_TYPE_AT),
        (_JUMP_EQUAL, 0, "pass", _IPV4),
        (_LOAD_WORD, 0, 0, _DESTINATION_AT),
        (_JUMP_EQUAL, 0, "pass", number),
    ]
    if isinstance(what, int):
        steps += [(_LOAD_HALF, 0, 0, _TOTAL_LENGTH_AT), (_JUMP_ABOVE, "drop", "pass", what)]
    elif what == "data":
        steps += [
            (_LOAD_BYTE, 0, 0, _PROTOCOL_AT),
            (_JUMP_EQUAL, 0, "pass", _TCP),
            (_LOAD_X_HEADER_LENGTH, 0, 0, _IP_AT),
            (_LOAD_BYTE_X, 0, 0, _TCP_HEADER_LENGTH_AT),
            (_AND, 0, 0, 0xF0),
            (_SHIFT_RIGHT, 0, 0, 2),
            (_ADD_X, 0, 0, 0),
            (_COPY_TO_X, 0, 0, 0),
            (_LOAD_HALF, 0, 0, _TOTAL_LENGTH_AT),
            # A super-packet of more than 64 KiB has no length here (BIG TCP): data, too.
            (_JUMP_EQUAL, "drop", 0, 0),
            (_SUBTRACT_X, 0, 0, 0),
            (_JUMP_EQUAL, "pass", 0, 0),
        ]
    ends = {"drop": len(steps), "pass": len(steps) + 1}
    steps += [(_RETURN, 0, 0, found), (_RETURN, 0, 0, others)]

    def jump(where: int | str, at: int) -> int:
        return ends[where] - at - 1 if isinstance(where, str) else where

    lines = [f"{code} {jump(yes, at)} {jump(no, at)} {value}" for at, (code, yes, no, value) in enumerate(steps)]
    return f"{len(lines)},{','.join(lines)}"
