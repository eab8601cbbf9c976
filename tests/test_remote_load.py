"""Loads whose workers join over TCP, as from other machines."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from bulk_server import bulk_server
from test_load_process import plan_for, samples_of

from ingest_bench.errors import RunFailed
from ingest_bench.load import Progress, Remote, RemoteWorker, joined, start
from ingest_bench.load.agent import Agent
from ingest_bench.load.wire import Wire
from ingest_bench.model.target import Endpoint
from ingest_bench.model.track import Step, TrackFile
from ingest_bench.rates import parse_arrivals

pytestmark = pytest.mark.processes

KNOWN = "open sesame"
JOIN = """
import sys
from pathlib import Path
from ingest_bench.errors import RunFailed
from ingest_bench.load import agent
from ingest_bench.model.target import Endpoint
try:
    agent.join(Endpoint("127.0.0.1", int(sys.argv[1])), sys.argv[2], Path(sys.argv[3]), print, name=sys.argv[4])
except RunFailed as error:
    sys.exit(str(error))
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def agents(folder: Path, port: int, count: int, *, secret: str = KNOWN) -> Iterator[list[Any]]:
    """So many other machines, all of them this one."""
    started = []
    for number in range(count):
        name = f"machine-{number}"
        argv = [sys.executable, "-c", JOIN, str(port), secret, str(folder / name), name]
        started.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    try:
        yield started
    finally:
        for one in started:
            one.kill()
            one.communicate()


@contextmanager
def supervising(port: int, workers: int) -> Iterator[tuple[RemoteWorker, ...]]:
    remote = Remote(bind=Endpoint("127.0.0.1", port), workers=workers, secret=KNOWN, patience_s=120)
    with joined(remote, lambda _: None) as there:
        yield there


def test_workers_from_elsewhere_bring_all_their_samples_and_the_sums_are_exact(tmp_path: Path) -> None:
    port = free_port()
    with bulk_server() as server, agents(tmp_path, port, 2) as started:
        plan = plan_for(server.address, tmp_path, arrivals=parse_arrivals("200/s"))
        with supervising(port, 2) as there:
            report = start(plan, joined=there).wait(lambda _: None)
        assert ends(started) == [(0, ""), (0, "")]
    samples = samples_of(plan)
    assert report.bytes_written == server.bytes_read == samples["bytes_sent"].sum()
    assert samples["documents_acked"].sum() == server.documents
    assert set(report.local_ports) == server.ports
    assert [clock.worker for clock in report.clock_offsets] == [0, 1]
    assert {clock.machine.partition(",")[0] for clock in report.clock_offsets} == {"machine-0", "machine-1"}
    assert len(json.loads((plan.out / "load.json").read_text())["clock_offsets"]) == 2
    # One machine, one clock: each planned time of the schedule is there once, as near as the clock was measured.
    planned = sorted(samples["planned_ns"] - report.started_monotonic_ns)
    assert len(planned) == 160
    worst_ns = max(clock.round_trip_ns for clock in report.clock_offsets)
    assert all(abs(at_ns - n * 5_000_000) <= 2 * worst_ns + 1000 for n, at_ns in enumerate(planned))


def test_workers_that_joined_once_send_load_after_load_with_other_numbers_of_users(tmp_path: Path) -> None:
    port = free_port()
    plans = [tmp_path / "one", tmp_path / "two", tmp_path / "three"]
    with bulk_server() as server, agents(tmp_path, port, 2) as started:
        with supervising(port, 2) as there:
            for folder, users in zip(plans, (4, 1, 2), strict=True):
                folder.mkdir()
                before = server.documents
                plan = plan_for(server.address, folder, users=users)
                report = start(plan, joined=there).wait(lambda _: None)
                samples = samples_of(plan)
                assert set(samples["user"]) == set(range(users))
                assert samples["documents_acked"].sum() == server.documents - before > 0
                # With one user there is work for one of them.
                assert len(report.clock_offsets) == min(users, 2)
                # What a machine kept of a load is gone there once it is here.
                assert not [path for one in ("machine-0", "machine-1") for path in (tmp_path / one).glob("*/samples*")]
        assert ends(started) == [(0, ""), (0, "")]


def test_a_worker_that_dies_ends_the_load_with_its_name_and_all_loads_after_it(tmp_path: Path) -> None:
    port = free_port()
    with bulk_server() as server, agents(tmp_path, port, 2) as started:
        plan = plan_for(server.address, tmp_path, measure_ns=60 * 10**9)
        with suppress(KeyboardInterrupt), supervising(port, 2) as there:
            process = start(plan, joined=there)

            def kill(progress: Progress) -> None:
                if progress.phase == "measure":
                    started[0].kill()

            with pytest.raises(RunFailed, match=r"load worker . of 2 \(machine-0, .*is gone in phase"):
                process.wait(kill)
            with pytest.raises(RunFailed, match=r"machine-0, .*is gone \("):
                start(plan, joined=there)
            raise KeyboardInterrupt
        # The other one ends too, with an error: nobody told it that all was done.
        said = started[1].communicate(timeout=60)[1]
        assert started[1].returncode == 1
        assert "ended before its experiment did" in said


def test_after_a_load_that_failed_the_same_workers_send_the_next_one(tmp_path: Path) -> None:
    port = free_port()
    with bulk_server() as server, agents(tmp_path, port, 2) as started:
        with supervising(port, 2) as there:
            nobody = plan_for(Endpoint("127.0.0.1", free_port()), tmp_path)
            with pytest.raises(RunFailed, match=r"every request failed|refused"):
                start(nobody, joined=there).wait(lambda _: None)
            plan = plan_for(server.address, tmp_path)
            start(plan, joined=there).wait(lambda _: None)
            assert samples_of(plan)["documents_acked"].sum() == server.documents > 0
        assert ends(started) == [(0, ""), (0, "")]


def test_the_process_that_sends_there_dying_is_told_with_its_log(tmp_path: Path) -> None:
    port = free_port()
    with bulk_server() as server, agents(tmp_path, port, 1), supervising(port, 1) as there:
        process = start(plan_for(server.address, tmp_path, measure_ns=60 * 10**9), joined=there)

        killed: list[int] = []

        def kill(progress: Progress) -> None:
            if progress.phase == "measure" and not killed:
                killed.append(sender_in(tmp_path / "machine-0"))
                os.kill(killed[0], signal.SIGKILL)

        with pytest.raises(RunFailed, match=r"machine-0.*was killed by signal 9"):
            process.wait(kill)


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
    with bulk_server() as server, agents(tmp_path, port, 2), supervising(port, 2) as there:
        server.keep_bodies = True
        plan = dataclasses.replace(plan_for(server.address, tmp_path, measure_ns=600 * 10**9), step=step)
        start(plan, joined=there).wait(lambda _: None)
        sent = [line for body in server.bodies for line in body.splitlines()[1::2]]
    assert len(sent) == len(set(sent)) == 4000


def test_a_worker_says_who_we_are_from_its_own_environment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("INGEST_BENCH_API_KEY", "aHVudGVyMg==")
    with bulk_server() as server, agents(tmp_path, port, 1):
        plan = dataclasses.replace(plan_for(server.address, tmp_path), credentials=True)
        monkeypatch.delenv("INGEST_BENCH_API_KEY")
        with supervising(port, 1) as there:
            start(plan, joined=there).wait(lambda _: None)
    assert server.heads
    assert all(b"authorization: ApiKey aHVudGVyMg==" in head for head in server.heads)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"aHVudGVyMg" in text or b"hunter2" in text for text in written)


def test_a_worker_that_does_not_know_who_we_are_says_what_to_set(tmp_path: Path) -> None:
    port = free_port()
    with bulk_server() as server, agents(tmp_path, port, 1), supervising(port, 1) as there:
        plan = dataclasses.replace(plan_for(server.address, tmp_path), credentials=True)
        with pytest.raises(RunFailed, match=r"machine-0, .*environment of this load worker has none; set INGEST_BENCH"):
            start(plan, joined=there).wait(lambda _: None)


def test_a_wrong_secret_does_not_join_and_does_not_stand_in_the_way(tmp_path: Path) -> None:
    port = free_port()
    with (
        bulk_server() as server,
        agents(tmp_path / "wrong", port, 1, secret=KNOWN[::-1]) as wrong,
        agents(tmp_path, port, 1),
        supervising(port, 1) as there,
    ):
        report = start(plan_for(server.address, tmp_path), joined=there).wait(lambda _: None)
        if wrong[0].poll() is not None:
            # A refusal that was on its way is lost when the connection is reset behind it.
            assert re.search("refused us|is gone", wrong[0].stderr.read())
    assert report.bytes_written == server.bytes_read


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
        if "ingest_bench.load.worker" in words and any(word.startswith(str(folder)) for word in words):
            return int(path.parent.name)
    raise AssertionError(f"nobody sends from {folder}")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"worker": "../../x"}, 'worker: "../../x" is not a whole number'),
        ({"workload": []}, "workload: a list is not an object"),
        ({"surprise": 1}, 'the key "surprise" is not known here'),
        ({"out": None}, "out: null is not a path"),
    ],
)
def test_a_load_that_cannot_be_understood_makes_nothing_on_the_workers_machine(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    table = plan_for(Endpoint("127.0.0.1", 9), tmp_path).table() | changed
    before = sorted(tmp_path.iterdir())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        supervisor = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    with supervisor, accepted:
        supervisor.sendall(json.dumps({"load": table, "files": {}}).encode() + b"\n")
        with pytest.raises(RunFailed, match=re.escape(f"cannot be understood: {said}")):
            Agent(Wire(accepted), tmp_path / "here", print).run()
    assert sorted(tmp_path.iterdir()) == before
