"""Loads whose workers join over TCP, as from other machines."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import certificates
import numpy as np
import pytest
from bulk_server import bulk_server
from running import free_port
from test_load_process import outcomes, plan_for, samples_of

from ingest_bench.errors import RunFailed
from ingest_bench.inputs.load_values import parse_arrivals
from ingest_bench.load.fleet import keys
from ingest_bench.load.fleet.roster import Fleet, RemoteWorkers, open_fleet
from ingest_bench.load.plan import LoadPlan
from ingest_bench.load.supervisor import Progress, serve_page, start_load
from ingest_bench.model.load import Step, TrackFile
from ingest_bench.model.samples import CPU_MARK
from ingest_bench.model.target import Endpoint, Tls

pytestmark = pytest.mark.processes

JOIN = """
import sys
from pathlib import Path
from ingest_bench.inputs import urls
from ingest_bench.errors import RunFailed
from ingest_bench.load.fleet import join, keys
from ingest_bench.model.target import Endpoint
port, key, folder, name, url, ca_file = sys.argv[1:]
options = join.JoinOptions(
    master=Endpoint("127.0.0.1", int(port)),
    keys=keys.read(keys.WorkerKeys, Path(key)),
    credentials_to=urls.parse_url(url) if url else None,
    ca_pem=Path(ca_file).read_text() if ca_file else "",
    name=name,
)
try:
    join.run_worker(options, Path(folder), print)
except RunFailed as error:
    sys.exit(str(error))
"""


def with_server(plan: LoadPlan, **changes: Any) -> LoadPlan:
    return dataclasses.replace(plan, server=dataclasses.replace(plan.server, **changes))


def keys_in(folder: Path) -> Path:
    """A folder with keys for a run and some workers, made once."""
    folder_of_keys = folder / "keys"
    if not folder_of_keys.exists():
        keys.write_new(folder_of_keys, 12)
    return folder_of_keys


@contextmanager
def agents(
    folder: Path, port: int, count: int, *, name: str = "machine-{}", url: str = "", ca_file: str = ""
) -> Iterator[list[Any]]:
    """Start that many workers of other machines, all of them on this one."""
    started = []
    for number in range(count):
        key, place = keys_in(folder) / f"worker-{number + 1}.key", str(folder / f"machine-{number}")
        argv = [sys.executable, "-c", JOIN, str(port), str(key), place, name.format(number), url, ca_file]
        started.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    try:
        yield started
    finally:
        for agent in started:
            agent.kill()
            agent.communicate()


def remote_workers(folder: Path, workers: int = 1, *, port: int | None = None, timeout_s: float = 120) -> RemoteWorkers:
    run_keys = keys.read(keys.RunKeys, keys_in(folder) / keys.RUN_FILE)
    bind = Endpoint("127.0.0.1", port or free_port())
    return RemoteWorkers(bind=bind, workers=workers, keys=run_keys, join_timeout_s=timeout_s)


@contextmanager
def supervising(folder: Path, port: int, workers: int) -> Iterator[Fleet]:
    with open_fleet(remote_workers(folder, workers, port=port), lambda _: None) as fleet:
        yield fleet


@contextmanager
def fleet_of(folder: Path, workers: int, **options: str) -> Iterator[Fleet]:
    """Yield a fleet that this number of workers has joined; *options* are those of `agents`."""
    port = free_port()
    with agents(folder, port, workers, **options), supervising(folder, port, workers) as fleet:
        yield fleet


def test_remote_workers_deliver_the_samples_of_each_load_exactly(tmp_path: Path) -> None:
    port = free_port()
    with bulk_server() as server, agents(tmp_path, port, 2) as started:
        plan = plan_for(server.address, tmp_path, arrivals=parse_arrivals("200/s"))
        with supervising(tmp_path, port, 2) as there:
            report = start_load(plan, fleet=there).wait(lambda _: None)
            documents, bytes_read = server.documents, server.bytes_read
            assert set(report.local_ports) == server.ports
            # A load that cannot begin, one that fails, and one with work for one worker only.
            taken = tmp_path / "taken" / "out" / "samples-1.bin"
            taken.mkdir(parents=True)
            with pytest.raises(IsADirectoryError):
                start_load(plan_for(server.address, tmp_path / "taken"), fleet=there)
            unreachable = plan_for(Endpoint("127.0.0.1", free_port()), tmp_path / "failed")
            with pytest.raises(RunFailed, match=r"every request failed|refused"):
                start_load(unreachable, fleet=there).wait(lambda _: None)
            # What was measured until then is here.
            assert outcomes(samples_of(unreachable)) == {"connection-error"}
            single = plan_for(server.address, tmp_path / "one", users=1)
            assert len(start_load(single, fleet=there).wait(lambda _: None).clock_offsets) == 1
            # Three users on two workers: each sends one request of each burst, at the same moment.
            burst = plan_for(server.address, tmp_path / "burst", users=3, arrivals=parse_arrivals("burst 3 200ms"))
            start_ns = start_load(burst, fleet=there).wait(lambda _: None).started_monotonic_ns
        assert ends(started) == [(0, ""), (0, "")]
    assert set(samples_of(single)["user"]) == {0}
    numbers = np.rint((samples_of(burst)["scheduled_ns"] - start_ns) / 200e6)
    assert sorted(zip(numbers, samples_of(burst)["user"], strict=True)) == [*itertools.product(range(4), range(3))]
    later = sum(samples_of(load)["documents_acked"].sum() for load in (single, burst))
    assert samples_of(single)["documents_acked"].sum() > 0
    assert later == server.documents - documents
    # A machine keeps nothing of a load that was collected.
    assert not [path for name in ("machine-0", "machine-1") for path in (tmp_path / name).glob("*/samples*")]
    samples = samples_of(plan)
    assert report.bytes_written == bytes_read == samples["bytes_sent"].sum()
    assert samples["documents_acked"].sum() == documents
    assert [clock.worker for clock in report.clock_offsets] == [0, 1]
    assert {clock.machine.partition(",")[0] for clock in report.clock_offsets} == {"machine-0", "machine-1"}
    assert len(json.loads((plan.folder / "load.json").read_text())["clock_offsets"]) == 2
    for file in plan.folder.glob("cpu-*.bin"):
        marks_ns = np.fromfile(file, dtype=CPU_MARK)["at_ns"]
        assert marks_ns[0] <= report.started_monotonic_ns
        assert marks_ns[-1] >= report.measure_end_ns - 10**8
    # One machine, one clock: each planned time of the schedule is there once, as near as the clock was measured.
    planned = sorted(samples["scheduled_ns"] - report.started_monotonic_ns)
    assert len(planned) == 160
    worst_ns = max(clock.round_trip_ns for clock in report.clock_offsets)
    assert all(abs(at_ns - n * 5_000_000) <= 2 * worst_ns + 1000 for n, at_ns in enumerate(planned))


@pytest.mark.nightly
def test_a_stopped_worker_ends_the_load_and_a_pause_is_reported(tmp_path: Path) -> None:
    port = free_port()
    with bulk_server() as server, agents(tmp_path, port, 2) as started, supervising(tmp_path, port, 2) as there:
        paused: list[float] = []

        def pause(progress: Progress) -> None:
            if progress.phase == "measure" and not paused:
                started[0].send_signal(signal.SIGSTOP)
                paused.append(time.monotonic())
                threading.Timer(pause_s, started[0].send_signal, (signal.SIGCONT,)).start()

        pause_s = 3.0
        plan = plan_for(server.address, tmp_path, measure_ns=6 * 10**9)
        report = start_load(plan, fleet=there).wait(pause)
        assert report.longest_heartbeat_gap_ns > 2.5e9
        assert any("machine-0" in error and "no heartbeat for" in error for error in report.errors)
        assert samples_of(plan)["documents_acked"].sum() == server.documents
        pause_s = 12.0
        paused.clear()
        plan = plan_for(server.address, tmp_path, measure_ns=60 * 10**9)
        with pytest.raises(RunFailed, match=r"machine-0.*is lost: no heartbeat for"):
            start_load(plan, fleet=there).wait(pause)
        assert time.monotonic() - paused[0] < 10
        # Its process has ended the load by itself.
        time.sleep(max(0.0, paused[0] + 9.5 - time.monotonic()))
        before = server.documents
        time.sleep(1)
        assert server.documents == before
        # It is there again for the next load.
        before = server.documents
        start_load(plan_for(server.address, tmp_path), fleet=there).wait(lambda _: None)
        assert server.documents > before


def test_workers_with_one_key_are_distinguished_and_their_names_are_one_plain_line(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "twins" / "keys").mkdir(parents=True, exist_ok=True)
        copy = tmp_path / "twins" / "keys" / f"worker-{number}.key"
        copy.write_bytes((keys_in(tmp_path) / "worker-1.key").read_bytes())
        copy.chmod(0o600)
    logged: list[str] = []
    remote = remote_workers(tmp_path, 2)
    name = "{}\x1b[2J\nok: all is well\u202e" + "x" * 1000
    with bulk_server() as server, agents(tmp_path / "twins", remote.bind.port, 2, name=name) as started:
        with open_fleet(remote, logged.append) as there:
            plan = plan_for(server.address, tmp_path)
            report = start_load(plan, fleet=there).wait(lambda _: None)
        assert ends(started) == [(0, "")] * 2
    assert samples_of(plan)["documents_acked"].sum() == server.documents > 0
    assert len({clock.machine for clock in report.clock_offsets}) == 2
    joined = sorted(line for line in logged if line.endswith("joined"))
    assert [line[:27] for line in joined] == ["0?[2J?ok: all is well?xxxxx", "1?[2J?ok: all is well?xxxxx"]
    assert all(line.isprintable() and len(line) < 150 for line in joined)


def test_the_master_learns_where_a_file_is_wrong_not_its_contents(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the password of another user\n" * 1000)
    with bulk_server() as server, fleet_of(tmp_path, 1) as there:
        plan = plan_for(server.address, tmp_path, documents=None, bulk_documents=5000, measure_ns=60 * 10**9)
        plan = dataclasses.replace(plan, files=(TrackFile(path=str(secret), index=""),))
        with pytest.raises(RunFailed, match=r"secret: a line is not a JSON object") as failure:
            start_load(plan, fleet=there).wait(lambda _: None)
        assert "password" not in str(failure.value)
        late(secret)
        streamed = dataclasses.replace(plan, pool_bytes=1000)
        with pytest.raises(RunFailed, match=r"secret: a line is not a JSON object") as failure:
            start_load(streamed, fleet=there).wait(lambda _: None)
        assert "password" not in str(failure.value)


def late(secret: Path) -> None:
    """Change the file so that its foreign lines come when a load is under way."""
    secret.write_text('{"n":1}\n' * 200_000 + secret.read_text())


def test_a_compressed_corpus_is_shared_without_a_duplicate(tmp_path: Path) -> None:
    packed = tmp_path / "many.json.gz"
    packed.write_bytes(gzip.compress(b"".join(b'{"n":%d}\n' % n for n in range(4000))))
    files = (TrackFile(path=str(packed), index="tiny"),)
    step = Step(name="all", operation="bulk", clients=4, bulk_documents=50, files=files)
    with bulk_server() as server, fleet_of(tmp_path, 2) as there:
        server.keep_bodies = True
        plan = plan_for(server.address, tmp_path, step=step, measure_ns=600 * 10**9)
        start_load(plan, fleet=there).wait(lambda _: None)
        sent = [line for body in server.bodies for line in body.splitlines()[1::2]]
    assert len(sent) == len(set(sent)) == 4000


@pytest.mark.parametrize("ca", ["own", "none"])
def test_worker_trusts_its_own_ca_file_and_not_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ca: str
) -> None:
    monkeypatch.setenv("INGEST_BENCH_API_KEY", "aHVudGVyMg==")
    runs = certificates.create_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(runs.server)
    ca_file = str(runs.ca) if ca == "own" else ""
    with bulk_server(tls=context) as server:
        url = f"https://localhost:{server.address.port}"
        with fleet_of(tmp_path, 1, url=url, ca_file=ca_file) as there:
            tls = Tls(name="localhost", ca_pem=runs.ca.read_text())
            plan = with_server(plan_for(server.address, tmp_path), has_credentials=True, tls=tls)
            if ca == "own":
                start_load(plan, fleet=there).wait(lambda _: None)
            else:
                with pytest.raises(RunFailed, match=r"certificate of localhost is not verified.*--ca-file"):
                    start_load(plan, fleet=there).wait(lambda _: None)
        named = f"host: localhost:{server.address.port}".encode()
        assert all(named in head and b"aHVudGVyMg==" in head for head in server.heads)
        assert bool(server.heads) == (ca == "own")
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"aHVudGVyMg" in text or b"hunter2" in text for text in written)


def test_an_unknown_key_is_refused_and_does_not_block_others(tmp_path: Path) -> None:
    remote = remote_workers(tmp_path)
    logged: list[str] = []
    other = tmp_path / "other"
    # They know whom to join: only their own halves are not known there.
    keys.write_new(other / "keys", 1)
    pair = json.loads((other / "keys" / "worker-1.key").read_text())
    (other / "keys" / "worker-1.key").write_text(json.dumps(pair | {"run": remote.keys.public}))
    with (
        bulk_server() as server,
        agents(other, remote.bind.port, 1) as unknown,
        agents(tmp_path, remote.bind.port, 1),
        open_fleet(remote, logged.append) as there,
    ):
        errors = unknown[0].communicate(timeout=30)[1]
        assert unknown[0].returncode == 1
        assert "refused us: our key is not among those of this run" in errors
        report = start_load(plan_for(server.address, tmp_path), fleet=there).wait(lambda _: None)
    assert report.bytes_written == server.bytes_read
    assert [line for line in logged if "refused 127.0.0.1: its key is not among those of this run" in line]


@pytest.mark.nightly
def test_a_worker_that_knows_another_run_ends_and_both_sides_log_the_reason(tmp_path: Path) -> None:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import ingest_bench.load.fleet.worker"], check=True)
    remote = remote_workers(tmp_path, timeout_s=5 + time.monotonic() - began)
    logged: list[str] = []
    started: list[Any] = []
    with ExitStack() as stack:

        def tell(line: str) -> None:
            logged.append(line)
            if line.startswith("waiting"):
                started.extend(stack.enter_context(agents(tmp_path / "other", remote.bind.port, 1)))

        with pytest.raises(RunFailed, match="0 of 1 workers"), open_fleet(remote, tell):
            pass
        assert started[0].poll() == 1
        assert "does not have the key of our run" in started[0].stderr.read()
    assert [line for line in logged if line.startswith("refused a client that does not speak our protocol with")]


def test_a_taken_port_ends_the_run_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        remote = remote_workers(tmp_path, port=taken.getsockname()[1])
        bind = remote.bind
        with pytest.raises(RunFailed, match=rf"{bind}: workers cannot join there \(Address already in use\)"):
            stack_of(open_fleet(remote, lambda _: None))
        with pytest.raises(RunFailed, match=rf"{bind}: Locust's page cannot be shown there \(Address already in use\)"):
            stack_of(serve_page(bind))


def stack_of(fleet: AbstractContextManager[object]) -> None:
    with fleet:
        raise AssertionError("it should not have begun")


def test_no_key_is_in_a_process_list_or_a_log(tmp_path: Path) -> None:
    secrets = [json.loads(path.read_text())["secret"].encode() for path in keys_in(tmp_path).iterdir()]
    process_texts: list[bytes] = []

    def look(progress: Progress) -> None:
        if progress.phase == "measure" and not process_texts:
            for path in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    process_texts.append((path / "cmdline").read_bytes() + (path / "environ").read_bytes())

    with bulk_server() as server, fleet_of(tmp_path, 1) as there:
        start_load(plan_for(server.address, tmp_path), fleet=there).wait(look)
        written = read_files(tmp_path)
    assert [text for text in process_texts if b"ingest_bench.load.worker" in text]
    assert not [text for text in (*process_texts, *written) if any(secret in text for secret in secrets)]


def read_files(top: Path) -> list[bytes]:
    """Return the content of all files but keys. The worker removes those of its load meanwhile."""
    contents = []
    for folder, _, names in os.walk(top):
        for name in names if Path(folder).name != "keys" else ():
            with suppress(FileNotFoundError):
                contents.append(Path(folder, name).read_bytes())
    return contents


def ends(started: list[Any]) -> list[tuple[int, str]]:
    """Exit code and standard error of each, waited for."""
    errors = [agent.communicate(timeout=60)[1] for agent in started]
    return [(agent.returncode, text) for agent, text in zip(started, errors, strict=True)]


def sender_in(folder: Path) -> int:
    """The pid of the process that writes samples below that folder."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if link.readlink().is_relative_to(folder) and link.readlink().name.startswith("samples"):
                return int(link.parts[2])
    raise AssertionError(f"no worker sends from {folder}")
