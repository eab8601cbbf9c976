"""`run --url --workers` and `worker`, as a user types them: on machines that are namespaces, or all on this one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from machines import Machine, machines
from running import free_port, running
from test_fleet_load import keys_in, sender_in

from ingest_bench import targets
from ingest_bench.cli import app
from ingest_bench.jvm.process import Launch, serve
from ingest_bench.model.results import RunRecord
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.results import layout
from ingest_bench.targets.http import Http, ask

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


class Supervisor:
    """A `run` and its workers, of which each writes what it says into a file."""

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

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def timed(self, wanted: Mapping[str, str], limit_s: float) -> None:
        """Each of these says its text within that time from now on. It is printed: when, who, and which line."""
        began, missing = time.monotonic(), dict(wanted)
        while missing:
            now_s = time.monotonic() - began
            for name in list(missing):
                said = " ".join(self.said(name).split())
                if found := re.search(missing[name], said):
                    sys.stdout.write(f"{now_s:5.1f} s  {name}: {found[0]}\n")
                    del missing[name]
            assert now_s < limit_s, f"{missing} within {limit_s} s: {self.said(next(iter(missing), 'run'))}"
            time.sleep(0.05)

    @property
    def record(self) -> RunRecord:
        """Of the one run in the newest folder of results."""
        (record,) = layout.open_results(self._newest).records().values()
        return record

    @property
    def summary(self) -> dict[str, Any]:
        (found,) = json.loads((self._newest / "summary.json").read_text())
        return dict(found["values"])

    @property
    def _newest(self) -> Path:
        return max(self.folder.glob("results/*/*/plan.json")).parent


@contextmanager
def supervisor(folder: Path) -> Iterator[Supervisor]:
    with ExitStack() as stack:
        yield Supervisor(stack, folder)


@contextmanager
def server_on(at: Machine, here: Machine, folder: Path, options: TargetOptions = SINK) -> Iterator[Http]:
    """A server on one machine, and how to ask it from another one."""
    target, listen = targets.named(options.name), Endpoint(at.address, 9200)
    plan = target.launch_plan(options, targets.fetch(target.requirements(options)), folder / "home", 0, (listen,), ())
    with ask(here.place.command, listen) as http:
        launch = Launch(
            plan=plan,
            enter=at.place.command,
            log=folder / "server.log",
            listen=listen,
            ready=lambda left_s: target.is_ready(0, (http.within(left_s),)),
        )
        with serve(launch, timeout_s=180):
            yield http


@pytest.mark.nightly
@pytest.mark.netns
@pytest.mark.parametrize("what", ["load", "track"])
def test_four_workers_in_four_namespaces_send_exactly_what_is_counted(tmp_path: Path, what: str) -> None:
    more = SHORT if what == "load" else OF_TRACK
    with machines(6) as (at, here, *there), server_on(at, here, tmp_path) as http, supervisor(tmp_path) as each:
        workers = [
            each.start(f"worker-{n}", "worker", "--connect", here.address, enter=machine.place.command)
            for n, machine in enumerate(there)
        ]
        options = ("--url", http.origin, "--workers", "4", "--bind", here.address)
        run = each.start("run", "run", *options, *more, enter=here.place.command)
        assert run.wait(LIMIT_S) == 0, each.said("run")
        assert [worker.wait(LIMIT_S) for worker in workers] == [0] * 4
        record, values = each.record, each.summary
        counted = targets.named("sink").count((http,), ())
        assert record.state == "measured"
        assert counted == record.documents_counted == values["documents_acked"] > 0
        # Each document of the track's files once, whoever sent it.
        assert what == "load" or counted == 1500
        used = {clock.machine.split(", ")[1].split(":")[0] for clock in record.clock_offsets}
        assert used == {machine.address for machine in there}
        # One kernel has one clock: what was measured of it is an error, at most half of the round trip.
        for clock in record.clock_offsets:
            assert abs(clock.before_ns) <= clock.round_trip_ns / 2 + 1
    secrets = [json.loads(path.read_text())["secret"] for path in keys_in(tmp_path).iterdir()]
    written = b"".join(path.read_bytes() for path in tmp_path.glob("results/**/*") if path.is_file())
    assert not any(secret.encode() in written for secret in secrets)


def killed(sender: int, _: Machine) -> None:
    os.kill(sender, signal.SIGKILL)


def stopped(sender: int, _: Machine) -> None:
    os.kill(sender, signal.SIGSTOP)
    threading.Timer(10, os.kill, (sender, signal.SIGCONT)).start()


def cut_off(_: int, at: Machine) -> None:
    at.place.run(("ip", "link", "set", "eth0", "down"))


LOST = r"load worker \d of 4 \([^()]*, worker-2, pid \d+\): is gone: it was not heard for \d\.\d s"


@pytest.mark.nightly
@pytest.mark.netns
@pytest.mark.parametrize(
    ("lose", "name"),
    [pytest.param(killed, "opensearch", marks=pytest.mark.opensearch), (stopped, "sink"), (cut_off, "sink")],
)
def test_a_worker_that_is_lost_ends_the_run_within_ten_seconds_with_its_name(
    tmp_path: Path, lose: Callable[[int, Machine], None], name: str
) -> None:
    server = TargetOptions(name=name, heap_bytes=(256 if name == "sink" else 512) << 20)
    with (
        machines(6) as (at, here, *there),
        server_on(at, here, tmp_path, server) as http,
        supervisor(tmp_path) as each,
    ):
        workers, run = four(each, here, there, http)
        lose(sender_in(tmp_path / "worker-1"), there[1])
        each.timed({"run": LOST}, 10)
        # Whoever was cut off knows it too, once it has given up the last answers (20 s). Who was stopped may be back
        # for the end of the experiment.
        if lose is cut_off:
            each.timed({"worker-1": "ended before its experiment did"}, 40)
        assert run.wait(LIMIT_S) == 3
        ends = [worker.wait(LIMIT_S) for worker in workers]
        assert ends == [0, ends[1] if lose is stopped else 3, 0, 0]
        assert each.record.state == "failed"


@pytest.mark.nightly
@pytest.mark.netns
def test_a_run_that_is_killed_frees_its_workers_within_ten_seconds_and_can_be_resumed(tmp_path: Path) -> None:
    server = TargetOptions(name="sink", heap_bytes=256 << 20)
    with (
        machines(6) as (at, here, *there),
        server_on(at, here, tmp_path, server) as http,
        supervisor(tmp_path) as each,
    ):
        workers, run = four(each, here, there, http, *SHORT, "--measure", "8s")
        run.kill()
        (folder,) = tmp_path.glob("results/*/*/plan.json")
        # A new one at once, at the same address: those of the old one have no place in it.
        resumed = ("--resume", str(folder.parent), "--workers", "4", "--bind", here.address)
        again = each.start("run", "run", *resumed, enter=here.place.command)
        each.timed({f"worker-{n}": "ended before its experiment did" for n in range(4)}, 10)
        assert [worker.wait(LIMIT_S) for worker in workers] == [3] * 4
        workers = [
            each.start(f"worker-{n}", "worker", "--connect", here.address, enter=machine.place.command)
            for n, machine in enumerate(there)
        ]
        assert again.wait(LIMIT_S) == 0, each.said("run")
        assert [worker.wait(LIMIT_S) for worker in workers] == [0] * 4
        assert each.record.documents_counted == each.summary["documents_acked"] > 0


def four(
    each: Supervisor, here: Machine, there: Sequence[Machine], http: Http, *options: str
) -> tuple[list[subprocess.Popen[bytes]], subprocess.Popen[bytes]]:
    """Four workers, each on its machine, and the `run` that measures for a minute, once all of them send."""
    workers = [
        each.start(f"worker-{n}", "worker", "--connect", here.address, enter=machine.place.command)
        for n, machine in enumerate(there)
    ]
    where = ("--url", http.origin, "--workers", "4", "--bind", here.address)
    run = each.start("run", "run", *where, *(options or (*SHORT, "--measure", "60s")), enter=here.place.command)
    limit = time.monotonic() + LIMIT_S
    while sum(path.stat().st_size > 0 for path in each.folder.glob("worker-*/*/load-1/samples-*.bin")) < 4:
        assert time.monotonic() < limit, each.said("run")
        assert run.poll() is None, each.said("run")
        time.sleep(0.05)
    return workers, run


@pytest.mark.nightly
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
        assert f"{os.uname().nodename}, 127.0.0.1, worker-2, " in each.record.reason
        # Nothing of the run is left on the server, and nothing of the load on the machine.
        assert not list((tmp_path / "worker-0").iterdir())


@pytest.mark.nightly
@pytest.mark.parametrize("stage", ["waiting", "preparing", "measuring", "ending"])
def test_ctrl_c_ends_the_run_in_order_and_frees_its_workers_within_ten_seconds(tmp_path: Path, stage: str) -> None:
    port = free_port()
    with running(tmp_path, SINK) as (http, _), supervisor(tmp_path) as each:
        run = each.start("run", "run", "--url", http.origin, "--workers", "2", "--bind", f"127.0.0.1:{port}", *SHORT)
        workers = [each.start("worker-0", "worker", "--connect", f"127.0.0.1:{port}")]
        reached(each, "worker-0", "joined")
        if stage != "waiting":
            workers.append(each.start("worker-1", "worker", "--connect", f"127.0.0.1:{port}"))
            reached(each, "worker-1", "load 1" if stage == "preparing" else "joined")
        if stage in {"measuring", "ending"}:
            wanted = "samples-0.bin" if stage == "measuring" else "load-0.json"
            limit = time.monotonic() + LIMIT_S
            while not any(path.stat().st_size for path in tmp_path.glob(f"worker-*/*/load-1/{wanted}")):
                assert time.monotonic() < limit, each.said("run")
                time.sleep(0.02)
        began = time.monotonic()
        run.send_signal(signal.SIGINT)
        assert run.wait(LIMIT_S) == 130, each.said("run")
        assert {worker.wait(LIMIT_S) for worker in workers} <= {0, 3}
        assert time.monotonic() - began < 20
        assert not [path for name in ("worker-0", "worker-1") for path in (tmp_path / name).glob("*")]


def reached(each: Supervisor, name: str, text: str) -> None:
    limit = time.monotonic() + LIMIT_S
    while text not in each.said(name):
        assert time.monotonic() < limit, each.said(name)
        time.sleep(0.02)


@pytest.mark.nightly
def test_queries_go_through_workers_too_and_two_cells_take_one_joining(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, SINK) as (http, _), supervisor(tmp_path) as each:
        workers = [each.start(f"worker-{n}", "worker", "--connect", f"127.0.0.1:{port}") for n in range(2)]
        options = ("--url", f"{http.origin}", "--workers", "2", "--bind", f"127.0.0.1:{port}")
        queries = ("--set", "workload=geonames", "--set", "query_users=1,3", "--set", "query_arrivals=20/s")
        run = each.start("run", "run", *options, *SHORT, *queries)
        assert run.wait(LIMIT_S) == 0, each.said("run")
        assert [worker.wait(LIMIT_S) for worker in workers] == [0, 0]
        (folder,) = tmp_path.glob("results/*/*")
        found = json.loads((folder / "summary.json").read_text())
        assert [one["state"] for one in found] == ["measured"] * 2
        for one in found:
            values = one["values"]
            assert values["documents_counted"] == values["documents_acked"] > 0
            # 20 a second for 2 s, however many users on however many machines, and those of the warm-up that were late.
            assert 38 <= values["queries"] <= 60
            # Those that were due at the end, when no user was free any more: several on a busy machine.
            assert values["queries_failed"] <= 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--bind", "127.0.0.1"), "--bind is where --workers N join; how many?"),
        (
            (
                "--url",
                "http://127.0.0.1:1",
                "--workers",
                "2",
            ),
            "--new-keys DIR` makes them",
        ),
        (("--url", "http://127.0.0.1:1", "--workers", "2", "--keys", "KEY", "--bind", "x:y"), "write it like"),
        (("--workers", "2", "--keys", "KEY"), "measure one that runs already: --url URL"),
        (
            ("--url", "http://127.0.0.1:1", "--workers", "2", "--keys", "KEY", "--set", "processes=2"),
            "each worker is one process",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    options: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("INGEST_BENCH_KEYS", raising=False)
    options = tuple(str(keys_in(tmp_path) / "run.key") if word == "KEY" else word for word in options)
    assert app.run(["run", *(() if "--url" in options else ("quickstart",)), *options]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
