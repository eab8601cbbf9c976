"""The console of User-Mode Linux, with a shell or a fake one at the other end of two pipes."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ingest_bench.errors import RunFailed
from ingest_bench.network.act.uml import Console


@contextmanager
def start_shell(stderr_file: Path, *argv: str) -> Iterator[tuple[subprocess.Popen[bytes], Console]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(("/bin/sh", *argv), stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process, Console(process.stdin.fileno(), process.stdout.fileno(), stderr_file=str(stderr_file))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Console]:
    with start_shell(tmp_path / "stderr", "-i") as (process, console):
        console.wait_until_ready(timeout_s=30)
        yield console
        process.kill()


@pytest.fixture
def pipes() -> Iterator[tuple[int, int, int, int]]:
    """Yield both ends of the console's input and output: (from_us, to_shell, to_us, from_shell)."""
    descriptors = (*os.pipe(), *os.pipe())
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)


def test_command_returns_its_output_and_status(shell: Console) -> None:
    assert shell.read_reply(("printf", "no line end")) == ("no line end", "", 0)
    assert shell.read_reply(("sh", "-c", "echo out; echo err >&2; exit 7")) == ("out\n", "err\n", 7)
    assert shell.read_reply(("true",)) == ("", "", 0)
    assert shell.read_reply(("seq", "50000"))[0] == "".join(f"{number}\n" for number in range(1, 50001))


def test_arguments_and_input_arrive_unchanged(shell: Console) -> None:
    words = ("a b", "$HOME", "it's", '"', "*", "\\", "", "é")
    assert shell.read_reply(("printf", "%s|", *words))[0] == "|".join(words) + "|"
    text = "qdisc $x `y`\n'\n\nlast"
    assert shell.read_reply(("cat",), stdin=text)[0] == text + "\n"
    assert shell.read_reply(("cat",)) == ("", "", 0)


def test_shell_that_exited_is_reported_with_its_output(tmp_path: Path) -> None:
    with start_shell(tmp_path / "stderr", "-c", "echo Kernel panic; exit 1") as (process, console):
        process.wait()
        with pytest.raises(RunFailed, match=r"the shell exited\. Output: Kernel panic"):
            console.wait_until_ready(timeout_s=30)
        with pytest.raises(RunFailed, match=r"tc qdisc: the shell exited\. Output: nothing"):
            console.read_reply(("tc", "qdisc"))


def test_shell_that_missed_its_input_is_woken_by_an_empty_line(pipes: tuple[int, int, int, int]) -> None:
    from_us, to_shell, to_us, from_shell = pipes
    received: list[bytes] = []

    def reply_late() -> None:
        """Handle the command only when more input arrives, as User-Mode Linux sometimes does."""
        received.append(os.read(from_us, 65536))
        received.append(os.read(from_us, 1))
        mark = received[0].split()[1].removesuffix(b"out;").decode()
        os.write(from_shell, f"{mark}out\ntext\n{mark}err\n{mark}0\n{mark}end\n".encode())

    thread = threading.Thread(target=reply_late)
    thread.start()
    try:
        reply = Console(to_shell, to_us, nudge_s=0.005).read_reply(("x",))
    finally:
        thread.join()
    assert reply == ("text\n", "", 0)
    assert received[1] == b"\n"


def test_timeout_names_the_command(pipes: tuple[int, int, int, int]) -> None:
    _, to_shell, to_us, _ = pipes
    console = Console(to_shell, to_us, nudge_s=0.005)
    with pytest.raises(RunFailed, match=r"console: tc qdisc show: timed out after 0\.02 s\. Output: nothing"):
        console.read_reply(("tc", "qdisc", "show"), timeout_s=0.02)
