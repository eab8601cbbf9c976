"""The command channel into a guest, with a shell or a fake one at the other end of two pipes."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest_bench.errors import RunFailed
from ingest_bench.network.act.console import Answer, Console, command_text


@pytest.fixture
def shell() -> Iterator[Console]:
    pipe = subprocess.PIPE
    with subprocess.Popen(("/bin/sh", "-i"), stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        console = Console(process.stdin.fileno(), process.stdout.fileno())
        console.greet(timeout_s=30)
        yield console
        process.kill()


def ask(console: Console, tmp_path: Path, *argv: str, stdin: str = "") -> Answer:
    return console.ask(argv, stdin=stdin, errors=str(tmp_path / "errors"))


def test_a_command_says_what_it_wrote_and_how_it_ended(shell: Console, tmp_path: Path) -> None:
    assert ask(shell, tmp_path, "printf", "no line end") == ("no line end", "", 0)
    assert ask(shell, tmp_path, "sh", "-c", "echo out; echo err >&2; exit 7") == ("out\n", "err\n", 7)
    assert ask(shell, tmp_path, "true") == ("", "", 0)


def test_each_word_arrives_as_it_is(shell: Console, tmp_path: Path) -> None:
    words = ("a b", "$HOME", "it's", '"', "*", "\\", "", "é")
    assert ask(shell, tmp_path, "printf", "%s|", *words).stdout == "|".join(words) + "|"


def test_the_standard_input_arrives_as_it_is_and_is_empty_without_one(shell: Console, tmp_path: Path) -> None:
    text = "qdisc $x `y`\n'\n\nlast"
    assert ask(shell, tmp_path, "cat", stdin=text).stdout == text + "\n"
    assert ask(shell, tmp_path, "cat") == ("", "", 0)


def test_a_large_answer_is_whole(shell: Console, tmp_path: Path) -> None:
    assert ask(shell, tmp_path, "seq", "50000").stdout == "".join(f"{number}\n" for number in range(1, 50001))


def test_a_shell_that_is_gone_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    argv = ("/bin/sh", "-c", "echo Kernel panic; exit 1")
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.wait()
        console = Console(process.stdin.fileno(), process.stdout.fileno())
        with pytest.raises(RunFailed, match="the shell is gone, it said: Kernel panic"):
            console.greet(timeout_s=30)
        with pytest.raises(RunFailed, match="tc qdisc: the shell is gone, it said: nothing"):
            ask(console, tmp_path, "tc", "qdisc")


def test_a_shell_that_missed_its_input_is_nudged_until_it_answers() -> None:
    to_shell, from_us = os.pipe()[::-1]
    to_us, from_shell = os.pipe()
    seen: list[bytes] = []

    def sleepy() -> None:
        """It sees the command only when something more comes, as User-Mode Linux does at times."""
        seen.append(os.read(from_us, 65536))
        seen.append(os.read(from_us, 1))
        mark = seen[0].split()[1].removesuffix(b"out;").decode()
        os.write(from_shell, f"{mark}out\nhere\n{mark}err\n{mark}0\n{mark}end\n".encode())

    thread = threading.Thread(target=sleepy)
    thread.start()
    try:
        answer = Console(to_shell, to_us, nudge_s=0.005).ask(("x",), errors="/dev/null", timeout_s=30)
    finally:
        thread.join()
        for end in (to_shell, from_us, to_us, from_shell):
            os.close(end)
    assert answer == ("here\n", "", 0)
    assert seen[1] == b"\n"


def test_no_answer_in_time_is_an_error_that_says_what_was_asked() -> None:
    to_shell, from_us = os.pipe()[::-1]
    to_us, from_shell = os.pipe()
    try:
        with pytest.raises(RunFailed, match=r"console: tc qdisc show: no end after 0\.02 s, it said: nothing"):
            Console(to_shell, to_us, nudge_s=0.005).ask(("tc", "qdisc", "show"), errors="/dev/null", timeout_s=0.02)
    finally:
        for end in (to_shell, from_us, to_us, from_shell):
            os.close(end)


def test_the_lines_that_a_shell_gets() -> None:
    assert command_text(("tc", "-batch", "-"), "qdisc show", "N:1:", "/run/errors") == (
        "echo N:1:out; tc -batch - 2>/run/errors <<'N:1:stdin'\n"
        "qdisc show\n"
        "N:1:stdin\n"
        "status=$?; echo N:1:err; [ -s /run/errors ] && cat /run/errors; echo N:1:$status; echo N:1:end\n"
    )
