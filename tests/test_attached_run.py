"""`run --attach PID`: a running server is measured by all probes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import create_certificates
from commands import ORDINARY_UID, fill_cache, place
from running import canned_server, free_port, running
from servers import list_outputs, served, visible

from ingest_bench import system, targets
from ingest_bench.cli.experiment_options import ExperimentOptions, build_plans
from ingest_bench.errors import MissingCapability, SpecError
from ingest_bench.experiment import spec
from ingest_bench.host import cgroup_files
from ingest_bench.inputs import records
from ingest_bench.jvm.attach import AttachedJvm, attach, find_endpoints, read_start_id
from ingest_bench.jvm.process import Launch, serve
from ingest_bench.lab import evaluation
from ingest_bench.lab.server import reach, running_server
from ingest_bench.model.experiment import Plan
from ingest_bench.model.target import CustomTarget, Endpoint, ServerAddress, TargetOptions, Url
from ingest_bench.results.layout import open_results
from ingest_bench.targets.base import NodeStart
from ingest_bench.targets.http import open_http

PIDS = (os.getpid(), os.getppid())
SHORT = ("--warm-up", "1s", "--measure", "2s", "--out", "out")


def sink(java: int = 17) -> TargetOptions:
    return TargetOptions(
        name="sink", setting={"sink.java": str(java)}, heap_bytes=64 << 20, receive_predictor_bytes=(512 << 10,)
    )


def plan_for(*pids: int) -> Plan:
    return reach.pin_processes(spec.build_plan(spec.load_experiment("attached", running={"attach": list(pids)})))


def test_a_plan_keeps_the_start_of_the_process() -> None:
    pids = (os.getpid(), 1)
    (run,) = plan_for(*pids).runs
    assert run.cell.target.attach == pids
    assert run.cell.target.attached_process_starts == tuple(map(read_start_id, pids))
    assert run.cell.network is None
    stored = records.from_json(Plan, json.loads(json.dumps(records.to_json(plan_for(*pids)))))
    assert reach.pin_processes(stored) == stored == plan_for(*pids)


def test_another_process_with_the_same_pid_is_refused() -> None:
    starts = (str(read_start_id(os.getpid())), "another boot 17")
    options = TargetOptions(attach=(os.getpid(), 1), attached_process_starts=starts)
    with pytest.raises(SpecError, match="--attach 1: this pid now belongs to another process"):
        reach.attach_jvms(options, None)


def test_a_pid_or_url_given_twice_is_refused() -> None:
    with pytest.raises(SpecError, match=r"--attach: \[1, 1\] has a value twice"):
        build_plans(ExperimentOptions(attach=[1, 1]))
    url = Url(scheme="http", host="127.0.0.1", port=9200)
    with pytest.raises(SpecError, match="an address is given twice"):
        reach.resolve_address(TargetOptions(url=url, more_urls=(url,)), tuple)


def test_a_custom_target_is_not_reached_over_cql() -> None:
    url = Url(scheme="cassandra", host="127.0.0.1", port=9042)
    options = TargetOptions(name="mine", url=url, custom=CustomTarget(protocol={"name": "bulk"}))
    with pytest.raises(SpecError, match=r"--url cassandra://127\.0\.0\.1:9042: mine is reached over HTTP"):
        reach.resolve_address(options, tuple)


def test_a_ca_for_jmx_alone_is_accepted_without_tls_of_the_server(tmp_path: Path) -> None:
    ca = create_certificates(tmp_path, "IP:127.0.0.1").ca
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = Url(scheme="http", host="127.0.0.1", port=server.getsockname()[1])
        options = TargetOptions(url=url, ca_file=str(ca), watch_jmx=(Endpoint("127.0.0.1", 7091),))
        assert reach.resolve_address(options, tuple).tls is None
        with pytest.raises(SpecError, match=r"target\.ca_file: .* does not use TLS"):
            reach.resolve_address(dataclasses.replace(options, watch_jmx=()), tuple)


def test_a_missing_process_is_refused_before_the_start() -> None:
    with pytest.raises(SpecError, match="--attach 4194304: there is no such process"):
        plan_for(4194304)


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.processes
@pytest.mark.parametrize(("java", "user"), [(11, None), (17, ORDINARY_UID), (25, None)])
def test_a_run_reads_what_the_sink_counts(java: int, user: int | None) -> None:
    if user is not None and not system.is_root():
        pytest.skip("this is the ordinary user")
    fill_cache()
    with contextlib.ExitStack() as stack:
        where = stack.enter_context(place(user))
        # A server below a closed folder gets a capability, and we may not inspect a process with more rights.
        where.folder.chmod(0o755)
        http, server = stack.enter_context(running(where.folder / "server", sink(java)))
        jvm = attach(server.jvm_pid)
        before, was_on = http.request_json("GET", "/_counters")["by_peer_port"], list_outputs(jvm)
        with where.command("run", "--attach", str(server.jvm_pid), *SHORT) as command:
            assert command.end() == 0, command.text
        assert list_outputs(jvm) == was_on
        after = http.request_json("GET", "/_counters")["by_peer_port"]
        (results,) = where.results
        folder = open_results(results)
        (summary,) = evaluation.summarise_runs(folder)
        (run,) = folder.plan.runs
        record = folder.read_records()[run.id]
        used = [
            str(port) for port in json.loads((folder.run_folder(run).load / "load.json").read_text())["local_ports"]
        ]

    def increase(name: str) -> int:
        return sum(after[port][name] - before.get(port, {}).get(name, 0) for port in used)

    assert summary.state == "measured", summary.reason
    values: dict[str, Any] = summary.values
    assert values["bytes_read"] == values["bytes_sent"] == increase("bytes_read") > 1_000_000
    assert values["reads_recorded"] == increase("reads") > 0
    assert values["gc_pauses"] == values["gc_pauses_log"] > 0
    assert values["heap_bytes"] == 64 << 20
    assert values["target"] == f"sink {values['target'].partition(' ')[2]}"
    assert values["network"] == "as-is"
    assert values["gc_collector"] == "g1"
    assert values["server_cpu_s"] > 0
    assert record.server["java"].partition(".")[0] == str(java)
    assert record.server["pid"] == server.jvm_pid
    assert [note.text for note in summary.notes if note.source in ("reads", "gc", "host")] == []


@contextlib.contextmanager
def running_cluster(folder: Path, count: int) -> Iterator[list[tuple[int, Endpoint]]]:
    """Yield the pid and address of each node of an OpenSearch cluster on this machine."""
    options = TargetOptions(nodes=count, heap_bytes=512 << 20)
    target, java = targets.resolve(options), targets.fetch(targets.resolve(options).requirements(options))
    port = free_port()
    endpoints = [Endpoint(f"127.0.0.{number}", port) for number in range(2, count + 2)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(visible())
        clients = [stack.enter_context(open_http(ServerAddress(endpoint=endpoint))) for endpoint in endpoints]

        def launch(index: int) -> Launch:
            (home := folder / f"home-{index}").mkdir(parents=True)
            return Launch(
                plan=target.launch_plan(NodeStart(options, java, home, index, endpoints, ())),
                enter=tuple,
                log=folder / f"{index}.log",
                listen=endpoints[index],
                is_ready=lambda limit_s: target.is_ready(index, [client.with_deadline(limit_s) for client in clients]),
            )

        processes = stack.enter_context(serve(*map(launch, range(count)), timeout_s=180))
        yield [(process.jvm_pid, endpoint) for process, endpoint in zip(processes, endpoints, strict=True)]


@pytest.mark.nightly
@pytest.mark.opensearch
@pytest.mark.processes
def test_nodes_of_a_cluster_are_watched_together(tmp_path: Path) -> None:
    fill_cache()
    with running_cluster(tmp_path, 3) as nodes, place() as where:
        # In another order than the addresses.
        pids = [word for pid, _ in reversed(nodes) for word in ("--attach", str(pid))]
        urls = [word for _, endpoint in nodes for word in ("--url", f"http://{endpoint}")]
        load = ("--set", "bulk_documents=100", "--set", "users=3", "--warm-up", "2s", "--measure", "6s", "--out", "out")
        with where.command("run", *pids, *urls, *load) as command:
            assert command.end() == 0, command.text
        assert [list_outputs(attach(pid))[1] for pid, _ in nodes] == [[], [], []]
        folder = open_results(where.results[0])
        (summary,) = evaluation.summarise_runs(folder)
        (record,) = folder.read_records().values()
    assert summary.state == "measured", summary.reason
    assert summary.values["documents_counted"] == summary.values["documents_acked"]
    assert summary.values["bytes_read"] == summary.values["bytes_sent"]
    assert record.address_nodes == (3, 2, 1)
    for name in ("bytes_read", "documents_acked", "allocated_bytes"):
        parts: list[Any] = [node[name] for node in summary.nodes]
        assert min(parts) > 0
        assert sum(parts) == summary.values[name]


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.processes
def test_the_death_of_the_server_fails_the_run(tmp_path: Path) -> None:
    with running(tmp_path, sink()) as (_, server), place() as where:
        with where.command("run", "--attach", str(server.jvm_pid), "--measure", "6s", "--out", "out") as command:
            command.until("stage load")
            time.sleep(1)
            server.popen.kill()
            server.popen.wait(60)
            assert command.end() == 3, command.text
        (results,) = where.results
        (record,) = open_results(results).read_records().values()
    assert record.state == "failed"
    assert "the server ended during the run" in record.reason


OPENSEARCH = {"/": (200, b'{"version": {"distribution": "opensearch", "number": "2.19.6"}}')}


@pytest.mark.processes
def test_exactly_one_port_must_respond_like_a_known_server(monkeypatch: pytest.MonkeyPatch) -> None:
    us = AttachedJvm(pid=os.getpid(), uid=os.geteuid(), gid=0, jcmd=Path("jcmd"), version="17", start_id="now")
    with canned_server({"/": (200, b"hello")}) as other, canned_server(OPENSEARCH) as node:
        reached = reach.find_origin(TargetOptions(), (us,))
        assert reached.options.url == Url(scheme="http", host="127.0.0.1", port=node.port)
        assert reached.describe_path() == "the load is sent from this machine to 127.0.0.1 over loopback"
        with canned_server(OPENSEARCH) as second, pytest.raises(SpecError, match="Give --url too") as refused:
            reach.find_origin(TargetOptions(), (us,))
        message = str(refused.value)
        assert message.count("opensearch 2.19.6") == 2
        assert all(f"http://{address}: " in message for address in (other, node, second))
    # pytest's own plug-ins may listen in this process.
    monkeypatch.setattr(reach, "find_endpoints", lambda _: ())
    with pytest.raises(SpecError, match=r"it listens on no TCP port"):
        reach.find_origin(TargetOptions(), (us,))


@pytest.mark.parametrize(("is_root", "remedy"), [(True, "Give the address as a number"), (False, "or run as root")])
def test_why_a_server_cannot_be_reached_from_here_is_reported_first(
    is_root: bool, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    us = AttachedJvm(pid=os.getpid(), uid=os.geteuid(), gid=0, jcmd=Path("jcmd"), version="17", start_id="now")
    monkeypatch.setattr(reach, "_other_namespaces", lambda _: (us,))
    monkeypatch.setattr(system, "is_root", lambda: is_root)
    options = TargetOptions(url=Url(scheme="http", host="localhost", port=free_port()))
    with pytest.raises((SpecError, MissingCapability), match=rf"^http://localhost:\d+: cannot connect .*\n.*{remedy}"):
        reach.find_origin(options, (us,))


def test_addresses_are_those_of_the_process_that_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("", 0)) as wildcard:
        ports = [listening.getsockname()[1] for listening in (first, wildcard)]
        address, other = (ServerAddress(endpoint=Endpoint("localhost", port)) for port in ports)
        both = dataclasses.replace(address, other_addresses=(other,))
        us, parent = (tuple(reach.reachable_endpoints(pid)) for pid in PIDS)
        assert reach.find_address_nodes(both, (parent, us)) == (2, 2)
        # A process that is not attached to may listen there, or a proxy.
        assert reach.find_address_nodes(both, (parent,)) == ()
        unknown = ServerAddress(endpoint=Endpoint("name.invalid", ports[0]))
        assert reach.find_address_nodes(dataclasses.replace(both, other_addresses=(unknown,)), (us,)) == ()


@pytest.mark.parametrize(("left_mib", "is_noted"), [(63, True), (64, False), (-1, True), (None, False)])
def test_small_headroom_of_a_jvm_is_noted(
    left_mib: int | None, is_noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup_files, "find_process_cgroup", lambda *_: None)
    monkeypatch.setattr(cgroup_files, "read_headroom", lambda _: None if left_mib is None else left_mib << 20)
    notes = list(reach.memory_notes([7]))
    text = f"the JVM with pid 7 has {max(left_mib or 0, 0)}"
    assert [note.startswith(text) for note in notes] == [True] * is_noted


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_the_port_is_found_in_another_network_namespace(tmp_path: Path) -> None:
    with visible(), served(tmp_path, sink()) as server:
        assert find_endpoints(server.process.jvm_pid) == (server.listen,)
        options = plan_for(server.process.jvm_pid).runs[0].cell.target
        if not system.is_root():
            with pytest.raises(MissingCapability, match="another network namespace"):
                reach.enter_namespace_of(reach.attach_jvms(options, None)[0])
            return
        with running_server.reach_server(options) as reached:
            assert reached.target.name == "sink"
            assert str(reached.options.url) == f"http://{server.listen}"
            assert reached.http.request_json("GET", "/_counters")["reads"] > 0
