"""An OutOfMemoryError is found in whatever the JVM left of it, and heap and direct memory are told apart."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from ingest_bench.probes.oom import OutOfMemory, find_oom

# Java 11 to 25, as they wrote it.
CRASH = "#\n#  Internal Error (debug.cpp:289), pid=18895, tid=18896\n#  fatal error: OutOfMemory encountered: {}\n#\n"
THROWN = "[2.485s][info][exceptions] Exception <a 'java/lang/OutOfMemoryError'{{0x00000000fd303f88}}: {}>\n"
DIRECT = "Cannot reserve 1048576 bytes of direct buffer memory (allocated: 32538623, limit: 33554432)"
NETTY = "failed to allocate 16777216 byte(s) of direct memory (used: 1056964615, max: 1065353216)"


def find(raw: Path, log: Path | None = None) -> OutOfMemory:
    error = find_oom(raw, log)
    assert error is not None
    return error


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Java heap space", "heap"),
        ("GC overhead limit exceeded", "heap"),
        ("Requested array size exceeds VM limit", "heap"),
        ("Metaspace", "metaspace"),
        ("Compressed class space", "metaspace"),
        ("Something new", "other"),
    ],
)
def test_kind_is_read_from_the_error_file(text: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "hs_err.log").write_text(CRASH.format(text))
    error = find(tmp_path)
    assert (error.kind, error.text, error.source) == (kind, text, "hs_err.log")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("java/lang/OutOfMemoryError", "Direct buffer memory"),
        ("java/lang/OutOfMemoryError", DIRECT),
        ("io/netty/util/internal/OutOfDirectMemoryError", NETTY),
    ],
)
def test_caught_error_is_found_in_the_exceptions_log(error: str, text: str, tmp_path: Path) -> None:
    other = "[0.1s][info][exceptions] Exception <a 'java/lang/X'{0x0}: heap>\n"
    (tmp_path / "exceptions.log").write_text(f"{other}[9s][info][exceptions] Exception <a '{error}'{{0x1}}: {text}>\n")
    os.utime(tmp_path / "exceptions.log", (1.5, 1.5))
    assert find_oom(tmp_path) == OutOfMemory(kind="direct", text=text, source="exceptions.log", at_ns=1500 * 10**6)


def test_time_is_that_of_the_log_line(tmp_path: Path) -> None:
    (tmp_path / "exceptions.log").write_text("[2026-11-22T07:38:46.274+0000]" + THROWN.format(DIRECT))
    assert find(tmp_path).at_ns == 1795333126_274_000_000


def test_error_without_a_message_gets_the_kind_of_a_later_one(tmp_path: Path) -> None:
    lines = (
        "[2026-11-22T07:38:46.274+0000][info] Exception <a 'java/lang/OutOfMemoryError'{0x1}> (0x1)",
        "[2026-11-22T07:38:47.000+0000][info] Exception <a 'java/lang/OutOfMemoryError'{0x2}: Java heap space> (0x2)",
    )
    (tmp_path / "exceptions.log").write_text("\n".join(lines))
    error = find(tmp_path)
    assert (error.kind, error.text, error.at_ns) == ("heap", "Java heap space", 1795333126_274_000_000)


def test_log_of_the_server_is_read_last(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(f'Exception in thread "main" java.lang.OutOfMemoryError: {DIRECT}\n\tat java.base/java.nio.Bits\n')
    os.utime(log, (3, 3))
    assert find_oom(tmp_path, log) == OutOfMemory(kind="direct", text=DIRECT, source="server.log", at_ns=3 * 10**9)


def test_other_crash_is_not_out_of_memory(tmp_path: Path) -> None:
    (tmp_path / "hs_err.log").write_text("#\n#  SIGSEGV (0xb) at pc=0x00007f, pid=1, tid=2\n#\n")
    (tmp_path / "exceptions.log").write_text("[1s][info][exceptions] Exception <a 'java/io/IOException'{0x0}: x>\n")
    assert find_oom(tmp_path, tmp_path / "no.log") is None


def test_other_exception_with_the_same_message_is_ignored(tmp_path: Path) -> None:
    text = THROWN.format("Java heap space")
    parsing = f"[2026-11-22T07:38:46.274+0000][info][exceptions] Exception <a 'a/ParseException'{{0x1}}: near {text}"
    (tmp_path / "exceptions.log").write_text(parsing + f"near {text}")
    assert find_oom(tmp_path) is None


def test_long_line_is_shortened(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with log.open("wb") as file:
        file.write(bytes(1 << 20))
        file.write(b"\njava.lang.OutOfMemoryError: Java heap space" + b"!" * 100_000)
    tracemalloc.start()
    try:
        error = find(tmp_path, log)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (error.kind, len(error.text)) == ("heap", 1000)
    assert peak_bytes < 1 << 20
