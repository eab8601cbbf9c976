"""Faults that a server cannot have are left out by name, and one table says what became of acknowledged documents."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import made_summaries as made
import pytest
from typer.testing import CliRunner

from ingest_bench.analysis.compare.comparable import Results
from ingest_bench.cli.app import app
from ingest_bench.cli.report import show
from ingest_bench.cli.what import What, plans
from ingest_bench.errors import SpecError
from ingest_bench.experiment import spec
from ingest_bench.lab import evaluation
from ingest_bench.model.results import Summary
from ingest_bench.report import REPORTS, gate
from ingest_bench.report.gate import thresholds
from ingest_bench.results import layout

ALL = ("opensearch", "elasticsearch", "cassandra 0.7.5", "cassandra 5.0.9", "kafka", "sink", "forwarder")
KILLED = "kill: sink keeps no documents in files, and none would be there afterwards"


def run(fault: str, target: str, replicate: int = 1, **values: Any) -> Summary:
    found = made.summary({"fault": fault, "target": target}, replicate)
    known = {"documents_acked": 1000, "documents_counted": 1000, "documents_check": "counted", **values}
    return made.changed(found, values=known)


def rows(found: list[Summary]) -> list[list[str]]:
    return list(csv.reader(REPORTS["acknowledged"](found)["report/acknowledged.csv"].decode().splitlines()))


def test_one_plan_has_every_shipped_server_and_says_which_faults_it_leaves_out() -> None:
    (plan,) = plans(What(experiment="acknowledged"))
    assert plan.factors[1].levels == ALL
    assert {each.cell.levels["target"] for each in plan.runs} == set(ALL)
    assert len(plan.runs) + len(plan.left_out) == len(plan.factors[0].levels) * len(ALL)
    found = {(each.levels["fault"], each.levels["target"]): each.reason for each in plan.left_out}
    assert found["kill", "sink"] == KILLED
    assert ("kill", "kafka") not in found
    assert found["flush", "kafka"] == "flush: kafka cannot be told to write what it has in memory"
    assert (
        found["slow-fsync", "forwarder"]
        == "slow-fsync: forwarder keeps no documents in files, and nothing would be slow"
    )
    assert found["oversized", "cassandra 5.0.9"] == "oversized is a fault of HTTP, and cassandra takes cql"
    assert found["flush", "sink"] == "flush: sink cannot be told to write what it has in memory"
    assert not {target for _, target in found} & {"opensearch", "elasticsearch"}
    assert {(each.cell.levels["fault"], each.cell.levels["target"]) for each in plan.runs}.isdisjoint(found)


def test_plan_names_what_is_left_out_and_a_plan_of_nothing_else_is_refused() -> None:
    asked = ["plan", "acknowledged", "--set", "target=opensearch,sink", "--set", "fault=none,kill"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert f"left out: fault=kill+target=sink: {KILLED}" in said
    assert "3 runs" in said
    with pytest.raises(SpecError, match=f"^{KILLED}"):
        plans(What(experiment="acknowledged", sets=["target=sink", "fault=kill"]))


def test_what_was_left_out_is_a_row_of_the_results_and_takes_nothing_from_their_being_whole(tmp_path: Path) -> None:
    (plan,) = plans(What(experiment="acknowledged", sets=["target=opensearch,sink", "fault=none,kill"]))
    results = layout.create(tmp_path, plan, {})
    assert layout.open_results(results.path).plan == plan
    (left,) = evaluation.summaries(results)
    assert (left.run, left.state, left.reason) == ("fault=kill+target=sink/1", "inapplicable", KILLED)
    done = [made.summary(each.cell.levels, run=each.id, cell=each.cell.name) for each in plan.runs]
    assert show(results, [*done, left], ()) == 0
    assert show(results, [*done[1:], left], ()) == 3
    evaluation.write_tables(results, [*done, left])
    assert [each.reason for each in evaluation.kept(results.path) if each.state == "inapplicable"] == [KILLED]
    # Nobody wanted a number of it.
    wanted = thresholds({"threshold": [{"column": "docs_per_s_mean", "at_least": 1}]}, "gate.toml")
    assert gate.judge(Results(summaries=[*done, left]), wanted).outcome == "pass"


def test_a_target_is_named_with_its_version_once() -> None:
    found = spec.cells(spec.load("acknowledged", ["fault=none", "target=cassandra 5.0.9,cassandra"]))
    assert [(cell.target.name, cell.target.version) for cell in found] == [("cassandra", "5.0.9"), ("cassandra", None)]
    assert found[0].name == "fault=none+target=cassandra_5.0.9"
    with pytest.raises(SpecError, match=r'the target "cassandra 5\.0\.9" has a version, and so has the factor version'):
        spec.load("acknowledged", ["target=cassandra 5.0.9", "version=0.7.5"])
    with pytest.raises(SpecError, match="is not a name"):
        spec.load("acknowledged", ["target=cassandra ../x"])


def test_a_server_has_its_own_settings_in_its_own_cells_alone(tmp_path: Path) -> None:
    own = '[settings.forwarder]\nbatch_delay = "1ms"\nworkers = "2"\n[target.setting]\nworkers = "3"\n'
    (tmp_path / "x.toml").write_text(f'[factors]\ntarget = ["forwarder", "sink"]\n{own}')
    forwarder, sink = spec.cells(spec.load(str(tmp_path / "x.toml")))
    # What an experiment says of all of them, and what a level says, comes before it.
    assert forwarder.target.setting == {"batch_delay": "1ms", "workers": "3"}
    assert sink.target.setting == {"workers": "3"}
    (changed, _) = spec.cells(spec.load(str(tmp_path / "x.toml"), ["setting.batch_delay=5ms"]))
    assert changed.target.setting["batch_delay"] == "5ms"
    for wrong in ("[settings]\nforwarder = 1", "[settings.forwarder]\nworkers = [[]]", '[settings."../x"]\na = "b"'):
        (tmp_path / "x.toml").write_text(wrong)
        with pytest.raises(SpecError, match=r"x\.toml: settings"):
            spec.load(str(tmp_path / "x.toml"))


def test_each_fault_has_a_row_and_each_server_a_column() -> None:
    lost = run("reset", "kafka", documents_counted=995)
    # With gaps in their numbers more are lost than are missing.
    forwarded = run("reset", "sink", documents_counted=1000, lost_documents=7)
    found = [
        run("none", "kafka"),
        run("none", "sink", documents_acked=1200, documents_repeated=200),
        made.changed(lost, state="invalid", reason="documents: 1,000 acknowledged, 995 counted, -5"),
        forwarded,
        made.changed(run("kill", "kafka"), state="inapplicable", reason=KILLED),
        run("kill", "sink", documents_counted=990, lost_documents=10),
        made.changed(run("pause", "kafka"), state="failed", reason="fault: it could not be\nlog: more"),
        made.changed(run("pause", "sink"), state="invalid", reason="promise broken"),
        run("gc", "kafka", documents_counted=None),
    ]
    assert rows(found) == [
        ["fault", "kafka", "sink"],
        ["none", "all 1,000 there", "all 1,000 there"],
        ["reset", "5 of 1,000 lost", "7 of 1,000 lost"],
        ["kill", f"does not apply: {KILLED}", "10 of 1,000 lost"],
        ["pause", "failed: fault: it could not be", "invalid: promise broken"],
        ["gc", "cannot be counted", ""],
    ]


def test_replicates_that_agree_are_said_once_and_others_one_by_one() -> None:
    found = [
        *(run("none", "kafka", replicate) for replicate in (1, 2)),
        run("kill", "kafka", documents_counted=990),
        run("kill", "kafka", 2),
    ]
    assert rows(found)[1:] == [
        ["none", "all 1,000 there"],
        ["kill", "10 of 1,000 lost; all 1,000 there"],
    ]


def test_without_a_factor_of_faults_there_is_no_such_table() -> None:
    assert REPORTS["acknowledged"]([made.summary({"network": name}) for name in ("loopback", "ethernet")]) == {}
