"""A shell at the other end of two pipes, such as a guest's console: a command in, what it said and its status out.

A file that the guest polls was rejected: each command would take up to a whole poll longer, and it would need a place
on the host that both may write.
"""

from __future__ import annotations

import os
import secrets
import select
import shlex
import time
from typing import TYPE_CHECKING, NamedTuple

from ingest_bench.errors import RunFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

# User-Mode Linux 6.1 may miss that input arrived and sleep on: 4 of 260 commands hung for 10 s on a busy machine.
# One more byte woke it each time. An empty line is nothing to a shell. With it, 300 of 300 were answered.
NUDGE_S = 0.2
_LAST_WORDS = 2000


class Answer(NamedTuple):
    """What a command wrote, and its exit status."""

    stdout: str
    stderr: str
    status: int


class Console:
    """One shell, asked one thing at a time."""

    def __init__(self, to_shell: int, from_shell: int, *, nudge_s: float = NUDGE_S) -> None:
        self._to_shell = to_shell
        self._from_shell = from_shell
        self._nudge_s = nudge_s
        self._nonce = secrets.token_hex(8)
        self._asked = 0

    def greet(self, first: str = "true", *, timeout_s: float) -> str:
        """What was said until the shell had run its `first` line: a boot's messages, and that line's complaints.

        From here on the terminal gives back the shell's words only: no echo, no prompt, no line ends of its own.
        """
        # Typed in pieces, so that the terminal's echo of the command is no answer to it.
        self._send(f"PS1= PS2=; stty -echo -opost; {first}; echo '{self._nonce[:8]}''{self._nonce[8:]}:hello'\n")
        return self._until(f"{self._nonce}:hello\n", timeout_s, "its first answer")

    def ask(self, argv: Sequence[str], *, stdin: str = "", errors: str, timeout_s: float = 30) -> Answer:
        """What the command said. Its standard error waits in `errors`, a file that the shell may write."""
        self._asked += 1
        mark = f"{self._nonce}:{self._asked}:"
        self._send(command_text(argv, stdin, mark, errors))
        said = self._until(f"{mark}end\n", timeout_s, shlex.join(argv))
        _, _, answer = said.partition(f"{mark}out\n")
        stdout, _, rest = answer.partition(f"{mark}err\n")
        stderr, _, status = rest.rpartition(mark)
        try:
            return Answer(stdout, stderr, int(status))
        except ValueError:
            raise RunFailed(f"console: {shlex.join(argv)}: not an answer: {said[-_LAST_WORDS:]!r}") from None

    def _send(self, text: str) -> None:
        left = memoryview(text.encode())
        try:
            while left:
                left = left[os.write(self._to_shell, left) :]
        except BrokenPipeError:
            pass  # its last words are still to be read

    def _until(self, end: str, timeout_s: float, what: str) -> str:
        wanted, said = end.encode(), b""
        deadline = time.monotonic() + timeout_s
        while wanted not in said:
            if time.monotonic() > deadline:
                raise RunFailed(f"console: {what}: no end after {timeout_s:g} s, it said: {_words(said)}")
            readable, _, _ = select.select([self._from_shell], [], [], self._nudge_s)
            if not readable:
                self._send("\n")
                continue
            block = os.read(self._from_shell, 65536)
            if not block:
                raise RunFailed(f"console: {what}: the shell is gone, it said: {_words(said)}")
            said += block
        return said.partition(wanted)[0].decode(errors="replace")


def command_text(argv: Sequence[str], stdin: str, mark: str, errors: str) -> str:
    """The lines that have a shell run `argv` and frame what it said with marks."""
    file = shlex.quote(errors)
    here = f" <<'{mark}stdin'\n{_whole_lines(stdin)}{mark}stdin\n" if stdin else " </dev/null\n"
    return (
        f"echo {mark}out; {shlex.join(argv)} 2>{file}{here}"
        f"status=$?; echo {mark}err; [ -s {file} ] && cat {file}; echo {mark}$status; echo {mark}end\n"
    )


def _whole_lines(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


def _words(said: bytes) -> str:
    return said[-_LAST_WORDS:].decode(errors="replace").strip() or "nothing"
