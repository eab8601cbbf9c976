"""A program that becomes User-Mode Linux, or what starts it: with packet sockets, and registers that it has room for.

    python guest_process.py [--without-xstate] DEVICE… -- ARGV…

ARGV has a packet socket for each device: each "fd=@N" in it has the socket's number of the Nth one then.

User-Mode Linux before 6.13 has a buffer of 2,696 bytes for the registers of its processes (arch/x86/um/user-offsets.c,
HOST_FP_SIZE). A processor with AMX has 8 kB more, the kernel takes them only whole (arch/x86/kernel/fpu/regset.c,
xstateregs_set), and its first process ends in a panic. `--without-xstate`: for ARGV and all that it starts the call
PTRACE_GETREGSET fails. Then it keeps the registers of x87 and SSE, which the older PTRACE_GETFPREGS has. Nothing in the
guest may use AVX (`guest.NO_AVX`): that half is not kept.

It runs by itself inside a namespace, so it imports nothing of ours.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import socket
import struct
import sys

# linux/socket.h, linux/if_packet.h, linux/if_ether.h and asm-generic/socket.h; Python 3.11 names none of them.
SOL_PACKET = 263
PACKET_IGNORE_OUTGOING = 23
ETH_P_ALL = 0x0003
FORCED = {socket.SO_RCVBUF: 33, socket.SO_SNDBUF: 32}

# Frames that wait while the reader is not scheduled: 32 MiB are a quarter of a second at 1 Gbit/s. At the default of
# 208 KiB a reader on two busy cores lost up to 1% of the packets of a stream of 50 to 300 Mbit/s, here none.
BUFFER_BYTES = 1 << 25

# linux/prctl.h, linux/seccomp.h, linux/ptrace.h, linux/bpf_common.h, and the system call on x86_64.
_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER_MODE = 38, 22, 2
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_PTRACE, _GETREGSET = 101, 0x4204
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
# struct seccomp_data: the number of the call, and the lower half of its first argument.
_NUMBER, _FIRST = 0, 16
_STEPS = (
    (_LOAD, 0, 0, _NUMBER),
    (_JUMP_IF_EQUAL, 0, 3, _PTRACE),
    (_LOAD, 0, 0, _FIRST),
    (_JUMP_IF_EQUAL, 0, 1, _GETREGSET),
    (_RETURN, 0, 0, _FAIL | errno.EIO),
    (_RETURN, 0, 0, _ALLOW),
)


def packet_socket(device: str) -> socket.socket:
    """A socket that takes each whole frame that comes in on the device, and sends such frames."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    made.bind((device, ETH_P_ALL))
    made.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    for option, forced in FORCED.items():
        try:
            made.setsockopt(socket.SOL_SOCKET, forced, BUFFER_BYTES)
        except PermissionError:
            # An ordinary user gets what net.core.rmem_max and wmem_max allow.
            made.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    return made


def with_numbers(argv: list[str], numbers: list[int]) -> list[str]:
    """The argv with each "fd=@N" replaced; a path may have an "@3.11" of its own."""
    return [re.sub(r"\bfd=@(\d+)", lambda found: f"fd={numbers[int(found[1])]}", word) for word in argv]


def refuse_xstate() -> None:
    """From here on the call fails with EIO, for this process and all that it starts."""
    steps = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in _STEPS))
    program = struct.pack("HP", len(_STEPS), ctypes.addressof(steps))
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value, more in ((_NO_NEW_PRIVS, 1, None), (_SET_SECCOMP, _FILTER_MODE, program)):
        if libc.prctl(option, value, more, 0, 0):
            sys.exit(f"prctl({option}): {os.strerror(ctypes.get_errno())}")


def main() -> None:
    """Does not return."""
    split = sys.argv.index("--")
    devices = sys.argv[1:split]
    if devices[:1] == ["--without-xstate"]:
        refuse_xstate()
        del devices[0]
    sockets = [packet_socket(device) for device in devices]
    for made in sockets:
        made.setblocking(False)
        made.set_inheritable(True)
    argv = with_numbers(sys.argv[split + 1 :], [made.fileno() for made in sockets])
    os.execvp(argv[0], argv)  # noqa: S606 - an argv that we built


if __name__ == "__main__":
    main()
