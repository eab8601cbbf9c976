"""Loads whose workers join over TCP, as from other machines."""

from __future__ import annotations

import dataclasses
import gzip
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
from test_load_process import plan_for, samples_of

from ingest_bench.errors import RunFailed
from ingest_bench.inputs.rates import parse_arrivals
from ingest_bench.load.fleet import keys
from ingest_bench.load.fleet.roster import Fleet, Remote, joined
from ingest_bench.load.supervisor import Progress, start
from ingest_bench.model.samples import CPU_MARK, SAMPLE
from ingest_bench.model.target import Endpoint, Place, Tls
from ingest_bench.model.track import Step, TrackFile

pytestmark = pytest.mark.processes

JOIN = """
import sys
from pathlib import Path
from ingest_bench.inputs import urls
from ingest_bench.errors import RunFailed
from ingest_bench.load.fleet import join, keys
from ingest_bench.model.target import Endpoint, Place
port, key, folder, name, url, ca_file = sys.argv[1:]
joining = join.Joining(
    master=Endpoint("127.0.0.1", int(port)),
    keys=keys.read_worker(Path(key)),
    credentials_to=urls.parse(url) if url else None,
    ca_pem=Path(ca_file).read_text() if ca_file else "",
    name=name,
)
try:
    join.join(joining, Path(folder), print)
except RunFailed as error:
    sys.exit(str(error))
"""


def keys_in(folder: Path) -> Path:
    """A folder with keys for a run and some workers, made once."""
    made = folder / "keys"
    if not made.exists():
        keys.write_new(made, 12)
    return made


@contextmanager
def agents(
    folder: Path, port: int, count: int, *, of: Path | None = None, url: str = "", ca_file: str = ""
) -> Iterator[list[Any]]:
    """So many other machines, all of them this one."""
    started = []
    for number in range(count):
        name = f"machine-{number}"
        key = keys_in(of or folder) / f"worker-{number + 1}.key"
        argv = [sys.executable, "-c", JOIN, str(port), str(key), str(folder / name), name, url, ca_file]
        started.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    try:
        yield started
    finally:
        for one in started:
            one.kill()
            one.communicate()


@contextmanager
def supervising(folder: Path, port: int, workers: int) -> Iterator[Fleet]:
    known = keys.read_run(keys_in(folder) / keys.RUN_FILE)
    remote = Remote(bind=Endpoint("127.0.0.1", port), workers=workers, keys=known, patience_s=120)
    with joined(remote, lambda _: None) as fleet:
        yield fleet


@pytest.mark.nightly
def test_workers_from_elsewhere_bring_all_their_samples_and_the_sums_are_exact(tmp_path: Path) -> None:
    port = free_port()
    with bulk_server() as server, agents(tmp_path, port, 2) as started:
        plan = plan_for(server.address, tmp_path, arrivals=parse_arrivals("200/s"))
        with supervising(tmp_path, port, 2) as there:
            report = start(plan, fleet=there).wait(lambda _: None)
        assert ends(started) == [(0, ""), (0, "")]
    samples = samples_of(plan)
    assert report.bytes_written == server.bytes_read == samples["bytes_sent"].sum()
    assert samples["documents_acked"].sum() == server.documents
    assert set(report.local_ports) == server.ports
    assert [clock.worker for clock in report.clock_offsets] == [0, 1]
    assert {clock.machine.partition(",")[0] for clock in report.clock_offsets} == {"machine-0", "machine-1"}
    assert len(json.loads((plan.out / "load.json").read_text())["clock_offsets"]) == 2
    marks = [np.fromfile(file, dtype=CPU_MARK) for file in sorted(plan.out.glob("cpu-*.bin"))]
    assert len(marks) == 2
    assert all(one["at_ns"][0] <= report.started_monotonic_ns for one in marks)
    assert all(one["at_ns"][-1] >= report.measure_end_ns - 10**8 for one in marks)
    # One machine, one clock: each planned time of the schedule is there once, as near as the clock was measured.
    planned = sorted(samples["planned_ns"] - report.started_monotonic_ns)
    assert len(planned) == 160
    worst_ns = max(clock.round_trip_ns for clock in report.clock_offsets)
    assert all(abs(at_ns - n * 5_000_000) <= 2 * worst_ns + 1000 for n, at_ns in enumerate(planned))


@pytest.mark.nightly
def test_workers_that_joined_once_send_load_after_load_with_other_numbers_of_users(tmp_path: Path) -> None:
    port = free_port()
    plans = [tmp_path / "one", tmp_path / "two", tmp_path / "three"]
    with bulk_server() as server, agents(tmp_path, port, 2) as started:
        with supervising(tmp_path, port, 2) as there:
            for folder, users in zip(plans, (4, 1, 2), strict=True):
                folder.mkdir()
                before = server.documents
                plan = plan_for(server.address, folder, users=users)
                report = start(plan, fleet=there).wait(lambda _: None)
                samples = samples_of(plan)
                assert set(samples["user"]) == set(range(users))
                assert samples["documents_acked"].sum() == server.documents - before > 0
                # With one user there is work for one of them.
                assert len(report.clock_offsets) == min(users, 2)
        assert ends(started) == [(0, ""), (0, "")]
        # What a machine kept of a load is gone there once it is here.
        assert not [path for one in ("machine-0", "machine-1") for path in (tmp_path / one).glob("*/samples*")]


@pytest.mark.nightly
def test_after_a_load_that_could_not_begin_its_workers_join_anew_for_the_next_one(tmp_path: Path) -> None:
    port = free_port()
    with bulk_server() as server, agents(tmp_path, port, 2) as started:
        plan = plan_for(server.address, tmp_path)
        taken = plan.out / "samples-1.bin"
        taken.mkdir(parents=True)
        with supervising(tmp_path, port, 2) as there:
            with pytest.raises(IsADirectoryError):
                start(plan, fleet=there)
            taken.rmdir()
            start(plan, fleet=there).wait(lambda _: None)
        assert ends(started) == [(0, ""), (0, "")]
    assert samples_of(plan)["documents_acked"].sum() == server.documents


@pytest.mark.nightly
def test_a_worker_that_dies_ends_the_load_with_its_name(tmp_path: Path) -> None:
    port = free_port()
    with bulk_server() as server, agents(tmp_path, port, 2) as started:
        plan = plan_for(server.address, tmp_path, measure_ns=60 * 10**9)
        with suppress(KeyboardInterrupt), supervising(tmp_path, port, 2) as there:
            process = start(plan, fleet=there)
            killed: list[float] = []

            def kill(progress: Progress) -> None:
                if progress.phase == "measure" and not killed:
                    started[0].kill()
                    killed.append(time.monotonic())

            with pytest.raises(
                RunFailed, match=r"load worker . of 2 \(machine-0, 127.0.0.1, worker-1, .*is gone: it was not"
            ):
                process.wait(kill)
            assert time.monotonic() - killed[0] < 10
            raise KeyboardInterrupt
        # The other one ends too, with an error: nobody told it that all was done.
        said = started[1].communicate(timeout=60)[1]
        assert started[1].returncode == 1
        assert "ended before its experiment did" in said


@pytest.mark.nightly
def test_a_worker_that_is_stopped_ends_the_load_and_one_that_paused_is_in_the_record(tmp_path: Path) -> None:
    port = free_port()
    with bulk_server() as server, agents(tmp_path, port, 2), supervising(tmp_path, port, 2) as there:
        paused: list[float] = []

        def pause(progress: Progress) -> None:
            if progress.phase == "measure" and not paused:
                sender = sender_in(tmp_path / "machine-0")
                os.kill(sender, signal.SIGSTOP)
                paused.append(time.monotonic())
                threading.Timer(pause_s, os.kill, (sender, signal.SIGCONT)).start()

        pause_s = 3.0
        plan = plan_for(server.address, tmp_path, measure_ns=6 * 10**9)
        report = start(plan, fleet=there).wait(pause)
        assert report.longest_silence_ns > 2.5e9
        assert any("machine-0" in error and "was not heard for" in error for error in report.errors)
        assert samples_of(plan)["documents_acked"].sum() == server.documents
        pause_s = 12.0
        paused.clear()
        plan = plan_for(server.address, tmp_path, measure_ns=60 * 10**9)
        with pytest.raises(RunFailed, match=r"machine-0.*is gone: it was not heard for"):
            start(plan, fleet=there).wait(pause)
        assert time.monotonic() - paused[0] < 10
        # It is there again for the next load.
        before = server.documents
        start(plan_for(server.address, tmp_path), fleet=there).wait(lambda _: None)
        assert server.documents > before


@pytest.mark.nightly
def test_twelve_workers_begin_together_and_each_document_is_counted(tmp_path: Path) -> None:
    port = free_port()
    with bulk_server() as server, agents(tmp_path, port, 12) as started:
        with supervising(tmp_path, port, 12) as there:
            plan = plan_for(
                server.address, tmp_path, users=12, arrivals=parse_arrivals("60/s"), measure_ns=2 * 10**9, warm_up_ns=0
            )
            report = start(plan, fleet=there).wait(lambda _: None)
        assert ends(started) == [(0, "")] * 12
    each = [np.fromfile(plan.out / f"samples-{number}.bin", dtype=SAMPLE) for number in range(12)]
    assert [len(samples) for samples in each] == [10] * 12
    assert sum(samples["documents_acked"].sum() for samples in each) == server.documents > 0
    assert len(report.clock_offsets) == 12
    # Every worker's first request is one of the first twelve of the schedule. How late each was says when it began,
    # and the least late of its requests whether that was the fleet's doing or that of a machine that is busy.
    begun = [samples["planned_ns"].min() - report.started_monotonic_ns for samples in each]
    worst_ns = max(clock.round_trip_ns for clock in report.clock_offsets)
    assert [abs(at_ns - number * 10**9 / 60) <= 2 * worst_ns + 1000 for number, at_ns in enumerate(begun)] == [
        True
    ] * 12
    assert max((samples["sent_ns"] - samples["planned_ns"]).min() for samples in each) < 20_000_000


def test_two_workers_with_one_key_are_told_apart(tmp_path: Path) -> None:
    port = free_port()
    known = keys.read_run(keys_in(tmp_path) / keys.RUN_FILE)
    for number in (1, 2):
        (tmp_path / "twins" / "keys").mkdir(parents=True, exist_ok=True)
        copy = tmp_path / "twins" / "keys" / f"worker-{number}.key"
        copy.write_bytes((keys_in(tmp_path) / "worker-1.key").read_bytes())
        copy.chmod(0o600)
    told: list[str] = []
    remote = Remote(bind=Endpoint("127.0.0.1", port), workers=2, keys=known, patience_s=120)
    with bulk_server() as server, agents(tmp_path / "twins", port, 2) as started:
        with joined(remote, told.append) as there:
            plan = plan_for(server.address, tmp_path)
            report = start(plan, fleet=there).wait(lambda _: None)
        assert ends(started) == [(0, "")] * 2
    assert samples_of(plan)["documents_acked"].sum() == server.documents > 0
    assert len({clock.machine for clock in report.clock_offsets}) == 2
    assert len([line for line in told if line.endswith("joined")]) == 2


@pytest.mark.nightly
def test_a_worker_of_another_version_is_refused_on_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    other = tmp_path / "other" / "ingest_bench-0.0.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: ingest-bench\nVersion: 0.0.1\n")
    known = keys.read_run(keys_in(tmp_path) / keys.RUN_FILE)
    remote = Remote(bind=Endpoint("127.0.0.1", port), workers=1, keys=known, patience_s=20)
    told: list[str] = []
    with ExitStack() as stack:
        with monkeypatch.context() as changed:
            changed.setenv("PYTHONPATH", str(other.parent))
            started = stack.enter_context(agents(tmp_path, port, 1))
        with pytest.raises(RunFailed, match="0 of 1 workers"), joined(remote, told.append):
            pass
        assert "we are 0.0.1; install the same here and there" in started[0].communicate(timeout=30)[1]
    assert [line for line in told if line.startswith("refused machine-0") and "it is ingest-bench 0.0.1" in line]


def test_the_name_of_a_worker_is_one_plain_line(tmp_path: Path) -> None:
    port = free_port()
    known = keys.read_run(keys_in(tmp_path) / keys.RUN_FILE)
    remote = Remote(bind=Endpoint("127.0.0.1", port), workers=1, keys=known, patience_s=120)
    told: list[str] = []
    name = "\x1b[2J\nok: all is well\u202e" + "x" * 1000
    key = keys_in(tmp_path) / "worker-1.key"
    argv = [sys.executable, "-c", JOIN, str(port), str(key), str(tmp_path / "there"), name, "", ""]
    with bulk_server() as server, subprocess.Popen(argv, stdout=subprocess.DEVNULL) as one:
        with joined(remote, told.append) as there:
            report = start(plan_for(server.address, tmp_path), fleet=there).wait(lambda _: None)
        assert one.wait(60) == 0
    (line,) = (line for line in told if line.endswith("joined"))
    assert line.isprintable()
    assert line.startswith("?[2J?ok: all is well?xxx")
    assert len(line) < 150
    assert report.clock_offsets[0].machine.isprintable()


@pytest.mark.nightly
def test_after_a_load_that_failed_the_same_workers_send_the_next_one(tmp_path: Path) -> None:
    port = free_port()
    with bulk_server() as server, agents(tmp_path, port, 2) as started:
        with supervising(tmp_path, port, 2) as there:
            nobody = plan_for(Endpoint("127.0.0.1", free_port()), tmp_path)
            with pytest.raises(RunFailed, match=r"every request failed|refused"):
                start(nobody, fleet=there).wait(lambda _: None)
            plan = plan_for(server.address, tmp_path)
            start(plan, fleet=there).wait(lambda _: None)
            assert samples_of(plan)["documents_acked"].sum() == server.documents > 0
        assert ends(started) == [(0, ""), (0, "")]


@pytest.mark.parametrize("is_bulk", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["documents", "bodies"])
def test_a_master_is_told_where_a_file_there_is_wrong_and_not_what_it_holds(tmp_path: Path, is_bulk: bool) -> None:
    port = free_port()
    secret = tmp_path / "secret"
    secret.write_text("the password of somebody\n" * 1000)
    with (
        bulk_server() as server,
        agents(tmp_path, port, 1),
        supervising(tmp_path, port, 1) as there,
    ):
        plan = plan_for(server.address, tmp_path, documents=None, bulk_documents=5000, measure_ns=60 * 10**9)
        plan = dataclasses.replace(plan, corpus=str(secret), corpus_is_bulk=is_bulk)
        with pytest.raises(RunFailed, match=r"secret: a[n ].* (is no JSON object|is missing)") as failure:
            start(plan, fleet=there).wait(lambda _: None)
        assert "password" not in str(failure.value)
        streamed = dataclasses.replace(plan, corpus=str(late(secret, is_bulk)), pool_bytes=1000)
        with pytest.raises(RunFailed, match=r"secret: a[n ].* (is no JSON object|is missing)") as failure:
            start(streamed, fleet=there).wait(lambda _: None)
        assert "password" not in str(failure.value)


def late(secret: Path, is_bulk: bool) -> Path:
    """The same file, whose foreign lines come when a load is under way."""
    line = '{"index":{}}\n{"n":1}\n' if is_bulk else '{"n":1}\n'
    secret.write_text(line * 200_000 + secret.read_text())
    return secret


@pytest.mark.nightly
def test_the_process_that_sends_there_dying_is_told_with_its_log(tmp_path: Path) -> None:
    port = free_port()
    with bulk_server() as server, agents(tmp_path, port, 1) as started, supervising(tmp_path, port, 1) as there:
        process = start(plan_for(server.address, tmp_path, measure_ns=60 * 10**9), fleet=there)

        killed: list[int] = []

        def kill(progress: Progress) -> None:
            if progress.phase == "measure" and not killed:
                killed.append(sender_in(tmp_path / "machine-0"))
                os.kill(killed[0], signal.SIGKILL)

        with pytest.raises(RunFailed, match=r"machine-0.*is gone"):
            process.wait(kill)
        assert "was killed by signal 9" in started[0].communicate(timeout=60)[1]


def test_a_packed_corpus_is_unpacked_by_each_machine_and_shared_without_a_duplicate(tmp_path: Path) -> None:
    port = free_port()
    packed = tmp_path / "many.json.gz"
    packed.write_bytes(gzip.compress(b"".join(b'{"n":%d}\n' % n for n in range(4000))))
    step = Step(
        name="all",
        operation="bulk",
        clients=4,
        bulk_documents=50,
        files=(TrackFile(path=str(packed), index="tiny"),),
    )
    with bulk_server() as server, agents(tmp_path, port, 2), supervising(tmp_path, port, 2) as there:
        server.keep_bodies = True
        plan = dataclasses.replace(plan_for(server.address, tmp_path, measure_ns=600 * 10**9), step=step)
        start(plan, fleet=there).wait(lambda _: None)
        sent = [line for body in server.bodies for line in body.splitlines()[1::2]]
    assert len(sent) == len(set(sent)) == 4000


@pytest.mark.nightly
def test_a_worker_says_who_we_are_from_its_own_environment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("INGEST_BENCH_API_KEY", "aHVudGVyMg==")
    with bulk_server() as server, agents(tmp_path, port, 1, url=f"http://{server.address}"):
        plan = dataclasses.replace(plan_for(server.address, tmp_path), credentials=True)
        monkeypatch.delenv("INGEST_BENCH_API_KEY")
        with supervising(tmp_path, port, 1) as there:
            start(plan, fleet=there).wait(lambda _: None)
    assert server.heads
    assert all(b"authorization: ApiKey aHVudGVyMg==" in head for head in server.heads)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"aHVudGVyMg" in text or b"hunter2" in text for text in written)


def test_a_worker_that_does_not_know_who_we_are_says_what_to_set(tmp_path: Path) -> None:
    port = free_port()
    with (
        bulk_server() as server,
        agents(tmp_path, port, 1, url=f"http://{server.address}"),
        supervising(tmp_path, port, 1) as there,
    ):
        plan = dataclasses.replace(plan_for(server.address, tmp_path), credentials=True)
        with pytest.raises(RunFailed, match=r"machine-0, .*environment of this load worker has none; set INGEST_BENCH"):
            start(plan, fleet=there).wait(lambda _: None)


@pytest.mark.parametrize("allowed", ["", "http://127.0.0.1:1"])
def test_a_worker_says_who_we_are_to_nobody_but_the_server_that_it_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: str
) -> None:
    port = free_port()
    monkeypatch.setenv("INGEST_BENCH_API_KEY", "aHVudGVyMg==")
    with bulk_server() as server:
        with agents(tmp_path, port, 1, url=allowed), supervising(tmp_path, port, 1) as there:
            plan = dataclasses.replace(plan_for(server.address, tmp_path), credentials=True)
            with pytest.raises(RunFailed, match=r"machine-0.*--credentials-to"):
                start(plan, fleet=there).wait(lambda _: None)
        assert not server.heads


@pytest.mark.parametrize("ca", [pytest.param("own", marks=pytest.mark.nightly), "none"])
def test_worker_trusts_its_own_ca_file_and_not_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ca: str
) -> None:
    port = free_port()
    monkeypatch.setenv("INGEST_BENCH_API_KEY", "aHVudGVyMg==")
    runs = certificates.made(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(runs.server)
    ca_file = str(runs.ca) if ca == "own" else ""
    with bulk_server(tls=context) as server:
        url = f"https://localhost:{server.address.port}"
        with agents(tmp_path, port, 1, url=url, ca_file=ca_file), supervising(tmp_path, port, 1) as there:
            plan = dataclasses.replace(
                plan_for(server.address, tmp_path),
                credentials=True,
                tls=Tls(name="localhost", ca_pem=runs.ca.read_text()),
            )
            if ca == "own":
                start(plan, fleet=there).wait(lambda _: None)
            else:
                with pytest.raises(RunFailed, match=r"certificate of localhost is not verified.*--ca-file"):
                    start(plan, fleet=there).wait(lambda _: None)
        named = f"host: localhost:{server.address.port}".encode()
        assert all(named in head and b"aHVudGVyMg==" in head for head in server.heads)
        assert bool(server.heads) == (ca == "own")


def test_a_worker_shows_its_certificate_to_no_other_address_of_a_cluster_either(tmp_path: Path) -> None:
    port = free_port()
    made = certificates.made(tmp_path)
    cert, key = map(str, made.client())
    demanding = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    demanding.load_cert_chain(made.server)
    demanding.load_verify_locations(made.ca)
    demanding.verify_mode = ssl.CERT_REQUIRED
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    plain.load_cert_chain(made.server)
    asked = Tls(name="localhost", ca_pem=made.ca.read_text())
    with bulk_server(tls=plain) as server, bulk_server(tls=demanding) as thief:
        with agents(tmp_path, port, 1), supervising(tmp_path, port, 1) as there:
            # The files are named by the run, which may guess where they are.
            others = (Place(endpoint=thief.address, tls=dataclasses.replace(asked, client_cert=cert, client_key=key)),)
            plan = dataclasses.replace(plan_for(server.address, tmp_path), tls=asked, others=others)
            with pytest.raises(RunFailed, match=r"machine-0.*--credentials-to"):
                start(plan, fleet=there).wait(lambda _: None)
        assert server.heads == thief.heads == []


def test_a_key_that_is_not_known_does_not_join_and_does_not_stand_in_the_way(tmp_path: Path) -> None:
    port = free_port()
    known = keys.read_run(keys_in(tmp_path) / keys.RUN_FILE)
    remote = Remote(bind=Endpoint("127.0.0.1", port), workers=1, keys=known, patience_s=120)
    told: list[str] = []
    other = tmp_path / "other"
    # They know whom to join: only their own halves are not known there.
    keys.write_new(other / "keys", 1)
    pair = json.loads((other / "keys" / "worker-1.key").read_text())
    (other / "keys" / "worker-1.key").write_text(json.dumps(pair | {"run": known.own.public}))
    with bulk_server() as server, agents(other, port, 1) as unknown, joined_later(remote, told, tmp_path) as there:
        said = unknown[0].communicate(timeout=30)[1]
        assert unknown[0].returncode == 1
        assert "refused us: our key is not among those of this run" in said
        report = start(plan_for(server.address, tmp_path), fleet=there).wait(lambda _: None)
    assert report.bytes_written == server.bytes_read
    assert [line for line in told if "refused 127.0.0.1: its key is not among those of this run" in line]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("theirs", "here", "there"),
    [
        ("self", "refused 127.0.0.1: its key is not among those of this run", "our key is not among those of this run"),
        ("run", "refused somebody who does not speak our protocol with the key", "does not have the key of our run"),
    ],
    ids=["unknown key", "rogue master"],
)
def test_who_is_refused_ends_and_both_sides_say_why_within_five_seconds(
    tmp_path: Path, theirs: str, here: str, there: str
) -> None:
    port = free_port()
    known = keys.read_run(keys_in(tmp_path) / keys.RUN_FILE)
    other = keys_in(tmp_path / "other") / "worker-1.key"
    if theirs == "self":
        other.write_text(json.dumps(json.loads(other.read_text()) | {"run": known.own.public}))
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import ingest_bench.load.fleet.fleet_worker"], check=True)
    # Two processes start, one after the other, before anybody speaks.
    limit_s = 5 + 2 * (time.monotonic() - began)
    told: list[str] = []
    started: list[Any] = []
    with ExitStack() as stack:

        def tell(line: str) -> None:
            told.append(line)
            if line.startswith("waiting"):
                started.extend(stack.enter_context(agents(tmp_path / "other", port, 1)))

        remote = Remote(bind=Endpoint("127.0.0.1", port), workers=1, keys=known, patience_s=limit_s)
        with pytest.raises(RunFailed, match="0 of 1 workers"), joined(remote, tell):
            pass
        assert started[0].poll() == 1
        assert there in started[0].stderr.read()
    assert [line for line in told if line.startswith(here)] == told[1:]


def test_a_port_that_is_taken_ends_the_run_before_anybody_is_waited_for(tmp_path: Path) -> None:
    known = keys.read_run(keys_in(tmp_path) / keys.RUN_FILE)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = Endpoint("127.0.0.1", taken.getsockname()[1])
        remote = Remote(bind=bind, workers=1, keys=known)
        with pytest.raises(RunFailed, match=rf"{bind}: workers cannot join there \(Address already in use\)"):
            stack_of(joined(remote, lambda _: None))
        remote = Remote(bind=Endpoint("127.0.0.1", free_port()), workers=1, keys=known)
        with pytest.raises(RunFailed, match=rf"{bind}: Locust's page cannot be shown there \(Address already in use\)"):
            stack_of(joined(remote, lambda _: None, bind))


def stack_of(fleet: AbstractContextManager[Fleet]) -> None:
    with fleet:
        raise AssertionError("it should not have begun")


def test_no_key_is_in_a_list_of_processes_or_in_a_log(tmp_path: Path) -> None:
    port = free_port()
    secrets = [json.loads(path.read_text())["secret"].encode() for path in keys_in(tmp_path).iterdir()]
    seen: list[bytes] = []

    def look(progress: Progress) -> None:
        if progress.phase == "measure" and not seen:
            for path in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    seen.append((path / "cmdline").read_bytes() + (path / "environ").read_bytes())

    with bulk_server() as server, agents(tmp_path, port, 1), supervising(tmp_path, port, 1) as there:
        start(plan_for(server.address, tmp_path), fleet=there).wait(look)
        written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "keys"]
    assert [text for text in seen if b"ingest_bench.load.fleet.fleet_worker" in text]
    assert not [text for text in (*seen, *written) if any(secret in text for secret in secrets)]


@contextmanager
def joined_later(remote: Remote, told: list[str], folder: Path) -> Iterator[Fleet]:
    """The fleet once a worker that may join has joined, which comes later than the others."""
    with agents(folder, remote.bind.port, 1), joined(remote, told.append) as fleet:
        yield fleet


def ends(started: list[Any]) -> list[tuple[int, str]]:
    """Exit code and standard error of each, waited for."""
    said = [one.communicate(timeout=60)[1] for one in started]
    return [(one.returncode, text) for one, text in zip(started, said, strict=True)]


def sender_in(folder: Path) -> int:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_text().split("\0")
        except OSError:
            continue
        if "ingest_bench.load.fleet.fleet_worker" in words and is_below(int(path.parent.name), folder):
            return int(path.parent.name)
    raise AssertionError(f"nobody sends from {folder}")


def is_below(pid: int, folder: Path) -> bool:
    """Whether a process has a file open there."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if link.readlink().is_relative_to(folder):
                return True
    return False
