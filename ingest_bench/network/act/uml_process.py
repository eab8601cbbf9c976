"""A program that becomes User-Mode Linux, or its starter: opens packet sockets, and hides registers it has no room for.

    python uml_process.py [--without-xstate] DEVICE… -- ARGV…

Each "fd=@N" in ARGV is replaced by the descriptor number of the Nth device's packet socket.

User-Mode Linux before 6.13 has a buffer of 2,696 bytes for the registers of its processes (arch/x86/um/user-offsets.c,
HOST_FP_SIZE). A processor with AMX has 8 kB more, the kernel takes them only as a whole (arch/x86/kernel/fpu/regset.c,
xstateregs_set), and its first process ends in a panic. With `--without-xstate` the call PTRACE_GETREGSET fails for ARGV
and all its children. Then User-Mode Linux keeps the registers of x87 and SSE, which the older PTRACE_GETFPREGS has.
Nothing inside may use AVX (`link_plan.NO_AVX`), whose upper half is not kept.

It runs as a script inside a namespace, so it imports the standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import socket
import struct
import sys

# linux/socket.h, linux/if_packet.h, linux/if_ether.h and asm-generic/socket.h; Python 3.11 has no names for them.
SOL_PACKET = 263
PACKET_IGNORE_OUTGOING = 23
ETH_P_ALL = 0x0003
FORCED = {socket.SO_RCVBUF: 33, socket.SO_SNDBUF: 32}

# Frames that wait while the reader is not scheduled: 32 MiB are a quarter of a second at 1 Gbit/s. At the default of
# 208 KiB a reader on two busy cores lost up to 1% of the packets of a stream of 50 to 300 Mbit/s, with 32 MiB none.
BUFFER_BYTES = 1 << 25

# linux/prctl.h, linux/seccomp.h, linux/ptrace.h, linux/bpf_common.h, and the system call on x86_64.
_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER_MODE = 38, 22, 2
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_PTRACE, _GETREGSET = 101, 0x4204
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
# struct seccomp_data: the number of the call, and the lower half of its first argument.
_NUMBER, _FIRST_ARGUMENT = 0, 16
_INSTRUCTIONS = (
    (_LOAD, 0, 0, _NUMBER),
    (_JUMP_IF_EQUAL, 0, 3, _PTRACE),
    (_LOAD, 0, 0, _FIRST_ARGUMENT),
    (_JUMP_IF_EQUAL, 0, 1, _GETREGSET),
    (_RETURN, 0, 0, _FAIL | errno.EIO),
    (_RETURN, 0, 0, _ALLOW),
)


def packet_socket(device: str) -> socket.socket:
    """Open a socket that receives each frame arriving on the device, and sends such frames."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    opened.bind((device, ETH_P_ALL))
    opened.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    for option, forced in FORCED.items():
        try:
            opened.setsockopt(socket.SOL_SOCKET, forced, BUFFER_BYTES)
        except PermissionError:
            # An ordinary user gets what net.core.rmem_max and wmem_max allow.
            opened.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    return opened


def insert_socket_numbers(argv: list[str], numbers: list[int]) -> list[str]:
    """Return the argv with each "fd=@N" replaced; a path may contain an "@3.11"."""
    return [re.sub(r"\bfd=@(\d+)", lambda match: f"fd={numbers[int(match[1])]}", word) for word in argv]


def block_getregset() -> None:
    """Make PTRACE_GETREGSET fail with EIO for this process and all its children."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in _INSTRUCTIONS))
    program = struct.pack("HP", len(_INSTRUCTIONS), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value, pointer in ((_NO_NEW_PRIVS, 1, None), (_SET_SECCOMP, _FILTER_MODE, program)):
        if libc.prctl(option, value, pointer, 0, 0):
            sys.exit(f"prctl({option}): {os.strerror(ctypes.get_errno())}")


def main() -> None:
    """Open the sockets and exec ARGV; does not return."""
    split = sys.argv.index("--")
    devices = sys.argv[1:split]
    if devices[:1] == ["--without-xstate"]:
        block_getregset()
        del devices[0]
    sockets = [packet_socket(device) for device in devices]
    for opened in sockets:
        opened.setblocking(False)
        opened.set_inheritable(True)
    argv = insert_socket_numbers(sys.argv[split + 1 :], [opened.fileno() for opened in sockets])
    os.execvp(argv[0], argv)  # noqa: S606 - an argv that we built


if __name__ == "__main__":
    main()
