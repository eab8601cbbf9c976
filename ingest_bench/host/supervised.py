"""Exec a command with its fsync-family calls trapped by seccomp: `supervised.py SOCKET COMMAND...`.

Standard library only. The seccomp filter suspends each fsync, fdatasync, msync and syncfs until the supervisor (see
`sync_supervisor.py`) answers its notification (seccomp_unotify(2)); other calls are unaffected. The listener's
descriptor is sent over the socket. The filter is permanent and inherited by everything that the command starts. It
requires no privilege, because the command can gain none (PR_SET_NO_NEW_PRIVS).
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys
from pathlib import Path

# asm/unistd.h of each architecture: its audit number, seccomp(2), and the trapped calls.
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


def build_filter(machine: str) -> bytes:
    """Return the filter as classic BPF. Calls by another architecture's numbers are allowed."""
    arch, _, calls = MACHINES[machine]
    lines = [(_LOAD, 0, 0, _ARCH_AT), (_IF_EQUAL, 0, len(calls) + 1, arch), (_LOAD, 0, 0, _NUMBER_AT)]
    lines += [(_IF_EQUAL, len(calls) - place, 0, number) for place, number in enumerate(calls.values())]
    lines += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _NOTIFY)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def install_filter() -> int:
    """Install the filter in this process and return its listener's descriptor; raise OSError if that fails."""
    machine = os.uname().machine
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(build_filter(machine), len(build_filter(machine)))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(code))
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    # WAIT_KILLABLE (Linux 5.19): otherwise a signal of the JVM's own would restart the wait.
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER):
        listener: int = libc.syscall(MACHINES[machine][1], _SET_MODE_FILTER, flags, program)
        if listener >= 0:
            return listener
        if ctypes.get_errno() != errno.EINVAL:
            break
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main(path: Path, command: list[str]) -> None:
    """Send the listener to the socket at *path*, which may be longer than sun_path, and exec the command."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as supervisor:
        supervisor.connect(f"/proc/self/fd/{folder}/{path.name}")
        listener = install_filter()
        socket.send_fds(supervisor, [b"!"], [listener])
        # The supervisor must have the listener before the first call waits for it.
        supervisor.recv(1)
    os.close(listener)
    os.execvp(command[0], command)  # noqa: S606 - a shell would be one program more


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
