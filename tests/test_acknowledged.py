"""Faults that do not apply to a target are left out of the plan by name, and are a row of the results."""

from __future__ import annotations

from pathlib import Path

import example_summaries as made
import pytest
from typer.testing import CliRunner

from ingest_bench.analysis.compare.changes import Results
from ingest_bench.cli.app import app
from ingest_bench.cli.experiment_options import ExperimentOptions, build_plans
from ingest_bench.cli.options import OutputOptions
from ingest_bench.cli.report import print_results
from ingest_bench.errors import SpecError
from ingest_bench.experiment import spec
from ingest_bench.lab import evaluation
from ingest_bench.report import gate
from ingest_bench.results import layout

ALL = ("opensearch", "elasticsearch", "cassandra 0.7.5", "cassandra 5.0.9", "kafka", "sink", "forwarder")


def reason_for(fault: str, target: str) -> str:
    (plan,) = build_plans(ExperimentOptions(experiment="acknowledged"))
    return next(cell.reason for cell in plan.skipped_cells if tuple(cell.levels.values())[:2] == (fault, target))


def test_shipped_plan_has_every_target_and_names_the_faults_it_leaves_out() -> None:
    (plan,) = build_plans(ExperimentOptions(experiment="acknowledged"))
    assert plan.factors[1].levels == ALL
    assert {run.cell.levels["target"] for run in plan.runs} == set(ALL)
    assert len(plan.runs) + len(plan.skipped_cells) == len(plan.factors[0].levels) * len(ALL)
    skipped = {(cell.levels["fault"], cell.levels["target"]): cell.reason for cell in plan.skipped_cells}
    assert {("kill", "sink"), ("slow-fsync", "forwarder"), ("flush", "kafka"), ("flush", "sink")} <= skipped.keys()
    assert ("oversized", "cassandra 5.0.9") in skipped
    assert ("kill", "kafka") not in skipped
    assert not {target for _, target in skipped} & {"opensearch", "elasticsearch"}
    for (fault, target), reason in skipped.items():
        assert fault in reason
        assert target.partition(" ")[0] in reason.lower()
    assert {(run.cell.levels["fault"], run.cell.levels["target"]) for run in plan.runs}.isdisjoint(skipped)


def test_plan_prints_left_out_cells_and_refuses_to_have_only_those() -> None:
    arguments = ["plan", "acknowledged", "--set", "target=opensearch,sink", "--set", "fault=none,kill"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    text, reason = " ".join(result.output.split()), reason_for("kill", "sink")
    assert f"left out: fault=kill+target=sink: {reason}" in text
    assert "3 runs" in text
    with pytest.raises(SpecError) as error:
        build_plans(ExperimentOptions(experiment="acknowledged", sets=["target=sink", "fault=kill"]))
    assert str(error.value).startswith(reason)


def test_left_out_cell_is_a_row_of_complete_results(tmp_path: Path) -> None:
    sets = ["target=opensearch,sink", "fault=none,kill"]
    (plan,) = build_plans(ExperimentOptions(experiment="acknowledged", sets=sets))
    results = layout.create_results(tmp_path, plan, {})
    assert layout.open_results(results.path).plan == plan
    (left,) = evaluation.summarise_runs(results)
    assert (left.run, left.state, left.reason) == (
        *("fault=kill+target=sink/1", "inapplicable", reason_for("kill", "sink")),
    )
    done = [made.summary(run.cell.levels, run=run.id, cell=run.cell.name) for run in plan.runs]
    assert print_results(results, [*done, left], OutputOptions()) == 0
    assert print_results(results, [*done[1:], left], OutputOptions()) == 3
    evaluation.write_tables(results, [*done, left])
    rows = evaluation.read_summaries(results.path)
    assert [row.reason for row in rows if row.state == "inapplicable"] == [left.reason]
    # A gate requires no number of it.
    thresholds = gate.parse_thresholds({"threshold": [{"column": "docs_per_s_mean", "at_least": 1}]}, "gate.toml")
    assert gate.judge(Results(summaries=rows), thresholds).outcome == "pass"


def test_target_level_may_have_a_version() -> None:
    cells = spec.build_cells(spec.load_experiment("acknowledged", ["fault=none", "target=cassandra 5.0.9,cassandra"]))
    assert [(cell.target.name, cell.target.version) for cell in cells] == [("cassandra", "5.0.9"), ("cassandra", None)]
    assert cells[0].name == "fault=none+target=cassandra_5.0.9"
    with pytest.raises(SpecError, match=r'"cassandra 5\.0\.9" has a version, and version is a factor too'):
        spec.load_experiment("acknowledged", ["target=cassandra 5.0.9", "version=0.7.5"])
    with pytest.raises(SpecError, match="is not a name"):
        spec.load_experiment("acknowledged", ["target=cassandra ../x"])


def test_settings_of_a_target_apply_to_its_own_cells_only(tmp_path: Path) -> None:
    settings = '[settings.forwarder]\nbatch_delay = "1ms"\nworkers = "2"\n[target.setting]\nworkers = "3"\n'
    experiment = tmp_path / "x.toml"
    experiment.write_text(f'[factors]\ntarget = ["forwarder", "sink"]\n{settings}')
    forwarder, sink = spec.build_cells(spec.load_experiment(str(experiment)))
    # Settings of all targets, and those of a level, take precedence.
    assert forwarder.target.setting == {"batch_delay": "1ms", "workers": "3"}
    assert sink.target.setting == {"workers": "3"}
    (changed, _) = spec.build_cells(spec.load_experiment(str(experiment), ["setting.batch_delay=5ms"]))
    assert changed.target.setting["batch_delay"] == "5ms"
    for wrong in ("[settings]\nforwarder = 1", "[settings.forwarder]\nworkers = [[]]", '[settings."../x"]\na = "b"'):
        experiment.write_text(wrong)
        with pytest.raises(SpecError, match=r"x\.toml: settings"):
            spec.load_experiment(str(experiment))
