"""`run --url --workers` and `worker`, as a user types them: on machines that are namespaces, or all on this one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from machines import Machine, machines
from running import free_port, running

from ingest_bench import store, targets
from ingest_bench.cli import app
from ingest_bench.jvm.process import serve
from ingest_bench.model.results import RunRecord
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.targets.http import Http, ask

pytestmark = [pytest.mark.processes, pytest.mark.jvm]

SINK = TargetOptions(name="sink", heap_bytes=256 << 20)
TRACK = str(Path(__file__).parent / "data" / "track")
KNOWN = "open sesame"
LIMIT_S = 120
Enter = Callable[[Sequence[str]], Sequence[str]]
OF_TRACK = ("--track", TRACK, "--track-params", "bulk_indexing_clients:4", "--allow-delete")
SHORT = ("--warm-up", "1s", "--measure", "2s", "--set", "users=8", "--set", "bulk_documents=100")


class Supervisor:
    """A `run` and its workers, of which each writes what it says into a file."""

    def __init__(self, stack: ExitStack, folder: Path, secret: str) -> None:
        self._stack = stack
        self._folder = folder
        self._environment = os.environ | {"INGEST_BENCH_SECRET": secret}

    def start(self, name: str, *arguments: str, enter: Enter = tuple) -> subprocess.Popen[bytes]:
        (self._folder / name).mkdir(exist_ok=True)
        argv = enter((sys.executable, "-c", "from ingest_bench.cli import main; main()", *arguments))
        log = self._stack.enter_context((self._folder / f"{name}.log").open("wb"))
        environment = self._environment | {"TMPDIR": str(self._folder / name)}
        popen = subprocess.Popen(argv, stdout=log, stderr=log, cwd=self._folder, env=environment)
        self._stack.callback(popen.wait)
        self._stack.callback(popen.kill)
        return popen

    def said(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    @property
    def record(self) -> RunRecord:
        """Of the one run in the newest folder of results."""
        (record,) = store.open_results(self._newest).records().values()
        return record

    @property
    def summary(self) -> dict[str, Any]:
        (found,) = json.loads((self._newest / "summary.json").read_text())
        return dict(found["values"])

    @property
    def _newest(self) -> Path:
        return max(self._folder.glob("results/*/*/plan.json")).parent


@contextmanager
def supervisor(folder: Path, secret: str = KNOWN) -> Iterator[Supervisor]:
    with ExitStack() as stack:
        yield Supervisor(stack, folder, secret)


@contextmanager
def sink_on(at: Machine, here: Machine, folder: Path) -> Iterator[Http]:
    """A sink on one machine, and how to ask it from another one."""
    target, listen = targets.named("sink"), Endpoint(at.address, 9200)
    plan = target.launch_plan(SINK, targets.fetch(target.requirements(SINK)), folder / "home", listen, ())
    with ask(here.place.command, listen) as http:
        log = folder / "server.log"
        with serve(
            plan,
            enter=at.place.command,
            log=log,
            listen=listen,
            ready=lambda left_s: target.is_ready(http.within(left_s)),
            timeout_s=60,
        ):
            yield http


@pytest.mark.netns
@pytest.mark.parametrize("what", ["load", "track"])
def test_four_workers_in_four_namespaces_send_exactly_what_is_counted(tmp_path: Path, what: str) -> None:
    more = SHORT if what == "load" else OF_TRACK
    with machines(6) as (at, here, *there), sink_on(at, here, tmp_path) as http, supervisor(tmp_path) as each:
        workers = [
            each.start(f"worker-{n}", "worker", "--connect", here.address, enter=machine.place.command)
            for n, machine in enumerate(there)
        ]
        options = ("--url", http.origin, "--workers", "4", "--bind", here.address)
        run = each.start("run", "run", *options, *more, enter=here.place.command)
        assert run.wait(LIMIT_S) == 0, each.said("run")
        assert [worker.wait(LIMIT_S) for worker in workers] == [0] * 4
        record, values = each.record, each.summary
        counted = targets.named("sink").count_documents(http, ())
        assert record.state == "measured"
        assert counted == record.documents_counted == values["documents_acked"] > 0
        # Each document of the track's files once, whoever sent it.
        assert what == "load" or counted == 1500
        used = {clock.machine.split(", ")[1].split(":")[0] for clock in record.clock_offsets}
        assert used == {machine.address for machine in there}
        # One kernel has one clock: what was measured of it is an error, at most half of the round trip.
        for clock in record.clock_offsets:
            assert abs(clock.before_ns) <= clock.round_trip_ns / 2 + 1
    assert KNOWN not in "".join(path.read_text() for path in tmp_path.glob("results/**/*.json"))


def test_a_worker_that_is_killed_fails_the_run_with_its_name_and_the_other_one_ends(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, SINK) as (http, _), supervisor(tmp_path) as each:
        workers = [each.start(f"worker-{n}", "worker", "--connect", f"127.0.0.1:{port}") for n in range(2)]
        options = ("--url", f"{http.origin}", "--workers", "2", "--bind", f"127.0.0.1:{port}")
        run = each.start("run", "run", *options, "--measure", "60s")
        limit = time.monotonic() + LIMIT_S
        while not any(path.stat().st_size for path in tmp_path.glob("worker-1/*/load-1/samples-*.bin")):
            assert time.monotonic() < limit, each.said("run")
            assert run.poll() is None, each.said("run")
            time.sleep(0.05)
        workers[1].send_signal(signal.SIGKILL)
        assert run.wait(LIMIT_S) == 3
        assert workers[0].wait(LIMIT_S) == 0
        assert each.record.state == "failed"
        assert "is gone" in each.record.reason
        assert f"{os.uname().nodename}, 127.0.0.1:" in each.record.reason
        # Nothing of the run is left on the server, and nothing of the load on the machine.
        assert not list((tmp_path / "worker-0").iterdir())


def test_queries_go_through_workers_too_and_two_cells_take_one_joining(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, SINK) as (http, _), supervisor(tmp_path, secret="") as each:
        workers = [each.start(f"worker-{n}", "worker", "--connect", f"127.0.0.1:{port}") for n in range(2)]
        options = ("--url", f"{http.origin}", "--workers", "2", "--bind", f"127.0.0.1:{port}")
        queries = ("--set", "workload=geonames", "--set", "query_users=1,3", "--set", "query_arrivals=50/s")
        run = each.start("run", "run", *options, *SHORT, *queries)
        assert run.wait(LIMIT_S) == 0, each.said("run")
        assert [worker.wait(LIMIT_S) for worker in workers] == [0, 0]
        (folder,) = tmp_path.glob("results/*/*")
        found = json.loads((folder / "summary.json").read_text())
        assert [one["state"] for one in found] == ["measured"] * 2
        for one in found:
            values = one["values"]
            assert values["documents_counted"] == values["documents_acked"] > 0
            # 50 a second for 2 s, however many users on however many machines.
            assert 95 <= values["queries"] <= 101
            assert values["queries_failed"] == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--workers", "2"), "measure one that runs already: --url URL"),
        (("--bind", "127.0.0.1"), "--bind is where --workers N join; how many?"),
        (("--url", "http://127.0.0.1:1", "--workers", "2", "--bind", "192.0.2.1"), "INGEST_BENCH_SECRET"),
        (("--url", "http://127.0.0.1:1", "--workers", "2", "--bind", "x:y"), "write it like"),
        (("--url", "http://127.0.0.1:1", "--workers", "2", "--set", "processes=2"), "each worker is one process"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INGEST_BENCH_SECRET", raising=False)
    assert app.run(["run", *(() if "--url" in options else ("quickstart",)), *options]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
