"""Run a program for which PTRACE_GETREGSET fails: `without_xstate.py PROGRAM [ARGUMENT…]`. The standard library alone.

User-Mode Linux before 6.13 has a buffer of 2,696 bytes for the registers of its processes (arch/x86/um/user-offsets.c,
HOST_FP_SIZE). A processor with AMX has 8 kB more, the kernel takes them only whole (arch/x86/kernel/fpu/regset.c,
xstateregs_set), and its first process ends in a panic. Without that call it keeps the registers of x87 and SSE, which
the older PTRACE_GETFPREGS has. Nothing in the guest may use AVX then (`guest.NO_AVX`): that half is not kept.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

# linux/prctl.h, linux/seccomp.h, linux/ptrace.h, linux/bpf_common.h, and the system call on x86_64.
_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER_MODE = 38, 22, 2
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_PTRACE, _GETREGSET = 101, 0x4204
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
# struct seccomp_data: the number of the call, and the lower half of its first argument.
_NUMBER, _FIRST = 0, 16
STEPS = (
    (_LOAD, 0, 0, _NUMBER),
    (_JUMP_IF_EQUAL, 0, 3, _PTRACE),
    (_LOAD, 0, 0, _FIRST),
    (_JUMP_IF_EQUAL, 0, 1, _GETREGSET),
    (_RETURN, 0, 0, _FAIL | errno.EIO),
    (_RETURN, 0, 0, _ALLOW),
)


def refuse() -> None:
    """From here on the call fails with EIO, for this process and all that it starts."""
    steps = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in STEPS))
    program = struct.pack("HP", len(STEPS), ctypes.addressof(steps))
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value, more in ((_NO_NEW_PRIVS, 1, None), (_SET_SECCOMP, _FILTER_MODE, program)):
        if libc.prctl(option, value, more, 0, 0):
            sys.exit(f"prctl({option}): {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    refuse()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - its own argv
