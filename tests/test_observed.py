"""Probes on a running JVM: their readings, and that they leave no trace."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest
from fault_lab import wait_until
from probe_lab import make_context, notes, readings
from servers import BULK, Served, list_outputs, served, visible

from ingest_bench import probes, system
from ingest_bench.errors import RunFailed
from ingest_bench.jvm import java
from ingest_bench.jvm.attach import AttachedJvm, attach, read_start_id
from ingest_bench.jvm.observe import observe
from ingest_bench.ledger import sessions
from ingest_bench.model.results import ProbeOutput
from ingest_bench.model.target import TargetOptions
from ingest_bench.probes import observer, recording
from ingest_bench.probes.context import ReadContext

pytestmark = [pytest.mark.jvm, pytest.mark.netns, pytest.mark.usefixtures("state")]

DOCUMENT = b'{"index":{}}\n{"text":"%s"}\n' % (b"x" * 4000)
# Large enough that each buffer is outside a TLAB, and that there are collections.
RECEIVE_BYTES = 512 << 10


on_each_java = pytest.mark.parametrize("server", [11, 17, 25], indirect=True)


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A sink with a GC log of its own."""
    folder = tmp_path_factory.mktemp("attach")
    java_version = getattr(request, "param", 17)
    options = TargetOptions(
        name="sink",
        setting={"sink.java": str(java_version)},
        heap_bytes=64 << 20,
        receive_predictor_bytes=(RECEIVE_BYTES,),
    )
    with (
        visible(),
        served(folder, options, (f"-Xlog:gc=info:file={folder / 'home' / 'own.log'}:uptime:filecount=0",)) as sink,
    ):
        yield sink


@pytest.fixture
def jvm(server: Served) -> AttachedJvm:
    return attach(server.process.jvm_pid)


def send_bulks(server: Served, count: int) -> None:
    for _ in range(count):
        assert server.http.request("POST", "/test/_bulk", DOCUMENT * 1000, BULK).status == 200


def watch(names: list[str], jvm: AttachedJvm, raw: Path) -> AbstractContextManager[None]:
    return observer.watch_attached((jvm,), probes.select_probes(names), [raw], 300)


def read(names: list[str], context: ReadContext) -> list[ProbeOutput]:
    return list(observer.read_outputs("attached", probes.select_probes(names), context))


def context(jvm: AttachedJvm, raw: Path, ports: set[int], start_ns: int = 0) -> ReadContext:
    runtime = java.find_java(jvm.java_version)
    return make_context(raw, start_ns, 2**62, ports, lambda: recording.reader_command(runtime))


@pytest.mark.nightly
@on_each_java
def test_probes_read_exactly_what_the_sink_counts(server: Served, jvm: AttachedJvm, raw: Path) -> None:
    assert str(jvm.java_version) == server.options.setting["sink.java"]
    names = ["reads", "gc", "allocations", "host", *(["kernel-reads"] if system.is_root() else [])]
    own_before = list_outputs(jvm)
    own = server.home / "own.log"
    own_bytes = [own.stat().st_size]
    send_bulks(server, 3)
    before = server.counters()
    start_ns = time.time_ns()
    with watch(names, jvm, raw):
        outputs, recordings = list_outputs(jvm)
        send_bulks(server, 40)
        after = server.counters()
        own_bytes.append(own.stat().st_size)
    assert list_outputs(jvm) == own_before
    send_bulks(server, 20)
    own_bytes.append(own.stat().st_size)
    assert own_bytes == sorted(set(own_bytes)), "the server's own log continues"
    assert len(outputs) == len(own_before[0]) + 2
    assert len(recordings) == 1
    # All connections: the port that sent the bulks is one of them.
    ports = {int(port) for port in after["by_peer_port"]}
    measured = read(names, context(jvm, raw, ports, start_ns))
    assert notes(measured) == []
    values = readings(measured)

    def increase(name: str) -> int:
        return int(after[name]) - int(before[name])

    assert values["reads_recorded"] == increase("reads") > 40
    assert values["bytes_read"] == increase("bytes_read") > 40 * 1000 * 4000
    assert values["outside_tlab_network_bytes"] == pytest.approx(increase("buffer_bytes_allocated"), rel=0.01)
    assert values["gc_collector"] == "g1"
    assert values["gc_pauses"] == values["gc_pauses_log"] > 0
    assert values["server_cpu_s"] > 0
    assert (values["direct_buffers_max"] is None) == (jvm.java_version == 11)
    if system.is_root():
        assert values["kernel_bytes_read"] == values["bytes_read"]
        assert values["kernel_reads"] == values["reads_recorded"]


@pytest.mark.nightly
def test_a_running_jvm_is_profiled_without_probes(server: Served, jvm: AttachedJvm, raw: Path) -> None:
    own = list_outputs(jvm)
    with observer.watch_attached((jvm,), {}, [raw], 300, is_profiling=True):
        send_bulks(server, 40)
    assert list_outputs(jvm) == own
    types = recording.load_recording(context(jvm, raw, set())).content["types"]
    assert types["jdk.ExecutionSample"] > 0
    assert "jdk.SocketRead" not in types or types["jdk.SocketRead"] < 40


@pytest.mark.nightly
@pytest.mark.parametrize("server", [25], indirect=True)
def test_another_recording_hides_no_reads(server: Served, jvm: AttachedJvm, raw: Path) -> None:
    jvm.run_jcmd("JFR.start", "name=other", "settings=default")
    try:
        before = server.counters()
        with watch(["reads"], jvm, raw):
            send_bulks(server, 80)
            after = server.counters()
    finally:
        jvm.run_jcmd("JFR.stop", "name=other")
    ports = {int(port) for port in after["by_peer_port"]}
    numbers = readings(read(["reads"], context(jvm, raw, ports)))
    # The other recording has at most 100 reads per second.
    assert numbers["reads_recorded"] == after["reads"] - before["reads"] > 600
    assert numbers["bytes_read"] == after["bytes_read"] - before["bytes_read"]
    assert numbers["other_recordings"] == "other"


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)])
def test_a_killed_observer_leaves_no_trace_in_the_jvm(number: signal.Signals, jvm: AttachedJvm, raw: Path) -> None:
    before = list_outputs(jvm)
    argv = [sys.executable, str(Path(__file__).with_name("observe_driver.py")), str(jvm.pid), str(raw)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "attached\n"
        assert list_outputs(jvm) != before
        driver.send_signal(number)
        driver.wait(60)
    wait_until(lambda: sessions.list_sessions() == [])
    assert list_outputs(jvm) == before
    check_folders_are_removed()


def test_a_refused_recording_quotes_the_jvm(jvm: AttachedJvm, raw: Path) -> None:
    (raw / "broken.jfc").write_text("not a settings file", encoding="utf-8")
    with (
        pytest.raises(RunFailed, match=r"JFR\.start "),
        observe(jvm, raw, settings=raw / "broken.jfc", logs=(), limit_s=60),
    ):
        pytest.fail("started")
    assert not list(raw.glob("*.jfr"))
    check_folders_are_removed()


def test_a_refused_log_leaves_no_recording(jvm: AttachedJvm, raw: Path) -> None:
    before = list_outputs(jvm)
    broken = dataclasses.replace(probes.PROBES["gc"].logs[0], what="no-such-tag=info")
    settings = raw / "settings.jfc"
    settings.write_text(recording.format_settings(dict(probes.PROBES["reads"].events)), encoding="utf-8")
    with (
        pytest.raises(RunFailed, match=r"VM\.log .*no-such-tag"),
        observe(jvm, raw, settings=settings, logs=(broken,), limit_s=60),
    ):
        pytest.fail("started")
    assert list_outputs(jvm) == before


@pytest.mark.nightly
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_jvm_may_end_during_an_observation(tmp_path: Path, raw: Path, end: signal.Signals) -> None:
    with visible(), served(tmp_path, TargetOptions(name="sink", heap_bytes=64 << 20)) as server:
        jvm = attach(server.process.jvm_pid)
        with watch(["reads", "gc"], jvm, raw):
            server.bulk(10)
            server.process.popen.send_signal(end)
            server.process.popen.wait(60)
        assert not jvm.is_alive()
        assert sessions.list_sessions() == []
    if end == signal.SIGTERM:
        assert (raw / "recording.jfr").read_bytes()[:4] == b"FLR\0"
    else:
        # A killed JVM loses its recording.
        assert notes(read(["reads"], context(jvm, raw, {1}))) != []


def scratch() -> list[Path]:
    """Return the folders of all observations on this machine."""
    return [path for path in Path("/var/tmp").glob("ingest-bench-?*") if (path / "gc.log").exists()]  # noqa: S108


def check_folders_are_removed() -> None:
    """Wait until all present folders are removed: those of other tests go with their runs."""
    folders = set(scratch())
    wait_until(lambda: not folders & set(scratch()))


@pytest.mark.skipif(not system.is_root(), reason="needs root")
def test_the_user_of_the_jvm_cannot_make_root_touch_other_files(tmp_path: Path, raw: Path) -> None:
    (raw / "host.jsonl").write_text("measured")
    secret = tmp_path / "secret"
    secret.write_text("of root")
    user = 65534
    with subprocess.Popen(
        ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "sleep", "60")
    ) as sleeper:
        wait_until(lambda: psutil.Process(sleeper.pid).name() == "sleep")
        start_id = read_start_id(sleeper.pid) or ""
        jvm = AttachedJvm(pid=sleeper.pid, uid=user, gid=user, jcmd=Path("/bin/true"), version="17", start_id=start_id)
        before = {*Path("/var/tmp").glob("ingest-bench-*")}  # noqa: S108

        def observe_once() -> None:
            with observe(jvm, raw, settings=None, logs=(), limit_s=60):
                (folder,) = {*Path("/var/tmp").glob("ingest-bench-????????????????")} - before  # noqa: S108
                assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (user, 0o700)
                for name in ("gc.log", "host.jsonl"):
                    (folder / name).write_text("of the user")
                    os.chown(folder / name, user, user)
                (folder / "exceptions.log").symlink_to(secret)
                aside = folder.with_name(f"{folder.name}-aside")
                folder.rename(aside)
                folder.symlink_to(tmp_path)
                os.lchown(folder, user, user)
                folders.extend((folder, aside))

        folders: list[Path] = []
        try:
            with pytest.raises(RunFailed, match=r"'exceptions\.log' is not a plain file of a probe"):
                observe_once()
        finally:
            sleeper.kill()
            shutil.rmtree(folders[1])
    assert not folders[0].is_symlink()
    assert {path.name: path.read_text() for path in raw.iterdir()} == {
        "gc.log": "of the user",
        "host.jsonl": "measured",
    }
    assert (raw / "gc.log").stat().st_uid == 0
    assert secret.read_text() == "of root"
