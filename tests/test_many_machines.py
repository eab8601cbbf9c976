"""`run --url --workers` and `worker` as processes: on machines that are namespaces, or all on this one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from machines import Machine, machines
from running import free_port, running
from servers import launched
from test_fleet_load import keys_in

from ingest_bench import targets
from ingest_bench.model.results import RunRecord
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.results import layout
from ingest_bench.targets.http import Http

pytestmark = [pytest.mark.processes, pytest.mark.jvm]

SINK = TargetOptions(name="sink", heap_bytes=256 << 20)
TRACK = str(Path(__file__).parent / "data" / "track")
LIMIT_S = 120
Enter = Callable[[Sequence[str]], Sequence[str]]
OF_TRACK = ("--track", TRACK, "--track-params", "bulk_indexing_clients:4", "--allow-delete")
SHORT = (
    *("--warm-up", "1s", "--measure", "2s"),
    *("--set", "users=8", "--set", "bulk_documents=100", "--set", "arrivals=100/s"),
)


def lasting(duration: str) -> tuple[str, ...]:
    """Return the options of SHORT with another duration of the measurement."""
    return tuple(duration if option == "2s" else option for option in SHORT)


class Processes:
    """A `run` and its workers, processes with a file for its output."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self.folder = folder
        self._keys = keys_in(folder)

    def start(self, name: str, *arguments: str, enter: Enter = tuple) -> subprocess.Popen[bytes]:
        (self.folder / name).mkdir(exist_ok=True)
        argv = enter((sys.executable, "-c", "from ingest_bench.cli import main; main()", *arguments))
        log = self._stack.enter_context((self.folder / f"{name}.log").open("wb"))
        key = "run" if name == "run" else f"worker-{int(name.rpartition('-')[2]) + 1}"
        environment = os.environ | {
            "TMPDIR": str(self.folder / name),
            "INGEST_BENCH_KEYS": str(self._keys / f"{key}.key"),
        }
        popen = subprocess.Popen(argv, stdout=log, stderr=log, cwd=self.folder, env=environment)
        self._stack.callback(popen.wait)
        self._stack.callback(popen.kill)
        return popen

    def start_workers(self, here: Machine, others: Sequence[Machine]) -> list[subprocess.Popen[bytes]]:
        """Start a worker on each of the other machines."""
        arguments = ("worker", "--connect", here.address)
        return [
            self.start(f"worker-{number}", *arguments, enter=machine.place.command)
            for number, machine in enumerate(others)
        ]

    def output(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait_for_texts(self, wanted: Mapping[str, str], limit_s: float) -> None:
        """Wait until each process has printed its text; print when, and which line."""
        start, missing = time.monotonic(), dict(wanted)
        while missing:
            now_s = time.monotonic() - start
            for name in list(missing):
                if match := re.search(missing[name], " ".join(self.output(name).split())):
                    sys.stdout.write(f"{now_s:5.1f} s  {name}: {match[0]}\n")
                    del missing[name]
            assert now_s < limit_s, f"{missing} within {limit_s} s: {self.output(next(iter(missing), 'run'))}"
            time.sleep(0.05)

    @property
    def record(self) -> RunRecord:
        """Return the record of the only run in the newest results."""
        (record,) = layout.open_results(self._newest).read_records().values()
        return record

    @property
    def summary(self) -> dict[str, Any]:
        (summary,) = json.loads((self._newest / "summary.json").read_text())
        return dict(summary["values"])

    @property
    def _newest(self) -> Path:
        return max(self.folder.glob("results/*/20*/plan.json")).parent


@contextmanager
def start_processes(folder: Path) -> Iterator[Processes]:
    with ExitStack() as stack:
        yield Processes(stack, folder)


@contextmanager
def server_on(at: Machine, here: Machine, folder: Path) -> Iterator[Http]:
    """Yield the client, on one machine, of a server on another one."""
    enter = (at.place.command, here.place.command)
    with launched(SINK, (Endpoint(at.address, 9200),), folder, enter=enter) as (http, _):
        yield http


@pytest.mark.nightly
@pytest.mark.netns
@pytest.mark.parametrize("kind", ["load", "track"])
def test_four_workers_send_exactly_what_is_counted(tmp_path: Path, kind: str) -> None:
    more = SHORT if kind == "load" else OF_TRACK
    with (
        machines(6) as (at, here, *there),
        server_on(at, here, tmp_path) as http,
        start_processes(tmp_path) as processes,
    ):
        workers = processes.start_workers(here, there)
        options = ("--url", http.origin, "--workers", "4", "--bind", here.address)
        run = processes.start("run", "run", *options, *more, enter=here.place.command)
        assert run.wait(LIMIT_S) == 0, processes.output("run")
        assert [worker.wait(LIMIT_S) for worker in workers] == [0] * 4
        record, values = processes.record, processes.summary
        count = targets.find_target("sink").count((http,), ())
        assert record.state == "measured"
        assert count == record.documents_counted == values["documents_acked"] > 0
        # Each document of the track's files once.
        assert kind == "load" or count == 1500
        used = {clock.machine.split(", ")[1].split(":")[0] for clock in record.clock_offsets}
        assert used == {machine.address for machine in there}
        # One kernel has one clock: what was measured of it is an error, at most half of the round trip.
        for clock in record.clock_offsets:
            assert abs(clock.offset_before_ns) <= clock.round_trip_ns / 2 + 1
    secrets = [json.loads(path.read_text())["secret"] for path in keys_in(tmp_path).iterdir()]
    written = b"".join(path.read_bytes() for path in tmp_path.glob("results/**/*") if path.is_file())
    assert not any(secret.encode() in written for secret in secrets)


LOST = r"load worker \d of 4 \([^()]*, worker-2, pid \d+\): is lost: no heartbeat for \d\.\d s"


@pytest.mark.nightly
@pytest.mark.netns
def test_a_worker_that_is_cut_off_fails_the_run_within_ten_seconds_with_its_name(tmp_path: Path) -> None:
    with (
        machines(6) as (at, here, *there),
        server_on(at, here, tmp_path) as http,
        start_processes(tmp_path) as processes,
    ):
        workers, run = start_four(processes, here, there, http)
        there[1].place.run(("ip", "link", "set", "eth0", "down"))
        processes.wait_for_texts({"run": LOST}, 10)
        # It notices it too, once it has given up the last responses (20 s).
        processes.wait_for_texts({"worker-1": "ended before its experiment did"}, 40)
        assert run.wait(LIMIT_S) == 3
        assert [worker.wait(LIMIT_S) for worker in workers] == [0, 3, 0, 0]
        assert processes.record.state == "failed"


@pytest.mark.nightly
@pytest.mark.netns
def test_a_killed_run_frees_its_workers_and_can_be_resumed(tmp_path: Path) -> None:
    with (
        machines(6) as (at, here, *there),
        server_on(at, here, tmp_path) as http,
        start_processes(tmp_path) as processes,
    ):
        workers, run = start_four(processes, here, there, http, *lasting("8s"))
        run.kill()
        (folder,) = tmp_path.glob("results/*/20*/plan.json")
        # A new run at once, at the same address: workers of the old one must not join it.
        resumed = ("--resume", str(folder.parent), "--workers", "4", "--bind", here.address)
        resumed_run = processes.start("run", "run", *resumed, enter=here.place.command)
        processes.wait_for_texts({f"worker-{n}": "ended before its experiment did" for n in range(4)}, 10)
        assert [worker.wait(LIMIT_S) for worker in workers] == [3] * 4
        workers = processes.start_workers(here, there)
        assert resumed_run.wait(LIMIT_S) == 0, processes.output("run")
        assert [worker.wait(LIMIT_S) for worker in workers] == [0] * 4
        assert processes.record.documents_counted == processes.summary["documents_acked"] > 0


def start_four(
    processes: Processes, here: Machine, there: Sequence[Machine], http: Http, *options: str
) -> tuple[list[subprocess.Popen[bytes]], subprocess.Popen[bytes]]:
    """Return four workers, each on its machine, and the `run`, once all workers send."""
    workers = processes.start_workers(here, there)
    where = ("--url", http.origin, "--workers", "4", "--bind", here.address)
    run = processes.start("run", "run", *where, *(options or lasting("60s")), enter=here.place.command)
    limit = time.monotonic() + LIMIT_S
    while sum(path.stat().st_size > 0 for path in processes.folder.glob("worker-*/*/load-1/samples-*.bin")) < 4:
        assert time.monotonic() < limit, processes.output("run")
        assert run.poll() is None, processes.output("run")
        time.sleep(0.05)
    return workers, run


@pytest.mark.nightly
@pytest.mark.parametrize("stage", ["waiting", "measuring"])
def test_ctrl_c_ends_the_run_and_frees_its_workers(tmp_path: Path, stage: str) -> None:
    port = free_port()
    with running(tmp_path, SINK) as (http, _), start_processes(tmp_path) as processes:
        run = processes.start(
            "run", "run", "--url", http.origin, "--workers", "2", "--bind", f"127.0.0.1:{port}", *SHORT
        )
        workers = [processes.start("worker-0", "worker", "--connect", f"127.0.0.1:{port}")]
        processes.wait_for_texts({"worker-0": "joined"}, LIMIT_S)
        if stage != "waiting":
            workers.append(processes.start("worker-1", "worker", "--connect", f"127.0.0.1:{port}"))
            limit = time.monotonic() + LIMIT_S
            while not any(path.stat().st_size for path in tmp_path.glob("worker-*/*/load-1/samples-0.bin")):
                assert time.monotonic() < limit, processes.output("run")
                time.sleep(0.02)
        start = time.monotonic()
        run.send_signal(signal.SIGINT)
        assert run.wait(LIMIT_S) == 130, processes.output("run")
        assert {worker.wait(LIMIT_S) for worker in workers} <= {0, 3}
        assert time.monotonic() - start < 20
        assert not [path for name in ("worker-0", "worker-1") for path in (tmp_path / name).glob("*")]
