"""Advice of `recommend`: rules on recorded runs, the commands that test it, and its 24 lines.

`data/advice.json` has columns of real runs, each with a command that makes such a run and the rules that hold for it.
"""

from __future__ import annotations

import dataclasses
import io
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from example_runs import tcp_connection, wire_record, write_results
from probe_lab import readings
from rich.console import Console

from ingest_bench.analysis.advice import RULES, Advice, Finding, ObservedRun
from ingest_bench.cli import app as cli
from ingest_bench.cli import screen
from ingest_bench.cli.experiment_options import ExperimentOptions, build_plans
from ingest_bench.inputs import files
from ingest_bench.lab import advice as advice_module
from ingest_bench.lab.buffer_advice import BufferAdvice
from ingest_bench.lab.evaluation import summarise_runs
from ingest_bench.model.experiment import Cell, Plan
from ingest_bench.model.results import ColumnValue
from ingest_bench.model.target import TargetOptions
from ingest_bench.network.measure.readings import measure_windows
from ingest_bench.network.measure.wire import TcpSnapshot
from ingest_bench.report import advice_table, reports

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "advice.json").read_text())
HEAP = Advice(text="more", evidence={"heap_bytes": 1 << 30}, key="heap", levels=("1024m", "1026m"))


def plan_command(command: str) -> Plan:
    words = shlex.split(command)[2:]
    sets = [words.pop(at + 1) for at, word in enumerate(words) if word == "--set"]
    names = [word for word in words if word != "--set"]
    options = {"target": names[1]} if names[0] == "--target" else {"experiment": names[0]}
    (plan,) = build_plans(ExperimentOptions(sets=sets, **options))  # type: ignore[arg-type]
    return plan


def find(case: dict[str, Any], **changed: Any) -> tuple[dict[str, Advice], ObservedRun]:
    cell = plan_command(case["command"]).runs[0].cell
    run = ObservedRun(run=case["name"], cell=cell, values={**case["values"], **changed})
    pairs = ((rule.name, rule.advise(run)) for rule in RULES if rule.applies_to(run) and rule.has_evidence(run))
    return {name: advice for name, advice in pairs if advice is not None}, run


@pytest.fixture(autouse=True)
def repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent.parent)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_rules_hold_for_their_runs_alone_and_their_tests_are_accepted(
    case: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    held, run = find(case)
    assert list(held) == case["rules"]
    for advice in held.values():
        assert advice.evidence
        assert None not in advice.evidence.values()
        plan = plan_command(case["command"])
        command = advice_module.format_test(plan, case["command"], run.cell, advice)
        assert cli.run(["plan", *shlex.split(command)[2:]]) == 0, capsys.readouterr().err
        tested = plan_command(command)
        assert [factor.levels for factor in tested.factors if len(factor.levels) > 1] == [advice.levels]


def test_every_rule_has_a_recorded_run_with_and_one_without_it() -> None:
    for rule in RULES:
        with_evidence = [case for case in CASES if rule.applies_to(find(case)[1]) and rule.has_evidence(find(case)[1])]
        assert {rule.name in case["rules"] for case in with_evidence} == {True, False}, rule.name


@pytest.mark.parametrize(
    ("rule", "changed"),
    [
        # The server reads slowly: its window is full, and the rate is far below a window per round trip.
        ("socket buffer", {"bytes_measured": 400_000}),
        # 100 Mbit/s are used up.
        ("socket buffer", {"bytes_measured": 45_000_000}),
        ("single connection", {"bytes_measured": 45_000_000}),
        ("single connection", {"users": 4}),
        ("socket buffer", {"users": None}),
        ("socket buffer", {"idle_rtt_ms": None, "rtt_ms": None}),
    ],
)
def test_window_that_is_not_the_limit_gets_no_advice(rule: str, changed: dict[str, Any]) -> None:
    case = next(case for case in CASES if case["name"] == "sink-64KiB-wan")
    assert rule in find(case)[0]
    assert rule not in find(case, **changed)[0]


@pytest.mark.parametrize(
    ("name", "setting", "levels"),
    [
        ("sink-64KiB-wan", "socket_receive_buffer=8MiB", None),
        ("sink-64KiB-wan", "network.tcp_rmem=4096 131072 6291456", None),
        ("sink-64KiB-wan", "network.tcp_rmem=4096 65536 262144", ("4096 65536 262144", "4096 65536 2097152")),
        ("kafka-wan", "setting.socket.receive.buffer.bytes=-1", ("4096 131072 254400", "4096 131072 2097152")),
    ],
)
def test_advised_buffer_is_larger_than_that_of_the_run(name: str, setting: str, levels: tuple[str, ...] | None) -> None:
    case = next(case for case in CASES if case["name"] == name)
    command = f"{case['command'].replace(' --set socket_receive_buffer=64KiB', '')} --set {shlex.quote(setting)}"
    advice = find({**case, "command": command})[0].get("socket buffer")
    assert (advice and advice.levels) == levels


@pytest.mark.parametrize(
    "command",
    [
        "ingest-bench run opensearch-grpc --set network=wan-50ms",
        "ingest-bench run --target docs/custom-targets/jetty.toml --set http_version=2 --set http2_stream_window=1MiB",
    ],
)
def test_load_that_cannot_use_http1_is_not_advised_to(command: str) -> None:
    case = next(case for case in CASES if case["name"] == "jetty-http2-wan")
    assert "HTTP/2 window" not in find({**case, "command": command})[0]


def test_busy_thread_of_a_single_connection_is_named() -> None:
    case = next(case for case in CASES if case["name"] == "sink-64KiB-loopback")
    held, _ = find(case, server_thread_busiest="worker-1", server_thread_cpu_share=0.97)
    assert "worker-1" in held["single connection"].text
    assert held["single connection"].evidence["server_thread_cpu_share"] == 0.97


def test_windows_are_those_of_connections_that_carry_data() -> None:
    def snapshot(at_s: float, busy_s: float, full_s: float, window: int) -> TcpSnapshot:
        data = tcp_connection(
            busy_us=round(busy_s * 1e6),
            receiver_full_us=round(full_s * 1e6),
            peer_window_bytes=window,
            congestion_window_segments=10,
            send_mss_bytes=1000,
        )
        idle = tcp_connection(local_port=40001, peer_window_bytes=9_000_000, congestion_window_segments=1)
        other = dataclasses.replace(data, local_port=50000, receiver_full_us=0)
        return TcpSnapshot(at_ns=round(at_s * 1e9), connections=(data, idle, other))

    record = wire_record(snapshot(1, 1, 0, 70_000), snapshot(2, 1.9, 0.5, 65_000), snapshot(3, 2.8, 1.5, 0))
    values = readings(measure_windows(record, {40000, 40001}))
    assert values == {
        "receive_window_full_share": pytest.approx(0.75),
        "send_buffer_full_share": 0,
        "receive_window_max_bytes": 65_000,
        "congestion_window_bytes": 10_000,
    }
    assert not readings(measure_windows(wire_record(snapshot(1, 1, 0, 70_000)), {40000}))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("ingest-bench run x.toml --set heap=2g --open", "run x.toml --open --set gc=g1 --set heap=1024m,1026m"),
        ("/usr/bin/ingest-bench run x.toml --set=target.heap=2g --set users=3", "run x.toml --set users=3"),
        ("ingest-bench run x.toml --set gc=serial,g1", "run x.toml --set gc=g1 --set heap=1024m,1026m"),
        (
            "ingest-bench bisect x.toml --set heap=2g..3g --good 3g --column=gc_pauses",
            "run x.toml --set gc=g1 --set heap",
        ),
        ("ingest-bench calibrate", "run x --set gc=g1 --set heap=1024m,1026m"),
        ("", "run x --set gc=g1 --set heap=1024m,1026m"),
        ("ingest-bench run 'x", "run x --set gc=g1 --set heap=1024m,1026m"),
    ],
)
def test_command_of_the_results_is_changed_for_the_test(tmp_path: Path, command: str, expected: str) -> None:
    results = write_results(tmp_path, '[load]\nworkload = "pmc"\n[factors]\ngc = ["g1", "serial"]\nheap = ["1g"]\n')
    cell = next(run.cell for run in results.plan.runs if run.cell.levels["gc"] == "g1")
    assert advice_module.format_test(results.plan, command, cell, HEAP).startswith(f"ingest-bench {expected}")


@pytest.mark.parametrize(
    ("setting", "levels"),
    [
        ("bulk_documents=2000", ("2000", "800")),
        ("bulk=8MiB", (f"{7 << 20}B", f"{round(2.8 * (1 << 20))}B")),
        ("bulk_documents=1", None),
    ],
)
def test_bodies_that_no_region_holds_are_advised_to_be_smaller(setting: str, levels: tuple[str, ...] | None) -> None:
    case = next(case for case in CASES if case["name"] == "kafka-loopback-1MiB-regions")
    command = case["command"].replace("bulk_documents=2000", setting)
    requests = case["values"]["requests_answered"]
    # A buffer that grows takes more than the body.
    large = {"g1_region_bytes": 32 << 20, "bytes_measured": (7 << 20) * requests, "largest_allocation_bytes": 20 << 20}
    advice = find({**case, "command": command}, **large, allocations_humongous=requests)[0].get("G1 regions")
    assert (advice and advice.levels) == levels


@pytest.mark.parametrize(("option", "holds"), [("1g", False), ("64m", True), ("1t", True)])
def test_limit_of_direct_memory_is_that_of_the_jvm_option(option: str, holds: bool) -> None:
    case = next(case for case in CASES if case["name"] == "opensearch-300-threads")
    command = f"{case['command']} --set jvm=-XX:MaxDirectMemorySize={option}"
    assert ("direct memory" in find({**case, "command": command})[0]) is holds


def test_option_without_a_limit_of_direct_memory_is_no_limit() -> None:
    case = next(case for case in CASES if case["name"] == "opensearch-1g")
    command = f"{case['command']} --set jvm=-XX:MaxDirectMemorySize=0"
    assert list(find({**case, "command": command})[0]) == case["rules"]


def test_experiment_that_includes_others_is_tested_without_them() -> None:
    first, *_ = build_plans(ExperimentOptions(experiment="es-23185"))
    command = advice_module.format_test(first, "ingest-bench run es-23185 --open", first.runs[0].cell, HEAP)
    assert command.startswith("ingest-bench run es-23185-loopback-ethernet --open --set ")


def test_workload_that_was_moved_leaves_its_users_unknown(tmp_path: Path) -> None:
    results = write_results(tmp_path, '[load]\nworkload = "pmc"\n')
    (run,) = results.plan.runs
    moved = dataclasses.replace(run.cell, load=dataclasses.replace(run.cell.load, workload="/moved.toml"))
    results.replace_plan(dataclasses.replace(results.plan, runs=(dataclasses.replace(run, cell=moved),)))
    assert advice_module.observe_runs(results, summarise_runs(results))[0].values["users"] is None


def test_server_that_runs_already_is_to_be_restarted_and_not_set(tmp_path: Path) -> None:
    results = write_results(tmp_path, '[load]\nworkload = "pmc"\n')
    cell: Cell = dataclasses.replace(results.plan.runs[0].cell, target=TargetOptions(attach=(4711,)))
    run = ObservedRun(run="only/1", cell=cell, values={"target": "opensearch 2.19.6", **HEAP_VALUES})
    files.write_json(results.path / "facts.json", {"command": "ingest-bench run --attach 4711"})
    (finding,) = advice_module.find_advice(results, [run])
    assert finding.advice.text.endswith("Restart the server with heap=1026m, then test")
    assert finding.test == "ingest-bench run --attach 4711"


HEAP_VALUES: dict[str, ColumnValue] = {"heap_bytes": 1 << 30, "allocator": "unpooled"}


def test_recommend_names_evidence_command_and_what_was_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = {"name": "opensearch", "version": "2.19.6", "allocator": "unpooled"}
    # Twice, and once with a heap that pools.
    text = 'replicates = 2\n[load]\nworkload = "pmc"\n[factors]\nheap = ["1g", "1026m"]\n'
    results = write_results(tmp_path, text, server=server)
    monkeypatch.chdir(tmp_path)
    assert cli.run(["recommend", str(results.path)]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("heap and allocator: ")
    assert first.endswith("(2 of 4 runs)")
    assert lines[0] == "  evidence: heap_bytes 1 GiB, allocator unpooled"
    assert lines[1] == "  test: ingest-bench run x --set heap=1024m,1026m"
    assert "G1 regions (probe gc); receive buffer (probe reads)" in lines[2]
    assert cli.run(["recommend", str(results.path), "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert document["advice"][0]["runs"] == ["heap=1g/1", "heap=1g/2"]
    assert document["advice"][0]["advice"]["evidence"] == HEAP_VALUES
    assert document["not_checked"]["G1 regions"] == "probe gc"
    findings = advice_module.find_advice(results, advice_module.observe_runs(results, rows := summarise_runs(results)))
    page = reports.build_page(rows, {}, {}, advice_table.finding_rows(findings))["report/index.html"].decode()
    assert "heap=1024m,1026m" in page


def test_server_without_a_choice_of_receive_buffers_lacks_no_probe() -> None:
    unchecked = {case["name"]: advice_module.list_unchecked([find(case)[1]], ()) for case in CASES}
    assert "receive buffer" not in unchecked["kafka-wan"]
    assert "receive buffer" in unchecked["opensearch-1g"]


def test_recommendation_for_one_server_checks_no_other() -> None:
    runs = [find(case)[1] for case in CASES if case["name"] == "opensearch-1g"]
    recommendation: Any = object()
    unchecked = [
        advice_module.list_unchecked(runs, [BufferAdvice(cell=cell, recommendation=recommendation)])
        for cell in ("jetty", runs[0].cell.name)
    ]
    assert ["receive buffer" in rules for rules in unchecked] == [True, False]


def test_buffers_and_allocator_of_rest_are_not_advised_for_grpc() -> None:
    command = "ingest-bench run opensearch-grpc --set protocol=opensearch-grpc --set network=loopback"
    cell = plan_command(command).runs[0].cell
    run = ObservedRun(run="only/1", cell=cell, values={"target": "opensearch 3.8.0", **HEAP_VALUES})
    assert run.server == ""
    assert advice_module.list_unchecked([run], ()).keys().isdisjoint({"receive buffer", "heap and allocator"})


def test_results_without_a_valid_run_get_no_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = write_results(tmp_path, '[load]\nworkload = "pmc"\n', state="failed", server={"allocator": "unpooled"})
    assert cli.run(["recommend", str(results.path)]) == 3
    assert capsys.readouterr().out.splitlines() == ["no advice: no run has a result"]


def test_all_advice_of_one_run_fits_a_terminal_of_24_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    advice = {name: item for case in CASES for name, item in find(case)[0].items()}
    assert len(advice) == len(RULES)
    test = f"ingest-bench run quickstart {' '.join(['--set network=ethernet'] * 4)}"
    findings = [Finding(rule=name, advice=item, runs=("a/1",), of_runs=3, test=test) for name, item in advice.items()]
    unchecked = {rule.name: rule.recorder for rule in RULES}
    output = io.StringIO()
    terminal = Console(file=output, force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr(screen, "_STDOUT", terminal)
    screen.print_blocks(advice_table.describe_findings(findings), advice_table.describe_unchecked(unchecked))
    lines = output.getvalue().splitlines()
    # An indented line is left to the terminal, so that a command can be copied.
    assert sum(-(-len(line) // 80) for line in lines) < 24
    assert any(line.endswith("more: --json") for line in lines)
