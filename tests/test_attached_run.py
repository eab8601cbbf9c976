"""`run --attach PID`: a server that is there is measured by every probe, as one of ours."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import http.server
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import NOBODY, fill_cache, place
from running import running
from servers import served, visible

from ingest_bench import system
from ingest_bench.cli.what import What, plans
from ingest_bench.errors import MissingCapability, SpecError
from ingest_bench.experiment import order, spec
from ingest_bench.inputs import records
from ingest_bench.jvm.attach import Attached, attach, began
from ingest_bench.jvm.listening import endpoints
from ingest_bench.lab import evaluation
from ingest_bench.lab.server import attaching, running_server
from ingest_bench.ledger import sessions
from ingest_bench.model.experiment import Plan
from ingest_bench.model.target import TargetOptions, Url
from ingest_bench.results.layout import open_results
from ingest_bench.targets.http import ask

SHORT = ("--warm-up", "1s", "--measure", "2s", "--out", "out")


def sink(java: int = 17) -> TargetOptions:
    return TargetOptions(name="sink", version=f"java{java}", heap_bytes=64 << 20, receive_predictor_bytes=(512 << 10,))


def of_pid(pid: int, *sets: str) -> Plan:
    return attaching.pinned(order.order(spec.load("attached", sets, running={"attach": pid})))


def test_the_plan_keeps_which_process_it_was() -> None:
    (run,) = of_pid(1).runs
    assert run.cell.target.attach == 1
    assert run.cell.target.attach_started == began(1)
    assert run.cell.network is None
    kept = records.from_json(Plan, json.loads(json.dumps(records.to_json(of_pid(1)))))
    assert attaching.pinned(kept) == kept == of_pid(1)


def test_another_process_with_the_same_pid_is_never_measured() -> None:
    options = dataclasses.replace(of_pid(1).runs[0].cell.target, attach_started="another boot 17")
    with pytest.raises(SpecError, match="--attach 1: the process with this pid is another one than when the plan"):
        attaching.jvm_of(options, None)


def test_a_second_jvm_to_attach_to_is_refused_instead_of_replacing_the_first() -> None:
    with pytest.raises(SpecError, match="--attach 1, 2: one JVM can be attached; give one pid"):
        plans(What(attach=[1, 2]))


def test_a_pid_that_is_none_is_told_before_anything_starts() -> None:
    with pytest.raises(SpecError, match="--attach 4194304: there is no such process"):
        of_pid(4194304)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["heap=1g"], r"target.heap: the server of target.attach runs already and has its own"),
        (["mtu=1400"], r"network.mtu: the network to the server of target.attach is as it is"),
    ],
)
def test_what_only_a_server_of_ours_can_have_is_refused(sets: list[str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        of_pid(1, *sets)


def switched_on(pid: int) -> tuple[list[str], list[str]]:
    """Log outputs and recordings of a JVM."""
    jvm = attach(pid)
    outputs = re.findall(r"^ #\d+: (.*)$", jvm.ask("VM.log", "list"), re.MULTILINE)
    return outputs, re.findall(r"name=\S+", jvm.ask("JFR.check"))


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.processes
@pytest.mark.parametrize(("java", "user"), [(11, None), (17, NOBODY), (25, None)])
def test_a_run_reads_what_the_sink_counted_itself(java: int, user: int | None) -> None:
    if user is not None and not system.is_root():
        pytest.skip("this is the ordinary user")
    fill_cache()
    with contextlib.ExitStack() as stack:
        where = stack.enter_context(place(user))
        # A server below a closed folder gets a capability, and a process with more than we have is not ours to look at.
        where.folder.chmod(0o755)
        it, server = stack.enter_context(running(where.folder / "server", sink(java)))
        before, was_on = it.expect("GET", "/_counters")["by_peer_port"], switched_on(server.jvm_pid)
        with where.command("run", "--attach", str(server.jvm_pid), *SHORT) as command:
            assert command.end() == 0, command.text
        assert switched_on(server.jvm_pid) == was_on
        after = it.expect("GET", "/_counters")["by_peer_port"]
        (results,) = where.results
        found = open_results(results)
        (summary,) = evaluation.summaries(found)
        (run,) = found.plan.runs
        record = found.records()[run.id]
        used = [str(port) for port in json.loads((found.run(run).load / "load.json").read_text())["local_ports"]]

    def grown(name: str) -> int:
        return sum(after[port][name] - before.get(port, {}).get(name, 0) for port in used)

    assert summary.state == "measured", summary.reason
    values: dict[str, Any] = summary.values
    assert values["bytes_read"] == values["bytes_sent"] == grown("bytes_read") > 1_000_000
    assert values["reads_recorded"] == grown("reads") > 0
    assert values["gc_pauses"] == values["gc_pauses_log"] > 0
    assert values["heap_bytes"] == 64 << 20
    assert values["target"] == f"sink {values['target'].partition(' ')[2]}"
    assert values["network"] == "as-is"
    assert values["gc_collector"] == "g1"
    assert values["server_cpu_s"] > 0
    assert record.server["java"].partition(".")[0] == str(java)
    assert record.server["pid"] == server.jvm_pid
    assert [remark.text for remark in summary.remarks if remark.probe in ("reads", "gc", "host")] == []


@pytest.mark.nightly
@pytest.mark.opensearch
@pytest.mark.processes
def test_an_opensearch_that_runs_is_measured_whole_and_keeps_nothing_of_it() -> None:
    names = ["reads", "gc", "host", *(["kernel-reads"] if system.is_root() else [])]
    load = "workload = 'geonames'\nusers = 2\nbulk_documents = 200\nwarm_up = '3s'\nmeasure = '4s'\n"
    toml = f"description = 'x'\nprobes = {names}\n[load]\n{load}"
    with contextlib.ExitStack() as stack:
        where = stack.enter_context(place())
        where.folder.chmod(0o755)
        (where.folder / "whole.toml").write_text(toml, encoding="utf-8")
        asked = TargetOptions(name="opensearch", version="2.19.6", heap_bytes=512 << 20)
        it, server = stack.enter_context(running(where.folder / "server", asked))
        was_on = switched_on(server.jvm_pid)
        with where.command("run", "whole.toml", "--attach", str(server.jvm_pid), "--out", "out") as command:
            assert command.end() == 0, command.text
        assert switched_on(server.jvm_pid) == was_on
        assert it.request("GET", "/geonames").status == 404
        (results,) = where.results
        (summary,) = evaluation.summaries(open_results(results))
    values: dict[str, Any] = summary.values
    assert values["bytes_read"] == values["bytes_sent"] > 100_000
    assert values["documents_acked"] == values["documents_counted"] > 0
    assert values["target"] == "opensearch 2.19.6"
    assert values["heap_bytes"] == 512 << 20
    assert values["gc_pauses"] == values["gc_pauses_log"]
    if system.is_root():
        assert values["kernel_bytes_read"] == values["bytes_sent"]


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.processes
def test_after_a_kill_of_the_command_nothing_stays_in_the_jvm(tmp_path: Path) -> None:
    with running(tmp_path, sink()) as (_, server), place() as where:
        was_on = switched_on(server.jvm_pid)
        argv = ("run", "--attach", str(server.jvm_pid), "--measure", "60s", "--out", "out")
        with where.command(*argv) as command:
            command.until("stage load")
            time.sleep(1)
            assert switched_on(server.jvm_pid) != was_on
            command.popen.send_signal(signal.SIGKILL)
            command.popen.wait(60)
            limit = time.monotonic() + 60
            while switched_on(server.jvm_pid) != was_on or of_jvm(server.jvm_pid):
                assert time.monotonic() < limit
                time.sleep(0.2)


def of_jvm(pid: int) -> list[str]:
    """Sessions of the ledger with this JVM."""
    return [one.what for one in sessions.show() if one.what.endswith(f" {pid}")]


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.processes
def test_a_server_that_dies_in_the_run_makes_it_a_failed_one(tmp_path: Path) -> None:
    with running(tmp_path, sink()) as (_, server), place() as where:
        with where.command("run", "--attach", str(server.jvm_pid), "--measure", "6s", "--out", "out") as command:
            command.until("stage load")
            time.sleep(1)
            server.popen.kill()
            server.popen.wait(60)
            assert command.end() == 3, command.text
        (results,) = where.results
        (record,) = open_results(results).records().values()
    assert record.state == "failed"
    assert "the server ended during the run" in record.reason


class Speaks(http.server.BaseHTTPRequestHandler):
    """Says of itself what its server was told to say."""

    def do_GET(self) -> None:
        body = self.server.said.encode()  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextlib.contextmanager
def speaking(said: str) -> Iterator[int]:
    """The port of a server in this process that answers with this."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Speaks) as server:
        server.said = said  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


OPENSEARCH = '{"version": {"distribution": "opensearch", "number": "2.19.6"}}'


@pytest.mark.processes
def test_exactly_one_port_that_answers_like_a_known_server_is_taken() -> None:
    us = Attached(pid=os.getpid(), uid=os.geteuid(), jcmd=Path("jcmd"), version="17", began="now")
    asked = functools.partial(ask, tuple)
    with speaking("hello") as other, speaking(OPENSEARCH) as port:
        assert attaching.url_of(us, asked, TargetOptions()) == Url(scheme="http", host="127.0.0.1", port=port)
        with speaking(OPENSEARCH) as second, pytest.raises(SpecError, match="Give --url beside it") as refused:
            attaching.url_of(us, asked, TargetOptions())
        said = str(refused.value)
        assert said.count("opensearch 2.19.6") == 2
        assert all(f"http://127.0.0.1:{each}: " in said for each in (other, port, second))
    with pytest.raises(SpecError, match=r"which URL\? .* it listens on no TCP port"):
        attaching.url_of(us, asked, TargetOptions())


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_where_it_listens_is_found_also_in_another_network_namespace(tmp_path: Path) -> None:
    with visible(), served(tmp_path, sink()) as server:
        assert endpoints(server.process.jvm_pid) == (server.listen,)
        options = of_pid(server.process.jvm_pid).runs[0].cell.target
        if not system.is_root():
            with pytest.raises(MissingCapability, match="another network namespace"):
                attaching.way_to(attaching.jvm_of(options, None))
            return
        with running_server.reached(options) as found:
            assert found.target.name == "sink"
            assert str(found.asked.url) == f"http://{server.listen}"
            assert found.http.expect("GET", "/_counters")["reads"] > 0
