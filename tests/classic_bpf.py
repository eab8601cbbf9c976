"""Run classic BPF programs in the kernel, as the filter of a socket."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from ingest_bench.network import classic_bpf


def keep(program: Sequence[classic_bpf.Instruction], frame: bytes) -> bytes:
    """Return the part of the frame that a socket with this filter receives; nothing if the filter drops it."""
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with sender, receiver:
        classic_bpf.attach(receiver, program)
        receiver.setblocking(False)
        sender.send(frame)
        try:
            return receiver.recv(1 << 17)
        except BlockingIOError:
            return b""
