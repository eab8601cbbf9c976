"""A JVM is recorded over JMX: who may, over which connection, and that nothing remains there."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from certificates import Certificates, create_certificates
from fault_lab import wait_until
from machines import machines
from running import free_port
from servers import launched

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.inputs import credentials
from ingest_bench.jvm import java, jmx
from ingest_bench.jvm.attach import attach
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.probes import recording
from ingest_bench.results import layout

pytestmark = [pytest.mark.jvm, pytest.mark.processes]

MS = 10**6
PLAIN = ("ssl=false", "authenticate=false")
PASSWORD = "correct-horse"  # noqa: S105 - of this test alone
WAITS = Path(__file__).parent / "java" / "Waits.java"


def jmx_options(address: str, port: int, *names: str) -> tuple[str, ...]:
    """Return JVM options that expose JMX there."""
    every = (f"host={address}", f"port={port}", f"rmi.port={port}", *names)
    return (f"-Djava.rmi.server.hostname={address}", *(f"-Dcom.sun.management.jmxremote.{name}" for name in every))


@contextmanager
def exposed_jvm(folder: Path, *jmxremote: str, options: tuple[str, ...] = ()) -> Iterator[tuple[int, Endpoint]]:
    """Yield the pid of a JVM and where its JMX listens. The later one of equal options applies."""
    endpoint = Endpoint("127.0.0.1", free_port())
    runtime = java.find_java(17)
    argv = (
        str(runtime.java),
        *jmx_options(endpoint.host, endpoint.port, *jmxremote),
        *options,
        *("-cp", str(java.compile_classes(runtime, (WAITS,))), WAITS.stem),
    )
    popen = system.start(argv, stdout=folder / "jvm.log")
    try:
        # `setpriv` and `sh` become the JVM.
        process = psutil.Process(popen.pid)
        wait_until(lambda: any(c.laddr.port == endpoint.port for c in process.net_connections(kind="tcp")))
        yield popen.pid, endpoint
    finally:
        system.stop(popen, grace_s=0)


def key_store(certificates: Certificates) -> tuple[str, str]:
    """Return the JVM options for the server's certificate."""
    path = certificates.server.with_suffix(".p12")
    argv = ("openssl", "pkcs12", "-export", "-in", certificates.server, "-out", path, "-passout", "pass:changeit")
    subprocess.run(argv, check=True, timeout=60)
    return f"-Djavax.net.ssl.keyStore={path}", "-Djavax.net.ssl.keyStorePassword=changeit"


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "settings.jfc"
    path.write_text(recording.format_settings({"jdk.ThreadAllocationStatistics": {"period": "1 s"}}))
    return path


def test_credentials_and_recording_go_over_tls_to_the_named_host_alone(
    tmp_path: Path, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = create_certificates(tmp_path, "DNS:localhost,IP:127.0.0.1")
    roles = {"watcher": "readwrite", "reader": "readonly"}
    access = {"access": roles, "password": dict.fromkeys(roles, PASSWORD)}
    for name, texts in access.items():
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text("".join(f"{role} {text}\n" for role, text in texts.items()))
    jmxremote = (f"{name}.file={tmp_path / name}" for name in access)
    store = key_store(certificates)
    with exposed_jvm(tmp_path, "registry.ssl=true", *jmxremote, options=store) as (_, endpoint):

        def record(ca: Path | None, user: str = "watcher", password: str = PASSWORD) -> None:
            monkeypatch.setenv(credentials.JMX_USER, user)
            monkeypatch.setenv(credentials.JMX_PASSWORD, password)
            with jmx.connect(endpoint, str(ca) if ca else None) as jvm:
                assert jvm.is_encrypted
                with jvm.record(settings, tmp_path / "recording.jfr", 60):
                    """Record nothing in particular."""

        record(certificates.ca)
        assert (tmp_path / "recording.jfr").read_bytes().startswith(b"FLR\0")
        (tmp_path / "other").mkdir()
        other_ca = create_certificates(tmp_path / "other").ca
        for ca in (None, other_ca):
            with pytest.raises(RunFailed, match=rf"--watch-jmx {endpoint}: TLS failed: .* certif.*--ca-file"):
                record(ca)
        with pytest.raises(RunFailed, match=r"authentication failed\. Set INGEST_BENCH_JMX_USER and"):
            record(certificates.ca, "watcher", "wrong")
        with pytest.raises(RunFailed, match=rf"--watch-jmx {endpoint}: this role may not record: Access denied!"):
            record(certificates.ca, "reader")


def test_a_certificate_of_another_host_is_refused(tmp_path: Path) -> None:
    certificates = create_certificates(tmp_path, "DNS:elsewhere.example")
    jmxremote = ("registry.ssl=true", "authenticate=false")
    with (
        exposed_jvm(tmp_path, *jmxremote, options=key_store(certificates)) as (_, endpoint),
        pytest.raises(RunFailed, match=r"TLS failed: .*127\.0\.0\.1"),
        jmx.connect(endpoint, str(certificates.ca)),
    ):
        pytest.fail("it was accepted")


def test_a_registry_that_names_another_host_gets_no_credentials(tmp_path: Path) -> None:
    with (
        exposed_jvm(tmp_path, *PLAIN, options=("-Djava.rmi.server.hostname=127.0.0.9",)) as (_, endpoint),
        pytest.raises(RunFailed, match=r"its JMX is at another address, 127\.0\.0\.9\."),
        jmx.connect(endpoint, None),
    ):
        pytest.fail("it was accepted")


def test_a_jvm_without_the_recorder_over_jmx_is_named(tmp_path: Path) -> None:
    modules = ("--limit-modules", "java.base,java.management,jdk.management,jdk.management.agent,java.rmi,jdk.jfr")
    with (
        exposed_jvm(tmp_path, *PLAIN, options=modules) as (_, endpoint),
        pytest.raises(RunFailed, match=r"no FlightRecorderMXBean: its Java lacks the module jdk\.management\.jfr"),
        jmx.connect(endpoint, None),
    ):
        pytest.fail("it was accepted")


def test_a_port_without_jmx_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.MonkeyPatch.context() as patch:
        patch.setattr(jmx, "_CONNECT_LIMIT_S", 2)
        endpoint = Endpoint(*silent.getsockname())
        message = rf"--watch-jmx {endpoint}: JMX does not respond within \d+ s\. Give the port of jmxremote\.port"
        with pytest.raises(RunFailed, match=message), jmx.connect(endpoint, None):
            pytest.fail("it said nothing")
    endpoint = Endpoint("127.0.0.1", free_port())
    message = rf"--watch-jmx {endpoint}: cannot connect \(Connection refused.*jmxremote\.port"
    with pytest.raises(RunFailed, match=message), jmx.connect(endpoint, None):
        pytest.fail("nothing listens there")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_recording_remains_when_the_run_is_killed(tmp_path: Path, number: int) -> None:
    with exposed_jvm(tmp_path, *PLAIN) as (pid, endpoint):
        jvm = attach(pid)
        driver = subprocess.Popen(
            (sys.executable, Path(__file__).with_name("jmx_driver.py"), str(endpoint.port), tmp_path)
        )
        wait_until(lambda: "name=ingest-bench-" in jvm.run_jcmd("JFR.check"))
        children = psutil.Process(driver.pid).children(recursive=True)
        driver.send_signal(number)
        driver.wait()
        wait_until(lambda: "name=" not in jvm.run_jcmd("JFR.check"))
        wait_until(lambda: not any(child.is_running() for child in children))


def test_a_full_disk_here_is_no_broken_connection(tmp_path: Path, settings: Path) -> None:
    with exposed_jvm(tmp_path, *PLAIN) as (pid, endpoint):
        with (
            pytest.raises(RunFailed, match=r"cannot be written on this machine \(No space left on device\)"),
            jmx.connect(endpoint, None) as jvm,
            jvm.record(settings, Path("/dev/full"), 60),
        ):
            """Record nothing in particular."""
        wait_until(lambda: "name=" not in attach(pid).run_jcmd("JFR.check"))


def test_a_jvm_that_cannot_write_its_recording_is_named(tmp_path: Path, settings: Path) -> None:
    with (
        exposed_jvm(tmp_path, *PLAIN, options=("-Djava.io.tmpdir=/proc/1",)) as (_, endpoint),
        jmx.connect(endpoint, None) as jvm,
        pytest.raises(RunFailed, match=r"the JVM cannot write a recording \(JFR repository .*java\.io\.tmpdir"),
        jvm.record(settings, tmp_path / "recording.jfr", 60),
    ):
        pytest.fail("it recorded")


def test_a_jvm_that_ends_during_the_recording_fails_the_run(tmp_path: Path, settings: Path) -> None:
    with exposed_jvm(tmp_path, *PLAIN) as (pid, endpoint), jmx.connect(endpoint, None) as jvm:
        assert not jvm.is_encrypted
        with (
            pytest.raises(RunFailed, match=r"the connection to the JVM broke|cannot connect"),
            jvm.record(settings, tmp_path / "recording.jfr", 60),
        ):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.netns
@pytest.mark.parametrize("version", [17, *(pytest.param(number, marks=pytest.mark.nightly) for number in (11, 25))])
def test_a_run_records_the_jvm_of_another_machine(tmp_path: Path, version: int) -> None:
    sink = TargetOptions(name="sink", setting={"sink.java": str(version)}, heap_bytes=256 << 20)
    with machines(2) as (at, here):
        address, enter = Endpoint(at.address, 9200), (at.place.command, here.place.command)
        options = jmx_options(at.address, 7091, *PLAIN)
        with launched(sink, (address,), tmp_path, enter=enter, jvm_options=options) as (http, _):
            watched = ("--url", http.origin, "--watch-jmx", f"{at.address}:7091")
            load = ("--warm-up", "1s", "--measure", "2s", "--set", "users=4", "--out", str(tmp_path / "results"))
            argv = (sys.executable, "-c", "from ingest_bench.cli import main; main()", "run", *watched, *load)
            subprocess.run(here.place.command(argv), check=True, timeout=120, cwd=tmp_path)
    (summary,) = (tmp_path / "results").glob("attached/20*/summary.json")
    (row,), results = json.loads(summary.read_text()), layout.open_results(summary.parent)
    values = row["values"]
    assert values["bytes_read"] == values["bytes_sent"] > 0
    assert values["documents_counted"] == values["documents_acked"] > 0
    # One kernel has one clock. The recorder of Java 11 and 17 may be early by 1 ms.
    (record,) = results.read_records().values()
    (watching,) = record.observers
    assert -1.5 * MS < watching.clock.offset_before_ns < MS
    assert values["clock_offset_ms_min"] <= 0 <= values["clock_offset_ms_max"]
    assert values["allocated_bytes"] > values["gc_pauses"] >= 0
    assert values["gc_pauses_log"] is None
