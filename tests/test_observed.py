"""Probes on a JVM that runs already: what they see, and that nothing of them stays."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from servers import BULK, Served, served, visible

from ingest_bench import probes, system
from ingest_bench.errors import InvalidRun, RunFailed
from ingest_bench.jvm import java
from ingest_bench.jvm.attach import Attached, attach
from ingest_bench.jvm.observed import observed
from ingest_bench.ledger import sessions
from ingest_bench.model.results import Histogram, Measured, Reading, Remark
from ingest_bench.model.target import TargetOptions
from ingest_bench.probes import recording, vantage
from ingest_bench.probes.context import ReadContext
from ingest_bench.targets.small.sink import Sink

pytestmark = [pytest.mark.jvm, pytest.mark.netns]

DOCUMENT = b'{"index":{}}\n{"text":"%s"}\n' % (b"x" * 4000)
# Large enough that each buffer is outside of every TLAB, and that there are collections.
RECEIVE_BYTES = 512 << 10


on_each_java = pytest.mark.parametrize("server", [11, 17, 25], indirect=True)


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A sink that has a GC log of its own."""
    folder = tmp_path_factory.mktemp("attach")
    java_version = getattr(request, "param", 17)
    asked = TargetOptions(
        name="sink", version=f"java{java_version}", heap_bytes=64 << 20, receive_predictor_bytes=(RECEIVE_BYTES,)
    )
    with (
        visible(),
        served(folder, asked, (f"-Xlog:gc=info:file={folder / 'home' / 'own.log'}:uptime:filecount=0",)) as started,
    ):
        yield started


@pytest.fixture
def jvm(server: Served) -> Attached:
    return attach(server.process.jvm_pid)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    made = tmp_path / "raw"
    made.mkdir()
    return made


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger of our own."""
    folder = tmp_path / "state"
    monkeypatch.setenv("INGEST_BENCH_STATE", str(folder))
    return folder


def switched_on(jvm: Attached) -> tuple[list[str], list[str]]:
    """Log outputs and recordings of a JVM; the numbers of outputs do not matter."""
    outputs = re.findall(r"^ #\d+: (.*)$", jvm.ask("VM.log", "list"), re.MULTILINE)
    return outputs, re.findall(r"name=\S+", jvm.ask("JFR.check"))


def bulks(server: Served, count: int) -> None:
    for _ in range(count):
        assert server.http.request("POST", "/test/_bulk", DOCUMENT * 1000, BULK).status == 200


def counters(server: Served) -> dict[str, Any]:
    assert isinstance(server.target, Sink)
    return server.target.counters((server.http,))


def watched(names: list[str], jvm: Attached, raw: Path, limit_s: int = 300) -> AbstractContextManager[None]:
    return vantage.AttachedTo(jvm).watch(probes.chosen(names), [raw], limit_s)


def context(jvm: Attached, raw: Path, ports: set[int], start_ns: int = 0) -> ReadContext:
    found = java.find(jvm.java_version)
    window = {"start_ns": start_ns, "end_ns": 2**62}
    return ReadContext(raw=raw, **window, ports=frozenset(ports), reader=lambda: recording.reader(found))


def readings(measured: list[Measured]) -> dict[str, Any]:
    return {item.name: item.value for item in measured if isinstance(item, Reading)}


def remarks(measured: list[Measured]) -> list[str]:
    return [item.text for item in measured if isinstance(item, Remark)]


@pytest.mark.nightly
@on_each_java
def test_every_probe_sees_exactly_what_the_sink_counted_while_it_watched(
    server: Served, jvm: Attached, raw: Path
) -> None:
    assert f"java{jvm.java_version}" == server.asked.version
    names = ["reads", "gc", "allocations", "host", *(["kernel-reads"] if system.is_root() else [])]
    own_before = switched_on(jvm)
    own = server.home / "own.log"
    own_bytes = [own.stat().st_size]
    bulks(server, 3)
    before = counters(server)
    start_ns = time.time_ns()
    with watched(names, jvm, raw):
        outputs, recordings = switched_on(jvm)
        bulks(server, 40)
        after = counters(server)
        own_bytes.append(own.stat().st_size)
    assert switched_on(jvm) == own_before
    bulks(server, 20)
    own_bytes.append(own.stat().st_size)
    assert own_bytes == sorted(set(own_bytes)), "the server's own log goes on, during and after"
    assert len(outputs) == len(own_before[0]) + 2
    assert len(recordings) == 1
    # All connections: the port that sent the bulks is one of them.
    ports = {int(port) for port in after["by_peer_port"]}
    measured = vantage.Started.read(probes.chosen(names), context(jvm, raw, ports, start_ns))
    assert remarks(measured) == []
    seen = readings(measured)

    def grown(name: str) -> int:
        return int(after[name]) - int(before[name])

    assert seen["reads_recorded"] == grown("reads") > 40
    assert seen["bytes_read"] == grown("bytes_read") > 40 * 1000 * 4000
    sizes = next(item.counts for item in measured if isinstance(item, Histogram) and item.name == "read_bytes")
    assert sum(sizes.values()) == grown("reads")
    assert seen["outside_tlab_network_bytes"] == pytest.approx(grown("buffer_bytes_allocated"), rel=0.01)
    assert seen["gc_collector"] == "g1"
    assert seen["gc_pauses"] == seen["gc_pauses_log"] > 0
    assert seen["server_cpu_s"] > 0
    assert (seen["direct_buffers_max"] is None) == (jvm.java_version == 11)
    if system.is_root():
        assert seen["kernel_bytes_read"] == seen["bytes_read"]
        assert seen["kernel_reads"] == seen["reads_recorded"]


@pytest.mark.nightly
def test_a_jvm_that_runs_already_is_recorded_for_profiling_too_and_also_without_a_probe(
    server: Served, jvm: Attached, raw: Path
) -> None:
    own = switched_on(jvm)
    with vantage.AttachedTo(jvm, profiles=True).watch({}, [raw], limit_s=300):
        bulks(server, 40)
    assert switched_on(jvm) == own
    types = recording.load(context(jvm, raw, set())).content["types"]
    assert types["jdk.ExecutionSample"] > 0
    assert "jdk.SocketRead" not in types or types["jdk.SocketRead"] < 40


@pytest.mark.nightly
@pytest.mark.parametrize("server", [25], indirect=True)
def test_another_recording_of_the_jvm_hides_no_read(server: Served, jvm: Attached, raw: Path) -> None:
    jvm.ask("JFR.start", "name=other", "settings=default")
    try:
        before = counters(server)
        with watched(["reads"], jvm, raw):
            bulks(server, 80)
            after = counters(server)
    finally:
        jvm.ask("JFR.stop", "name=other")
    ports = {int(port) for port in after["by_peer_port"]}
    numbers = readings(vantage.Started.read(probes.chosen(["reads"]), context(jvm, raw, ports)))
    # The other one records at most 100 of them in a second.
    assert numbers["reads_recorded"] == after["reads"] - before["reads"] > 600
    assert numbers["bytes_read"] == after["bytes_read"] - before["bytes_read"]


@pytest.mark.nightly
def test_a_second_time_holds_nothing_of_the_first(server: Served, jvm: Attached, tmp_path: Path) -> None:
    seen, true = [], []
    for name in ("first", "second"):
        raw = tmp_path / name
        raw.mkdir()
        before = counters(server)
        with watched(["reads", "gc"], jvm, raw):
            bulks(server, 2)
            after = counters(server)
        ports = {int(port) for port in after["by_peer_port"]}
        found = readings(vantage.Started.read(probes.chosen(["reads"]), context(jvm, raw, ports)))
        seen.append((found["reads_recorded"], found["bytes_read"]))
        true.append(tuple(after[name] - before[name] for name in ("reads", "bytes_read")))
    assert seen == true


@pytest.mark.nightly
def test_a_failure_in_the_block_leaves_nothing_in_the_jvm(server: Served, jvm: Attached, raw: Path) -> None:
    before = switched_on(jvm)
    with pytest.raises(RunFailed, match="answered 404"), watched(["reads", "gc"], jvm, raw):
        server.http.expect("GET", "/there/is/no/such/page")
    assert switched_on(jvm) == before
    assert (raw / "recording.jfr").read_bytes()[:4] == b"FLR\0"
    assert sessions.show() == []
    nothing_is_left()


@pytest.mark.nightly
def test_nobody_else_can_observe_the_same_jvm(jvm: Attached, raw: Path) -> None:
    with (
        watched(["gc"], jvm, raw),
        pytest.raises(RunFailed, match=f"in use by pid {os.getpid()}: probes in the JVM with pid {jvm.pid}"),
        watched(["gc"], jvm, raw),
    ):
        pytest.fail("it is taken")


@pytest.mark.nightly
def test_a_time_limit_ends_all_of_it_and_is_told(jvm: Attached, raw: Path) -> None:
    before = switched_on(jvm)
    with (
        pytest.raises(InvalidRun, match="time limit of 6 s was over"),
        watched(["reads", "gc"], jvm, raw, limit_s=6),
    ):
        wait_until(lambda: switched_on(jvm) == before)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_whoever_ends_us_nothing_stays_in_the_jvm(number: signal.Signals, jvm: Attached, raw: Path) -> None:
    before = switched_on(jvm)
    argv = [sys.executable, str(Path(__file__).with_name("observe_driver.py")), str(jvm.pid), str(raw)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "attached\n"
        assert switched_on(jvm) != before
        driver.send_signal(number)
        driver.wait(60)
    wait_until(lambda: sessions.show() == [])
    assert switched_on(jvm) == before
    nothing_is_left()


def test_a_refused_recording_is_an_error_with_the_jvms_words(jvm: Attached, raw: Path) -> None:
    (raw / "broken.jfc").write_text("this is no settings file", encoding="utf-8")
    with (
        pytest.raises(RunFailed, match=r"JFR\.start .*(it said|and said)"),
        observed(jvm, raw, settings=raw / "broken.jfc", logs=(), limit_s=60),
    ):
        pytest.fail("it cannot start")
    assert not list(raw.glob("*.jfr"))
    nothing_is_left()


def test_a_refused_log_leaves_no_recording(jvm: Attached, raw: Path) -> None:
    before = switched_on(jvm)
    broken = dataclasses.replace(probes.PROBES["gc"].logs[0], what="no-such-tag=info")
    settings = raw / "settings.jfc"
    settings.write_text(recording.settings(dict(probes.PROBES["reads"].events)), encoding="utf-8")
    with (
        pytest.raises(RunFailed, match=r"VM\.log .*no-such-tag"),
        observed(jvm, raw, settings=settings, logs=(broken,), limit_s=60),
    ):
        pytest.fail("it cannot start")
    assert switched_on(jvm) == before


@pytest.mark.nightly
def test_a_jvm_that_ends_meanwhile_leaves_its_recording(tmp_path: Path, raw: Path) -> None:
    with visible(), served(tmp_path, TargetOptions(name="sink", heap_bytes=64 << 20)) as server:
        with watched(["reads", "gc"], attach(server.process.jvm_pid), raw):
            server.bulk(10)
            server.process.popen.terminate()
            server.process.popen.wait(60)
        assert (raw / "recording.jfr").read_bytes()[:4] == b"FLR\0"
        assert sessions.show() == []


@pytest.mark.nightly
def test_a_jvm_that_is_killed_meanwhile_is_no_error_of_the_probes(tmp_path: Path, raw: Path) -> None:
    with visible(), served(tmp_path, TargetOptions(name="sink", heap_bytes=64 << 20)) as server:
        jvm = attach(server.process.jvm_pid)
        with watched(["reads", "gc"], jvm, raw):
            server.bulk(10)
            server.process.popen.kill()
            server.process.popen.wait(60)
        assert not jvm.is_alive()
        assert remarks(vantage.Started.read(probes.chosen(["reads"]), context(jvm, raw, {1}))) != []
        assert sessions.show() == []


def scratch() -> list[Path]:
    """Folders of observations that are there, of whomever."""
    return [path for path in Path("/var/tmp").glob("ingest-bench-?*") if (path / "jvm" / "gc.log").exists()]  # noqa: S108


def nothing_is_left() -> None:
    """No folder that is there now stays: those of tests beside this one go with their runs."""
    found = set(scratch())
    wait_until(lambda: not found & set(scratch()))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.skipif(not system.is_root(), reason="only root may give a folder to another user")
def test_the_user_of_the_jvm_cannot_put_a_link_in_place_of_its_folder(
    tmp_path: Path, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "settings.jfc"
    secret.write_text("of root")
    settings = tmp_path / "recording.jfc"
    settings.write_text("<configuration/>")
    theirs = Attached(pid=os.getpid(), uid=65534, jcmd=Path("/bin/true"), version="17", began="")
    chown = os.chown
    as_nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
    moves: list[int] = []

    def chown_and_swap(folder: Path, uid: int, group: int) -> None:
        chown(folder, uid, group)
        swap = f'mv "{folder}" "{folder}-aside" && ln -s "{tmp_path}" "{folder}"'
        moves.append(subprocess.run((*as_nobody, "sh", "-c", swap), check=False, capture_output=True).returncode)
        subprocess.run((*as_nobody, "ln", "-sf", str(secret), str(folder / "settings.jfc")), check=False)

    monkeypatch.setattr(os, "chown", chown_and_swap)
    with pytest.raises(RunFailed, match=r"JFR\.start"), observed(theirs, raw, settings=settings, logs=(), limit_s=60):
        pass
    assert moves == [1]
    assert secret.read_text() == "of root"


@pytest.mark.skipif(not system.is_root(), reason="only root may give a folder to another user")
@pytest.mark.parametrize("plant", ["link", "pipe", "name"])
def test_only_plain_files_of_a_jvm_of_another_user_are_kept(
    tmp_path: Path, raw: Path, monkeypatch: pytest.MonkeyPatch, plant: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of root")
    (raw / "host.jsonl").write_text("measured")
    theirs = Attached(pid=os.getpid(), uid=65534, jcmd=Path("/bin/true"), version="17", began="")
    folders: list[Path] = []
    chown = os.chown

    def record_chown(folder: Path, uid: int, group: int, **how: Any) -> None:
        folders.append(folder)
        chown(folder, uid, group, **how)

    monkeypatch.setattr(os, "chown", record_chown)

    def observe() -> None:
        with observed(theirs, raw, settings=None, logs=(), limit_s=60):
            (folders[0] / "gc.log").write_text("[0.1s] a line")
            folders[0].chmod(0o777)
            if plant == "link":
                (folders[0] / "exceptions.log").symlink_to(secret)
            elif plant == "pipe":
                os.mkfifo(folders[0] / "exceptions.log")
            else:
                (folders[0] / "host.jsonl").write_text("another measurement")

    with pytest.raises(RunFailed, match="is no plain file of a probe's"):
        observe()
    assert (raw / "gc.log").read_text() == "[0.1s] a line"
    assert (raw / "gc.log").stat().st_uid == 0
    assert (raw / "host.jsonl").read_text() == "measured"
    assert {path.name for path in raw.iterdir()} == {"gc.log", "host.jsonl"}
    assert secret.read_text() == "of root"
