"""Attach to JVMs in other mount, process, network and user namespaces, and leave nothing there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from containers import Contained, contained
from fault_lab import wait_until

from ingest_bench import probes, system
from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.jvm.attach import attach
from ingest_bench.ledger import sessions
from ingest_bench.probes import observer

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.netns,
    pytest.mark.usefixtures("state"),
    pytest.mark.skipif(not system.is_root(), reason="needs root"),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder that each user can read, as those of pytest are not."""
    with tempfile.TemporaryDirectory(prefix="containers-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def check_files(raw: Path) -> None:
    assert (raw / "recording.jfr").read_bytes()[:4] == b"FLR\0"
    assert b"gc" in (raw / "gc.log").read_bytes()


@pytest.mark.parametrize(
    ("kind", "java"),
    [
        ("user-namespace", 25),
        ("read-only", 11),
        *(pytest.param("user-namespace", java, marks=pytest.mark.nightly) for java in (11, 17)),
        *(pytest.param("container", java, marks=pytest.mark.nightly) for java in (17, 21)),
    ],
)
def test_a_jvm_in_a_container_is_observed_without_a_trace(kind: str, java: int, folder: Path, raw: Path) -> None:
    with contained(kind, folder, java) as container:
        jvm = attach(container.pid)
        with observer.watch_attached((jvm,), probes.select_probes(["reads", "gc", "host"]), [raw], 300):
            (scratch,) = container.scratch()
            assert scratch.parent.name == "tmp"
            jvm.run_jcmd("GC.run")
            host = raw / "host.jsonl"
            wait_until(lambda: host.exists() and host.read_text())
        assert container.scratch() == []
        assert "ingest-bench" not in jvm.run_jcmd("JFR.check") + jvm.run_jcmd("VM.log", "list")
    check_files(raw)


@pytest.mark.parametrize("kind", ["private-tmp", pytest.param("user-namespace", marks=pytest.mark.nightly)])
def test_a_killed_observer_leaves_no_folder_in_a_container(kind: str, folder: Path, raw: Path) -> None:
    with contained(kind, folder) as container:
        argv = [sys.executable, str(Path(__file__).with_name("observe_driver.py")), str(container.pid), str(raw)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as driver:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "attached\n"
            assert container.scratch() != []
            driver.kill()
            if kind == "private-tmp":
                # The folder outlives the mount namespace.
                psutil.Process(container.pid).kill()
        wait_until(lambda: sessions.list_sessions() == [])
        assert container.scratch() == []


@pytest.mark.parametrize("end", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.nightly)])
def test_a_private_tmp_is_clean_after_the_end_of_its_jvm(end: signal.Signals, folder: Path, raw: Path) -> None:
    with contained("private-tmp", folder) as container:
        jvm = attach(container.pid)
        with observer.watch_attached((jvm,), probes.select_probes(["reads", "gc"]), [raw], 300):
            assert {path.parent.name for path in container.scratch()} == {"tmp", "var"}
            jvm.run_jcmd("GC.run")
            process = psutil.Process(container.pid)
            process.send_signal(end)
            wait_until(lambda: not jvm.is_alive())
        assert container.scratch() == []
    if end == signal.SIGTERM:
        check_files(raw)


def test_links_and_mounts_in_a_container_lead_to_no_other_files(folder: Path, raw: Path) -> None:
    victim = folder / "disk" / "victim"
    with contained("hostile", folder) as container:
        (victim / "secret").write_text("of root")
        (victim / "secret").chmod(0o600)
        jvm = attach(container.pid)

        def observe_once() -> None:
            with observer.watch_attached((jvm,), probes.select_probes(["gc"]), [raw], 300):
                (scratch,) = container.scratch()
                assert scratch.parent == Path(f"/proc/{container.pid}/root") / "tmp"
                plant(container, scratch.name)

        with pytest.raises(RunFailed, match=r"not a plain file of a probe|not restored"):
            observe_once()
    assert (victim / "secret").read_text() == "of root"
    assert victim.stat().st_uid == os.geteuid()
    assert {path.name for path in raw.iterdir()} >= {"gc.log", "exceptions.log"}
    assert b"of root" not in b"".join(path.read_bytes() for path in raw.iterdir())


def plant(container: Contained, name: str) -> None:
    """Mount a file and a folder of root where the files of the JVM are expected, as a user of the container can."""
    container.run(
        f"cd /tmp/{name}; touch exceptions.log.7; mount --bind /var/victim/secret exceptions.log.7; "
        "mkdir jfr; mount --bind /var/victim jfr"
    )


def test_a_container_without_a_writable_tmp_is_refused(folder: Path) -> None:
    with (
        contained("closed", folder) as container,
        pytest.raises(MissingCapability, match=r"its attach socket in /tmp: read-only file system"),
    ):
        attach(container.pid)
