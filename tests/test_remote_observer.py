"""`worker --watch PID` and `run --watchers`: JVMs of other machines are watched. The machines are namespaces."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from machines import Machine, machines
from servers import launched, list_outputs, visible
from test_many_machines import LIMIT_S, SHORT, Processes, lasting, start_processes

from ingest_bench import system, targets
from ingest_bench.jvm.attach import attach
from ingest_bench.jvm.process import Launch, ServerProcess, serve
from ingest_bench.load.fleet import keys
from ingest_bench.model.target import Endpoint, ServerAddress, TargetOptions
from ingest_bench.targets.base import NodeStart
from ingest_bench.targets.http import Http, open_http

pytestmark = [pytest.mark.processes, pytest.mark.jvm, pytest.mark.netns]

SINK = TargetOptions(name="sink", heap_bytes=64 << 20, receive_predictor_bytes=(512 << 10,))
LONG = lasting("60s")


@contextlib.contextmanager
def watched_sink(at: Machine, here: Machine, folder: Path) -> Iterator[tuple[Http, ServerProcess]]:
    """Yield a sink on one machine with its client on another one."""
    if not system.is_root():
        pytest.skip("a JVM in the namespace of an ordinary user has another uid")
    with (
        visible(),
        launched(SINK, (Endpoint(at.address, 9200),), folder, enter=(at.place.command, here.place.command)) as started,
    ):
        yield started


def start_observer(
    processes: Processes, at: Machine, here: Machine, pid: int, number: int = 0, *options: str
) -> subprocess.Popen[bytes]:
    watching = ("worker", "--watch", str(pid), "--connect", here.address, *options)
    return processes.start(f"worker-{number}", *watching, enter=at.place.command)


def start_run(processes: Processes, here: Machine, *options: str) -> subprocess.Popen[bytes]:
    return processes.start("run", "run", "--bind", here.address, *options, enter=here.place.command)


def test_server_on_another_machine_is_watched_as_on_this_one(tmp_path: Path) -> None:
    with (
        machines(3) as (at, here, sender),
        watched_sink(at, here, tmp_path) as (http, server),
        start_processes(tmp_path) as processes,
    ):
        jvm = attach(server.jvm_pid)
        outputs = list_outputs(jvm)
        observer = start_observer(processes, at, here, server.jvm_pid)
        worker = processes.start("worker-1", "worker", "--connect", here.address, enter=sender.place.command)
        run = start_run(processes, here, "--url", http.origin, "--watchers", "1", "--workers", "1", *SHORT)
        assert run.wait(LIMIT_S) == 0, processes.output("run") + processes.output("worker-0")
        assert [observer.wait(LIMIT_S), worker.wait(LIMIT_S)] == [0, 0]
        assert list_outputs(jvm) == outputs
        record, values = processes.record, processes.summary
        counted = http.request_json("GET", "/_counters")["by_peer_port"].values()
        (watching,), (sending,) = record.observers, record.clock_offsets
    assert values["bytes_read"] == values["bytes_sent"] > 1_000_000
    assert values["reads_recorded"] <= sum(port["reads"] for port in counted)
    assert values["gc_pauses"] == values["gc_pauses_log"] > 0
    assert values["server_cpu_s"] > 0
    assert record.server["pid"] == watching.pid == server.jvm_pid
    assert at.address in watching.clock.machine
    assert sender.address in sending.machine
    # One kernel has one clock: the rest is the time between reading its two clocks.
    for offset_ns in (watching.clock.offset_before_ns, watching.clock.offset_after_ns):
        assert abs(offset_ns) <= watching.clock.round_trip_ns / 2 + 100_000
    # Sent and read bytes say the same as the pings. The recorder of Java 17 may be early by 1 ms.
    error_ms = watching.clock.round_trip_ns / 2e6 + 1.1
    assert values["clock_offset_ms_min"] <= error_ms
    assert values["clock_offset_ms_max"] >= -error_ms
    assert not [path for name in ("worker-0", "worker-1") for path in (tmp_path / name).glob("*")]


@pytest.mark.nightly
def test_observer_shapes_the_interface_of_its_machine_and_restores_it(tmp_path: Path) -> None:
    (tmp_path / "slow.toml").write_text('medium = "veth"\n[to_server]\nrate = "40mbit"\n')
    shown = ("tc", "qdisc", "show", "dev", "eth0")
    with (
        machines(2) as (at, here),
        watched_sink(at, here, tmp_path) as (http, server),
        start_processes(tmp_path) as processes,
    ):
        before = at.place.run(shown)
        refused = start_observer(processes, at, here, server.jvm_pid, 1)
        shape = ("--interface", "eth0", "--port", "9200", "--set", "network=slow.toml", *SHORT[:4])
        run = start_run(processes, here, "--url", http.origin, "--watchers", "1", *shape)
        processes.wait_for_texts({"worker-1": "Allow it: start with --may-shape eth0"}, LIMIT_S)
        assert refused.wait(LIMIT_S) == 3
        observer = start_observer(processes, at, here, server.jvm_pid, 0, "--may-shape", "eth0")
        assert run.wait(LIMIT_S) == 0, processes.output("run")
        assert observer.wait(LIMIT_S) == 0
        assert at.place.run(shown) == before
        checks = {check.name: check.passed for check in processes.record.link_checks}
        values = processes.summary
    assert checks["qdisc to-server"] is checks["rate to-server"] is True
    assert values["qdisc_drops"] > 0
    assert values["bytes_read"] == values["bytes_sent"]


LOST = r"observer \([^()]*, worker-1, pid \d+\): is lost: (no heartbeat for \d\.\d s|it left)"


@pytest.mark.nightly
@pytest.mark.parametrize("stage", ["attaching", "measuring", "stopping"])
def test_killed_observer_fails_the_run_within_ten_seconds_with_its_name(tmp_path: Path, stage: str) -> None:
    with (
        machines(2) as (at, here),
        watched_sink(at, here, tmp_path) as (http, server),
        start_processes(tmp_path) as processes,
    ):
        jvm = attach(server.jvm_pid)
        outputs = list_outputs(jvm)
        observer = start_observer(processes, at, here, server.jvm_pid)
        run = start_run(
            processes, here, "--url", http.origin, "--watchers", "1", *(SHORT if stage == "stopping" else LONG)
        )
        processes.wait_for_texts({"worker-0": "run 1: probes"}, LIMIT_S)
        wait_for_stage(tmp_path, stage)
        observer.kill()
        processes.wait_for_texts({"run": LOST}, 10)
        assert run.wait(LIMIT_S) == 3
        assert processes.record.state == "failed"
        wait_for_outputs(jvm, outputs)


def wait_for_stage(folder: Path, stage: str) -> None:
    """Wait until the load measures, or until it has ended."""
    limit = time.monotonic() + LIMIT_S
    names = {"measuring": "samples-0.bin", "stopping": "load.json"}
    while stage in names and not any(path.stat().st_size for path in folder.glob(f"results/**/load/{names[stage]}")):
        assert time.monotonic() < limit
        time.sleep(0.02)


def wait_for_outputs(jvm: Any, outputs: Any) -> None:
    """Wait until the watchdog has removed everything from the JVM."""
    limit = time.monotonic() + 30
    while list_outputs(jvm) != outputs:
        assert time.monotonic() < limit, list_outputs(jvm)
        time.sleep(0.2)


@pytest.mark.nightly
def test_observer_detaches_when_the_run_is_killed(tmp_path: Path) -> None:
    with (
        machines(2) as (at, here),
        watched_sink(at, here, tmp_path) as (http, server),
        start_processes(tmp_path) as processes,
    ):
        jvm = attach(server.jvm_pid)
        outputs = list_outputs(jvm)
        observer = start_observer(processes, at, here, server.jvm_pid)
        run = start_run(processes, here, "--url", http.origin, "--watchers", "1", *LONG)
        processes.wait_for_texts({"worker-0": "run 1: probes"}, LIMIT_S)
        wait_for_stage(tmp_path, "measuring")
        run.kill()
        processes.wait_for_texts({"worker-0": "ended before its experiment did"}, 20)
        assert observer.wait(LIMIT_S) == 3
        wait_for_outputs(jvm, outputs)
        assert not [*(tmp_path / "worker-0").glob("*")]


@pytest.mark.nightly
def test_an_observer_with_an_unknown_key_is_refused_and_does_not_attach(tmp_path: Path) -> None:
    with (
        machines(2) as (at, here),
        watched_sink(at, here, tmp_path) as (http, server),
        start_processes(tmp_path) as processes,
    ):
        outputs = list_outputs(attach(server.jvm_pid))
        key = tmp_path / "keys" / "worker-2.key"
        joined = json.loads(key.read_text())
        keys.write_new(tmp_path / "other", 1)
        unknown = json.loads((tmp_path / "other" / "worker-1.key").read_text())
        key.write_text(json.dumps(unknown | {"run": joined["run"]}))
        refused = start_observer(processes, at, here, server.jvm_pid, 1)
        run = start_run(processes, here, "--url", http.origin, "--watchers", "1", *SHORT)
        processes.wait_for_texts({"worker-1": "our key is not among those of this run"}, LIMIT_S)
        assert refused.wait(LIMIT_S) == 3
        assert list_outputs(attach(server.jvm_pid)) == outputs
        observer = start_observer(processes, at, here, server.jvm_pid)
        assert run.wait(LIMIT_S) == 0, processes.output("run")
        assert observer.wait(LIMIT_S) == 0
        assert [watching.pid for watching in processes.record.observers] == [server.jvm_pid]


@pytest.mark.nightly
def test_two_observers_of_one_jvm_and_its_end_are_named(tmp_path: Path) -> None:
    with (
        machines(2) as (at, here),
        watched_sink(at, here, tmp_path) as (http, server),
        start_processes(tmp_path) as processes,
    ):
        first = start_observer(processes, at, here, server.jvm_pid)
        run = start_run(processes, here, "--url", http.origin, "--watchers", "1", *LONG)
        processes.wait_for_texts({"run": "watches pid"}, LIMIT_S)
        second = start_observer(processes, at, here, server.jvm_pid, 1)
        processes.wait_for_texts({"worker-1": "worker-1, pid [0-9]+ watches the same JVM"}, LIMIT_S)
        assert second.wait(LIMIT_S) == 3
        wait_for_stage(tmp_path, "measuring")
        server.popen.kill()
        assert first.wait(LIMIT_S) == 3
        assert run.wait(LIMIT_S) == 3
        assert processes.record.state == "failed"
        assert "ended during the run" in processes.record.reason


@pytest.mark.nightly
def test_a_restarted_jvm_is_watched_in_the_next_run_by_an_observer_of_its_pid(tmp_path: Path) -> None:
    with machines(2) as (at, here), start_processes(tmp_path) as processes:
        with watched_sink(at, here, tmp_path) as (http, server):
            first = start_observer(processes, at, here, server.jvm_pid)
            two_runs = ("--watchers", "1", "--replicates", "2")
            run = start_run(processes, here, "--url", http.origin, *two_runs, *lasting("10s"))
            processes.wait_for_texts({"run": "watches pid"}, LIMIT_S)
            wait_for_stage(tmp_path, "measuring")
            server.popen.kill()
            server.popen.wait()
        (tmp_path / "restarted").mkdir()
        with watched_sink(at, here, tmp_path / "restarted") as (http, server):
            assert first.wait(LIMIT_S) == 3
            second = start_observer(processes, at, here, server.jvm_pid, 1)
            processes.wait_for_texts({"run": r"run 1/2 \S+: failed: .* run 2/2 \S+: [0-9,]+ docs/s"}, LIMIT_S)
            assert [run.wait(LIMIT_S), second.wait(LIMIT_S)] == [3, 0]


OPENSEARCH = TargetOptions(name="opensearch", heap_bytes=512 << 20, nodes=3)


@contextlib.contextmanager
def cluster(at: Sequence[Machine], here: Machine, folder: Path) -> Iterator[tuple[Http, tuple[ServerProcess, ...]]]:
    """Yield the first node of an OpenSearch cluster, one node on each machine, and all processes."""
    target = targets.resolve(OPENSEARCH)
    java = targets.fetch(target.requirements(OPENSEARCH))
    endpoints = tuple(Endpoint(machine.address, 9200) for machine in at)
    with contextlib.ExitStack() as stack:
        logs = [folder / f"server-{number}.log" for number in range(len(at))]
        nodes = tuple(
            stack.enter_context(open_http(ServerAddress(endpoint=endpoint), here.place.command, log))
            for endpoint, log in zip(endpoints, logs, strict=True)
        )

        def launch(index: int) -> Launch:
            home = folder / f"home-{index}"
            return Launch(
                plan=target.launch_plan(NodeStart(OPENSEARCH, java, home, index, endpoints, ())),
                enter=at[index].place.command,
                log=logs[index],
                listen=endpoints[index],
                is_ready=lambda limit_s: target.is_ready(index, [node.with_deadline(limit_s) for node in nodes]),
                name=f"node {index + 1}",
            )

        stack.enter_context(visible())
        yield nodes[0], stack.enter_context(serve(*map(launch, range(len(at))), timeout_s=300))


@pytest.mark.nightly
@pytest.mark.parametrize("mtu_bytes", [1500, 9000])
def test_three_nodes_on_machines_of_their_own_read_what_a_fourth_sends(tmp_path: Path, mtu_bytes: int) -> None:
    if not system.is_root():
        pytest.skip("a JVM in the namespace of an ordinary user has another uid")
    with (
        machines(4, mtu_bytes, in_loopback_range=True) as (here, *at),
        cluster(at, here, tmp_path) as (_, servers),
        start_processes(tmp_path) as processes,
    ):
        observers = [
            start_observer(processes, machine, here, server.jvm_pid, number)
            for number, (machine, server) in enumerate(zip(at, servers, strict=True))
        ]
        urls = [word for machine in at for word in ("--url", f"http://{machine.address}:9200")]
        load = ("--warm-up", "1s", "--documents", "10000", "--set", "users=6", "--set", "bulk_documents=50")
        run = start_run(processes, here, *urls, "--watchers", "3", *load)
        assert run.wait(3 * LIMIT_S) == 0, processes.output("run")
        assert [observer.wait(LIMIT_S) for observer in observers] == [0] * 3
        record, values = processes.record, processes.summary
    assert values["bytes_read"] == values["bytes_sent"] > 1_000_000
    assert record.documents_counted == values["documents_acked"] > 0
    assert sorted(observer.pid for observer in record.observers) == sorted(server.jvm_pid for server in servers)
    assert [jvm["pid"] for jvm in record.server["jvms"]] == [observer.pid for observer in record.observers]
