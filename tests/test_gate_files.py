"""What a gate leaves for CI, read as those read it that it is for; and the nightly jobs, carried out."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import made_summaries as made
import pytest
from commands import fill_cache

from ingest_bench.cli import app
from ingest_bench.report import gate
from ingest_bench.report.gate import Check, Verdict, job, junit
from ingest_bench.report.tables import text_tables

CI = Path(__file__).parent.parent / "docs" / "ci"
GATE = """
[[threshold]]
column = "docs_per_s_mean"
at_least = {}
[[threshold]]
column = "response_ms_p99"
at_most = 10000
may_rise = "1%"
[[threshold]]
column = "read_bytes_mean"
at_least = 1
"""
# junit-10.xsd of Jenkins' xUnit plugin: the children of an element and how often, and the attributes it must have.
CHILDREN = {
    "testsuites": ["testsuite*"],
    "testsuite": ["testcase*", "system-out?"],
    "testcase": ["error?", "failure?", "system-out?"],
}
REQUIRED = {"testsuite": {"name", "tests", "failures", "errors"}, "testcase": {"name", "classname"}}
HOSTILE = "<b>\x00\ufffe]]>&\"'|`x`*y*\nnext"


def valid(element: ElementTree.Element) -> None:
    """The rules, by a second hand."""
    names = " ".join(child.tag for child in element)
    wanted = "".join(rf"(?:\b{name[:-1]} ?){name[-1]}" for name in CHILDREN.get(element.tag, []))
    assert re.fullmatch(wanted, names), (element.tag, names)
    assert REQUIRED.get(element.tag, set()) <= set(element.attrib)
    for child in element:
        valid(child)


def checks(*outcomes: gate.Outcome) -> tuple[Check, ...]:
    return tuple(Check(cell="a", column="c", outcome=outcome, text=HOSTILE) for outcome in outcomes)


def test_junit_counts_what_failed_and_what_has_no_verdict_and_holds_any_text() -> None:
    verdict = Verdict(checks=checks("pass", "fail", "no verdict", "fail"), notes=("kernel was 6.1, is 6.2",))
    root = ElementTree.fromstring(junit.xml(verdict, HOSTILE))  # noqa: S314 - we wrote it
    valid(root)
    (suite,) = root
    counted = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors")}
    assert counted == {"tests": 4, "failures": 2, "errors": 1}
    assert [len(suite.findall(f".//{name}")) for name in ("testcase", "failure", "error")] == [4, 2, 1]
    assert len({(test.get("classname"), test.get("name")) for test in suite.iter("testcase")}) == 4
    assert suite.findtext(".//failure") == HOSTILE.replace("\x00", "\ufffd").replace("\ufffe", "\ufffd")
    assert suite.findtext("system-out") == "kernel was 6.1, is 6.2"


def test_the_summary_of_a_job_begins_with_the_verdict_and_no_text_becomes_markup() -> None:
    text = job.summary(Verdict(checks=checks("pass", "fail")), HOSTILE)
    title, empty, head, rule, first, second = text.splitlines()[:6]
    assert title.startswith("## ❌ fail")
    assert not empty
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in (head, rule, first, second)] == [5] * 4
    assert ":" not in rule, "what was found is a sentence, no number"
    assert "fail" in first
    assert "pass" in second
    assert "<b>" not in text
    assert not re.search(r"(?<!\\)[`*]", text)


def test_numbers_for_a_chart_are_smaller_where_the_server_is_better() -> None:
    wanted = gate.thresholds(
        {"threshold": [{"column": name, "at_least": 1} for name in ("docs_per_s_mean", "reads")]}, ""
    )
    wanted += gate.thresholds({"threshold": [{"column": "gc_pause_ms_total_per_gb", "may_rise": "5%"}]}, "")
    runs = [made.changed(made.summary({}, n), values={"docs_per_s_mean": 10_000.0 * n}) for n in (1, 2, 4)]
    one, pauses = json.loads(job.smaller_is_better(runs, wanted))
    assert one == {
        "name": "only: time for one, by docs_per_s_mean",
        "unit": "µs",
        "value": 50.0,
        "range": "25 to 100",
        "extra": "3 runs: 100, 50, 25",
    }
    assert pauses["unit"] == "ms/GB"
    # Its reader takes a list of such entries; `value` is a number, everything else text.
    for entry in (one, pauses):
        assert {name: type(value) for name, value in entry.items()} == {
            **dict.fromkeys(("name", "unit", "range", "extra"), str),
            "value": float,
        }


def test_the_command_writes_all_three_also_when_it_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = made.experiment(network=["loopback", "ethernet"])
    (tmp_path / "summary.csv").write_text(text_tables.summary_csv(runs))
    files = {name: tmp_path / "new" / name for name in ("junit", "markdown", "json")}
    options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    for limit, code in ((10**9, 1), (1, 3)):
        (tmp_path / "gate.toml").write_text(GATE.format(limit))
        arguments = ["gate", str(tmp_path / "summary.csv"), "--thresholds", str(tmp_path / "gate.toml")]
        assert app.run([*arguments, *options]) == code
        root = ElementTree.fromstring(files["junit"].read_text())  # noqa: S314 - we wrote it
        valid(root)
        assert bool(int(root.attrib["failures"])) == (code == 1)
        assert len(json.loads(files["json"].read_text())) == 4
        assert {1: "## ❌ fail", 3: "## ⚠️ no verdict"}[code] in files["markdown"].read_text()
    capsys.readouterr()


def test_a_verdict_names_its_baseline_and_what_that_held(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    was, now = tmp_path / "was.csv", tmp_path / "now.csv"
    for file in (was, now):
        file.write_text(text_tables.summary_csv(made.experiment(network=["loopback"])))
    (tmp_path / "gate.toml").write_text('[[threshold]]\ncolumn = "docs_per_s_mean"\nmay_fall = "99%"\n')
    junit = tmp_path / "junit.xml"
    options = ("--thresholds", str(tmp_path / "gate.toml"), "--baseline", str(was), "--junit", str(junit))
    app.run(["gate", str(now), *options])
    kept = f"the baseline is {was} (sha256 {hashlib.sha256(was.read_bytes()).hexdigest()})"
    assert kept in " ".join(capsys.readouterr().out.split())
    assert kept in junit.read_text()


def steps(workflow: str) -> dict[str, str]:
    """The scripts of a workflow by the names of their steps."""
    found = re.finditer(r"^ {6}- name: (.+)\n(?: {8}if: .+\n)? {8}run: \|\n((?: {10}.*\n)+)", workflow, re.MULTILINE)
    return {step[1]: re.sub("^ {10}", "", step[2], flags=re.MULTILINE) for step in found}


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    fill_cache()
    (tmp_path / "sink.toml").write_text(
        'replicates = 2\nprobes = []\n[target]\nname = "sink"\nheap = "256m"\n'
        '[load]\nworkload = "nyc_taxis"\nusers = 2\nbulk_documents = 200\nwarm_up = "1s"\nmeasure = "1s"\n'
    )
    (tmp_path / "gate.toml").write_text('[[threshold]]\ncolumn = "docs_per_s_mean"\nat_least = 1\n')
    return tmp_path


def carried_out(folder: Path, *argv: str, **more: str) -> tuple[int, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **more}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
@pytest.mark.processes
def test_the_nightly_script_keeps_its_first_good_night_and_judges_the_next_by_it(bench: Path) -> None:
    command = ("sh", str(CI / "nightly.sh"), str(bench), "sink.toml")
    code, said = carried_out(bench, *command)
    assert code == 0, said
    baseline = bench / (bench / "baseline").read_text().strip()
    assert (baseline / "summary.csv").is_file()
    (bench / "gate.toml").write_text(
        '[[threshold]]\ncolumn = "docs_per_s_mean"\nmay_rise = "0.0001%"\nat_least = 1e15\n'
    )
    code, said = carried_out(bench, *command)
    assert code == 1, said
    assert "against the baseline" in said
    assert len(list(bench.glob("nights/*/junit.xml"))) == 2
    assert (bench / "baseline").read_text().strip() == str(baseline.relative_to(bench))


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
@pytest.mark.processes
def test_the_nightly_workflow_leaves_its_verdict_in_the_summary_of_the_job(bench: Path) -> None:
    text = (CI / "nightly.yml").read_text()
    found = steps(text)
    assert list(found) == ["Install", "Measure", "Judge", "Summary"]
    assert len(found) == text.count(" run:")
    (bench / "summary").touch()
    given = {"EXPERIMENT": "sink.toml", "OPTIONS": "--measure 1s", "RUNNER_TEMP": str(bench / "temp")}
    given["GITHUB_STEP_SUMMARY"] = str(bench / "summary")
    for name in ("Measure", "Judge", "Summary"):
        # As GitHub runs them: bash -e.
        code, said = carried_out(bench, "bash", "-e", "-c", found[name], **given)
        assert code == 0, (name, said)
    assert "## ✅ pass: sink" in (bench / "summary").read_text()
    assert json.loads((bench / "benchmark.json").read_text())
