"""Become a command whose syncs of files are asked for: `supervised.py SOCKET COMMAND...`. The standard library alone.

A seccomp filter lets each fsync, fdatasync, msync and syncfs wait until whoever has its listener says go on
(seccomp_unotify(2)); every other call is as ever. The listener goes over the socket. The filter holds for all that the
command starts, for good. No privilege is needed, since nobody gains any by it (PR_SET_NO_NEW_PRIVS).
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys
from pathlib import Path

# asm/unistd.h of each architecture: its audit number, seccomp(2), and what is asked for.
MACHINES = {
    "x86_64": (0xC000003E, 317, {"fsync": 74, "fdatasync": 75, "msync": 26, "syncfs": 306}),
    "aarch64": (0xC00000B7, 277, {"fsync": 82, "fdatasync": 83, "msync": 227, "syncfs": 267}),
}
# linux/seccomp.h, linux/filter.h, linux/prctl.h
_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 1 << 3, 1 << 5
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NO_NEW_PRIVS = 38
_NUMBER_AT, _ARCH_AT = 0, 4


def program(machine: str) -> bytes:
    """The filter: who calls by another architecture's numbers is let through."""
    arch, _, calls = MACHINES[machine]
    lines = [(_LOAD, 0, 0, _ARCH_AT), (_IF_EQUAL, 0, len(calls) + 1, arch), (_LOAD, 0, 0, _NUMBER_AT)]
    lines += [(_IF_EQUAL, len(calls) - place, 0, number) for place, number in enumerate(calls.values())]
    lines += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _NOTIFY)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def listener() -> int:
    """The descriptor that tells of each such call of ours from now on; OSError where the kernel has none."""
    machine = os.uname().machine
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(program(machine), len(program(machine)))
    given = struct.pack("@HP", len(code) // 8, ctypes.addressof(code))
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    # Killable alone (Linux 5.19): a signal of the JVM's own would end the wait and begin it anew.
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER):
        found: int = libc.syscall(MACHINES[machine][1], _SET_MODE_FILTER, flags, given)
        if found >= 0:
            return found
        if ctypes.get_errno() != errno.EINVAL:
            break
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main(path: Path, command: list[str]) -> None:
    """Hand the listener over and become the command. A path longer than a socket's name may be is no matter."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as to:
        to.connect(f"/proc/self/fd/{folder}/{path.name}")
        own = listener()
        socket.send_fds(to, [b"!"], [own])
        # What was sent is taken before anything can wait for it.
        to.recv(1)
    os.close(own)
    os.execvp(command[0], command)  # noqa: S606 - a shell would be one program more


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
