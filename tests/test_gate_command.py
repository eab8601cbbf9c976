"""`gate` as a command: results in, exit code and files for CI out; and the nightly jobs, executed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import example_summaries as made
import pytest
from commands import fill_cache

from ingest_bench.cli import app, screen
from ingest_bench.errors import SpecError
from ingest_bench.experiment import spec
from ingest_bench.report import gate, summary_files
from ingest_bench.report.gate import Check, Verdict
from ingest_bench.results import layout

CI = Path(__file__).parent.parent / "docs" / "ci"
AT_LEAST = '[[threshold]]\ncolumn = "docs_per_s_mean"\nat_least = {}\n'
# junit-10.xsd of Jenkins' xUnit plugin: children of an element with their number, and required attributes.
CHILDREN = {
    "testsuites": ["testsuite*"],
    "testsuite": ["testcase*", "system-out?"],
    "testcase": ["skipped?", "error?", "failure?", "system-out?"],
}
REQUIRED = {"testsuite": {"name", "tests", "failures", "errors"}, "testcase": {"name", "classname"}}
HOSTILE = "<b>\x00\ufffe]]>&\"'|`x`*y*\nnext"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Write a results folder with quickstart's four cells, and a file of thresholds next to it."""
    plan = spec.build_plan(spec.load_experiment("quickstart", replicates=3))
    folder = layout.create_results(tmp_path, plan, {"cpu": "A", "kernel": "6.1"})
    rows = [
        made.summary(run.cell.levels, run.replicate, run=run.id, cell=run.cell.name, experiment="quickstart")
        for run in plan.runs
    ]
    folder.write_files({"summary.csv": summary_files.format_summary_csv(rows).encode()})
    (tmp_path / "fall.toml").write_text('[[threshold]]\ncolumn = "docs_per_s_mean"\nmay_fall = "20%"\n')
    return folder.path


@pytest.fixture
def run_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(source: Path, thresholds: str, *options: str) -> tuple[int, str]:
        capsys.readouterr()
        code = app.run(["gate", str(source), "--thresholds", str(tmp_path / thresholds), *options])
        output = capsys.readouterr()
        return code, " ".join((output.out + output.err).split())

    return run


def assert_valid_junit(element: ElementTree.Element) -> None:
    """Check the rules of the schema independently of the writer."""
    names = " ".join(child.tag for child in element)
    pattern = "".join(rf"(?:\b{name[:-1]} ?){name[-1]}" for name in CHILDREN.get(element.tag, []))
    assert re.fullmatch(pattern, names), (element.tag, names)
    assert REQUIRED.get(element.tag, set()) <= set(element.attrib)
    for child in element:
        assert_valid_junit(child)


def checks(*outcomes: gate.Outcome) -> tuple[Check, ...]:
    return tuple(Check(cell="a", column="c", outcome=outcome, reason=HOSTILE) for outcome in outcomes)


def test_output_keeps_pipes_and_links_and_escapes_names(tmp_path: Path) -> None:
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "far" / "page.html"
    os.mkfifo(pipe)
    target.parent.mkdir()
    link.symlink_to(target)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for file in (pipe, link):
            screen.write_output(file, os.fsdecode(b"a\xff.csv"))
        assert os.read(reader, 100) == b"a\\udcff.csv"
    finally:
        os.close(reader)
    assert (pipe.is_fifo(), link.is_symlink(), target.read_text()) == (True, True, "a\\udcff.csv")


@pytest.mark.parametrize(("name", "reason"), [(".", "it is a folder"), ("/proc/x.xml", "No such file or directory")])
def test_unwritable_output_is_one_sentence(
    name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=f"^{re.escape(name)}: cannot be written: {reason}$"):
        screen.write_output(Path(name), "text")


def test_baseline_is_a_folder_or_a_file_of_the_same_machine(
    results: Path, run_gate: Callable[..., tuple[int, str]]
) -> None:
    for baseline in (results, results / "summary.csv"):
        code, text = run_gate(results, "fall.toml", "--baseline", str(baseline))
        assert code == 0
        digest = hashlib.sha256((results / "summary.csv").read_bytes()).hexdigest()
        assert f"the baseline is {results / 'summary.csv'} (sha256 {digest})" in text
    (results / "facts.json").write_text('{"cpu": "B", "kernel": "6.2"}')
    before = results.with_name("before")
    shutil.copytree(results, before)
    (before / "facts.json").write_text('{"cpu": "A", "kernel": "6.1"}')
    code, text = run_gate(results, "fall.toml", "--baseline", str(before))
    assert code == 3
    assert "another machine: cpu was A, is B" in text
    assert "note: kernel was 6.1, is 6.2" in text
    code, text = run_gate(results, "fall.toml")
    assert (code, "verdict: pass (4 skipped)" in text) == (0, True)
    code, text = run_gate(results, "fall.toml", "--baseline", str(results / "facts.json"))
    assert (code, "facts.json: not a summary.csv: the column experiment is missing" in text) == (2, True)
    summary = (results / "summary.csv").read_text()
    (results / "summary.csv").write_text("".join(summary.splitlines(keepends=True)[:-1]))
    assert run_gate(results, "fall.toml")[0] == 3, "a planned run is missing"
    (results / "summary.csv").unlink()
    code, text = run_gate(results, "fall.toml")
    assert (code, "no results found (no summary.csv)" in text) == (2, True)


def test_junit_counts_outcomes_and_holds_any_text() -> None:
    verdict = Verdict(checks=checks("pass", "fail", "no verdict", "fail"), notes=("kernel was 6.1, is 6.2",))
    root = ElementTree.fromstring(gate.format_junit(verdict, HOSTILE))  # noqa: S314 - written by us
    assert_valid_junit(root)
    (suite,) = root
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors")}
    assert counts == {"tests": 4, "failures": 2, "errors": 1}
    assert [len(suite.findall(f".//{name}")) for name in ("testcase", "failure", "error")] == [4, 2, 1]
    assert len({(test.get("classname"), test.get("name")) for test in suite.iter("testcase")}) == 4
    assert suite.findtext(".//failure") == HOSTILE.replace("\x00", "\\x00").replace("\ufffe", "\\ufffe")
    assert suite.findtext("system-out") == "kernel was 6.1, is 6.2"


def test_markdown_begins_with_the_verdict_folds_passes_and_escapes_markup() -> None:
    changed = ("heap was 1 GiB, is 512 MiB",)
    text = gate.format_markdown(Verdict(checks=checks("pass", "fail", "skipped"), changed_settings=changed), HOSTILE)
    title, counts, change, *tables = filter(None, text.splitlines())
    assert title.startswith("## ❌ fail")
    assert (counts, change) == ("1 fail, 1 skipped, 1 pass", "- **Changed:** heap was 1 GiB, is 512 MiB")
    head, rule, first, second, fold, *_, passed, end = tables
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in (head, rule, first, second, passed)] == [5] * 5
    assert ("fail" in first, "skipped" in second, "pass" in passed) == (True, True, True)
    assert (fold, end) == ("<details><summary>1 passed</summary>", "</details>")
    assert "<b>" not in text
    assert not re.search(r"(?<!\\)`|(?<![\\*])\*(?!\*)(?!Changed)", text.replace("**Changed:**", ""))


def test_markdown_mentions_nobody_and_has_no_terminal_commands() -> None:
    check = Check(cell="@org/team", column="c", reason="\x1b[31m@you")
    text = gate.format_markdown(Verdict(checks=(check,), notes=("\u202e@me",)), "@all")
    assert not re.search("@(?!&#8203;)", text)
    assert all(letter == "\n" or letter.isprintable() for letter in text.replace("\ufe0f", ""))


def test_benchmark_json_is_smaller_where_the_server_is_better() -> None:
    tables = [{"column": name, "at_least": 1} for name in ("docs_per_s_mean", "reads")]
    thresholds = gate.parse_thresholds(
        {"threshold": [*tables, {"column": "gc_pause_ms_total_per_gb", "may_rise": "5%"}]}, ""
    )
    runs = [made.changed(made.summary({}, n), values={"docs_per_s_mean": 10_000.0 * n}) for n in (1, 2, 4)]
    rate, pauses = json.loads(gate.format_benchmark_json(runs, thresholds))
    assert rate == {
        "name": "only: time for one, by docs_per_s_mean",
        "unit": "µs",
        "value": 50.0,
        "range": "25 to 100",
        "extra": "3 runs: 100, 50, 25",
    }
    assert pauses["unit"] == "ms/GB"
    # github-action-benchmark requires a number as `value`, and text elsewhere.
    for entry in (rate, pauses):
        assert {name: type(value) for name, value in entry.items()} == {
            **dict.fromkeys(("name", "unit", "range", "extra"), str),
            "value": float,
        }


def test_gate_writes_all_files_also_if_it_fails(
    results: Path, tmp_path: Path, run_gate: Callable[..., tuple[int, str]]
) -> None:
    (tmp_path / "gate.toml").write_text(AT_LEAST.format(10**9))
    files = {name: tmp_path / "new" / name for name in ("junit", "markdown", "benchmark")}
    code, text = run_gate(results, "gate.toml", *(word for name in files for word in (f"--{name}", str(files[name]))))
    assert (code, text.endswith("verdict: fail (4 fail)")) == (1, True), text
    assert_valid_junit(ElementTree.fromstring(files["junit"].read_text()))  # noqa: S314 - written by us
    assert len(json.loads(files["benchmark"].read_text())) == 4
    assert files["markdown"].read_text().startswith("## ❌ fail: quickstart")


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    fill_cache()
    # The arrivals decide the rate, however busy the machine is; with a delay of 800 ms two users reach a quarter of it.
    (tmp_path / "sink.toml").write_text(
        'replicates = 3\nprobes = []\n[target]\nname = "sink"\nheap = "256m"\nsetting = {"sink.delay" = "50ms"}\n'
        '[load]\nworkload = "nyc_taxis"\nusers = 2\nbulk_documents = 100\narrivals = "10/s"\n'
        'warm_up = "500ms"\nmeasure = "2s"\n'
    )
    (tmp_path / "gate.toml").write_text(f'{AT_LEAST.format(1)}may_fall = "55%"\n')
    return tmp_path


def execute(folder: Path, *argv: str, **variables: str) -> tuple[int, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **variables}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.processes
def test_empty_baseline_is_none(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "ingest-bench"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nif [ "$1" = run ]; then mkdir -p "$4/sink/2026"; else echo "$@"; fi\n')
    program.chmod(0o755)
    # As an earlier night left it on a full disk.
    (tmp_path / "baseline").write_text("")
    for has_baseline in (False, True):
        path = f"{program.parent}:{os.environ['PATH']}"
        code, text = execute(tmp_path, "sh", str(CI / "nightly.sh"), str(tmp_path), "sink.toml", PATH=path)
        assert (code, "--baseline nights/" in text) == (0, has_baseline), text
    assert (tmp_path / "baseline").read_text().endswith("/sink/2026\n")
    assert not list(tmp_path.glob("nights/*/baseline"))


@pytest.mark.jvm
@pytest.mark.netns
@pytest.mark.processes
def test_three_nights_first_pass_is_baseline_and_a_slower_server_fails(bench: Path) -> None:
    command = ("sh", str(CI / "nightly.sh"), str(bench), "sink.toml")
    code, first = execute(bench, *command)
    assert code == 0, first
    assert "verdict: pass (1 skipped, 1 pass)" in first
    baseline = (bench / "baseline").read_text()
    assert (bench / baseline.strip() / "summary.csv").is_file()
    code, second = execute(bench, *command)
    assert code == 0, second
    assert "verdict: pass (2 pass)" in second
    # Another setting by --set is still the same cell.
    code, third = execute(bench, *command, "--set", "setting.sink.delay=800ms")
    assert code == 1, third
    assert "changed: setting.sink.delay was 50ms, is 800ms\nverdict: fail (1 fail, 1 pass)" in third
    assert len(list(bench.glob("nights/*/junit.xml"))) == 3
    assert (bench / "baseline").read_text() == baseline


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
@pytest.mark.processes
def test_github_action_writes_its_verdict_to_the_job_summary(bench: Path) -> None:
    action = (CI / "action.yml").read_text()
    pattern = r"^ {4}- name: (.+)\n(?: {6}.+\n)*? {6}run: \|\n((?: {8}.*\n)+)"
    steps = {
        step[1]: re.sub("^ {8}", "", step[2], flags=re.MULTILINE) for step in re.finditer(pattern, action, re.MULTILINE)
    }
    assert list(steps) == ["Install", "Measure", "Judge"]
    assert len(steps) == action.count(" run:")
    inputs = dict(re.findall(r"^  (\w+):\n    description: .+\n    default: (.+)\n", action, re.MULTILINE))
    variables = {name.upper(): default for name, default in inputs.items()}
    assert all(f"{name}: ${{{{ inputs.{name.lower()} }}}}" in action for name in variables)
    output, summary = bench / "output", bench / "summary"
    files = {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary), "RUNNER_TEMP": str(bench / "temp")}
    variables |= {"EXPERIMENT": "sink.toml", "OPTIONS": "--measure 1s", **files}
    for name in ("Measure", "Judge"):
        # As GitHub runs them: bash -e.
        code, text = execute(bench, "bash", "-e", "-c", steps[name], **variables)
        assert code == 0, (name, text)
        variables["RESULTS"] = output.read_text().strip().removeprefix("results=")
    assert "## ✅ pass: sink" in summary.read_text()
    assert json.loads((bench / "benchmark.json").read_text())
