"""The command line: errors are one message with a remedy, and interrupted experiments can be resumed."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import example_summaries as made
import pytest
from rich.console import Console

from ingest_bench import targets
from ingest_bench.cli import app, screen
from ingest_bench.cli.app import run
from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.experiment import catalog, spec
from ingest_bench.inputs import files
from ingest_bench.jvm.java import Java
from ingest_bench.lab import campaign, evaluation
from ingest_bench.lab.runner import RunOptions
from ingest_bench.lab.server import reach
from ingest_bench.ledger import journal, sessions
from ingest_bench.load.fleet import keys, roster
from ingest_bench.load.fleet.roster import RemoteWorkers
from ingest_bench.model.experiment import Search
from ingest_bench.model.results import RunRecord
from ingest_bench.network.act import link as link_module
from ingest_bench.probes import PROBES, recording
from ingest_bench.results import layout
from ingest_bench.results.layout import Results

Typed = Callable[[str], tuple[int, str]]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    monkeypatch.chdir(tmp_path)

    def type_in(line: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["ingest-bench", *line.split()])
        code = run()
        output = capsys.readouterr()
        return code, " ".join((output.out + output.err).split())

    (tmp_path / "good.ndjson").write_text('{"a": 1}\n')
    return type_in


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run {}.toml", "file not found"),
        ("run --track {}", "is not a file's path"),
        ("run quickstart --out {}", "File name too long"),
        ("run --resume {}", "File name too long"),
        ("gate {} --thresholds empty.toml", "File name too long"),
        ("gate nothing.csv --thresholds {}.toml", "File name too long"),
    ],
)
def test_impossible_path_gets_one_message_and_starts_nothing(typed: Typed, line: str, message: str) -> None:
    Path("empty.toml").write_text('[[threshold]]\ncolumn = "gc_pauses"\nat_most = 1\n')
    code, text = typed(line.format("x" * 600))
    assert (code, message in text, "Traceback" in text) == (2, True, False), text
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("run quickstart --warm-up 1s --target sink --warm-up=2s", "--warm-up"),
        ("compare a b --csv a --csv b", "--csv"),
        ("net apply lan --interface eth0 --interface eth1", "--interface"),
    ],
)
def test_a_repeated_option_is_refused_and_replaces_nothing(typed: Typed, line: str, option: str) -> None:
    assert typed(line) == (2, f"error: {option}: given 2 times, and it has one value. Give it once.")


@pytest.mark.parametrize("is_attached", [False, True])
def test_java_without_profiling_settings_is_refused_before_the_first_run(
    is_attached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jdk = Java(home=tmp_path / "java", version=17, source="--java-home")
    jvm = SimpleNamespace(jcmd=jdk.home / "bin" / "jcmd", java_version=17)
    monkeypatch.setattr(targets, "fetch", lambda *_: jdk)
    monkeypatch.setattr(reach, "attach_jvms", lambda *_: (jvm,))
    monkeypatch.setattr(campaign, "find_reader", lambda *_: jdk)
    monkeypatch.setattr(recording, "reader_command", lambda _: ())
    ordered = spec.build_plan(
        spec.load_experiment("running", ["attach=7"]) if is_attached else spec.load_experiment("quickstart")
    )
    campaign.fetch_servers(ordered, RunOptions(), lambda *_: None)
    with pytest.raises(MissingCapability, match="--jfr profile: cannot read the profiling settings"):
        campaign.fetch_servers(ordered, RunOptions(jfr="profile"), lambda *_: None)
    recording.profile_path(jdk.home).parent.mkdir(parents=True)
    recording.profile_path(jdk.home).write_text("<configuration/>")
    campaign.fetch_servers(ordered, RunOptions(jfr="profile"), lambda *_: None)


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt every execution at its beginning."""
    monkeypatch.setattr(campaign, "check_machine", lambda *_: ())
    monkeypatch.setattr(campaign, "fetch_servers", lambda *_: None)
    monkeypatch.setattr(campaign, "run_missing", Mock(side_effect=KeyboardInterrupt))


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("used", ["default", "profile"])
def test_resumed_experiment_must_record_like_its_first_runs(used: str, typed: Typed) -> None:
    option, other = ("", " --jfr profile") if used == "default" else (" --jfr profile", "")
    folder, _ = begun(typed, option)
    assert layout.read_facts(folder)["jfr"] == used
    assert typed(f"run --resume {folder}{option}")[0] == 130
    code, text = typed(f"run --resume {folder}{other}")
    assert (code, f"give --jfr {used}" in text) == (2, True), text


@pytest.mark.usefixtures("interrupted")
def test_resume_command_has_every_folder_and_option(typed: Typed) -> None:
    Path("one.toml").write_text('[target]\nname = "sink"\n')
    Path("two.toml").write_text('[target]\nname = "sink"\n')
    Path("both.toml").write_text('includes = ["one.toml", "two.toml"]\n')
    how = "--netem uml --java-home /some/jdk --last-frames"
    code, text = typed(f"run both.toml {how}")
    assert code == 130
    (first,), (second,) = Path("results/one").glob("20*"), Path("results/two").glob("20*")
    commands = "; ".join(f"ingest-bench run --resume {folder} {how}" for folder in (first, second))
    assert text.endswith(f"To resume: {commands}")


@pytest.mark.usefixtures("interrupted")
def test_resume_command_of_workers_can_be_typed_as_printed(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[RemoteWorkers] = []

    def joined(remote: RemoteWorkers, *_: object) -> contextlib.AbstractContextManager[SimpleNamespace]:
        requested.append(remote)
        return contextlib.nullcontext(SimpleNamespace(joined=remote.workers))

    monkeypatch.setattr(roster, "open_fleet", joined)
    keys.write_new(Path("my keys"), 2)
    monkeypatch.setenv("INGEST_BENCH_KEYS", "my keys/run.key")
    how = "--workers 2 --bind 127.0.0.1:7001 --locust-web 127.0.0.1:8089"
    code, text = typed(f"run --url http://127.0.0.1:9 {how}")
    assert code == 130
    resume = text.partition("To resume: ")[2]
    assert "--keys 'my keys/run.key'" in resume
    monkeypatch.delenv("INGEST_BENCH_KEYS")
    # Typed as it was printed.
    monkeypatch.setattr("sys.argv", shlex.split(resume))
    assert run() == 130
    assert requested[0] == requested[1]
    assert requested[0].bind.port == 7001


def begun(typed: Typed, options: str = "") -> tuple[Path, Results]:
    """Return the folder of a quickstart that was interrupted at once, and its results."""
    assert typed(f"run quickstart {options}")[0] == 130
    (folder,) = Path("results/quickstart").glob("20*")
    return folder, layout.open_results(folder)


@pytest.mark.usefixtures("interrupted")
def test_options_that_conflict_with_resume_are_refused(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = begun(typed)
    before = sorted(Path().rglob("*"))
    for option, message in {
        "--out elsewhere": f"--resume {folder} cannot be combined with --out: results go to the resumed folder",
        "--out results": "remove --out results",
        "--max-runs 20": f"--max-runs 20 applies to searches only, and {folder} is not a search",
        "--find-max=": "--resume cannot be combined with an experiment",
        "--aa 5": "--resume cannot be combined with an experiment",
        "--bind 127.0.0.1": "--bind requires --workers N",
        "--keys keys/run.key": "--keys requires --workers N",
    }.items():
        code, text = typed(f"run --resume {folder} {option}")
        assert (code, message in text) == (2, True), text
    monkeypatch.setenv("INGEST_BENCH_KEYS", "keys/run.key")
    # The environment may set it for other commands.
    assert typed(f"run --resume {folder}")[0] == 130
    code, text = typed("run quickstart --max-runs 20")
    assert (code, "--max-runs 20 requires --find-max GOAL" in text) == (2, True), text
    assert sorted(Path().rglob("*")) == before


@pytest.fixture
def both_netems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that this machine has the kernel's netem and User-Mode Linux."""
    monkeypatch.setattr(link_module, "NETEM_CHECKS", {"kernel": lambda: "", "uml": lambda: ""})


def finished(results: Results, network: str, netem: str, replicates: int = 1) -> None:
    """Write the records of at most that many runs on that network."""
    for planned in [item for item in results.plan.runs if item.cell.levels["network"] == network][:replicates]:
        results.run_folder(planned).create()
        results.run_folder(planned).write_record(
            RunRecord(
                run=planned.id,
                replicate=planned.replicate,
                cell=planned.cell.name,
                levels=planned.cell.levels,
                state="measured",
                started_utc="2026-11-28T04:00:00+00:00",
                netem_backend=netem,
            )
        )


@pytest.mark.usefixtures("interrupted", "both_netems")
@pytest.mark.parametrize(("began", "others"), [("--netem uml", ""), ("", "--netem uml")])
def test_experiment_cannot_be_resumed_with_another_netem(
    typed: Typed, monkeypatch: pytest.MonkeyPatch, began: str, others: str
) -> None:
    folder, results = begun(typed, f"--replicates 2 --set network=loopback,wan-50ms {began}")
    used = "uml" if began else "kernel"
    finished(results, "loopback", "plain")
    assert typed(f"run --resume {folder} {others}")[0] == 130
    finished(results, "wan-50ms", used)
    assert typed(f"run --resume {folder} --netem {used}")[0] == typed(f"run --resume {folder} {began}")[0] == 130
    code, text = typed(f"run --resume {folder} {others}")
    assert (code, f"by netem {used}" in text, f"--netem {used}" in text) == (2, True, True), text
    # The remaining runs need no netem, and this machine has none.
    finished(results, "wan-50ms", used, replicates=99)
    monkeypatch.setattr(link_module, "NETEM_CHECKS", {"kernel": lambda: "none", "uml": lambda: "none"})
    check_machine = Mock(return_value=())
    monkeypatch.setattr(campaign, "check_machine", check_machine)
    assert typed(f"run --resume {folder} {others}")[0] == 130
    assert {run.cell.levels["network"] for run in check_machine.call_args.args[0].runs} == {"loopback"}


@pytest.mark.usefixtures("interrupted", "both_netems")
def test_runs_with_both_netems_are_advised_to_start_again(typed: Typed) -> None:
    folder, results = begun(typed, "--replicates 2 --set network=wan-50ms,satellite")
    finished(results, "wan-50ms", "uml")
    finished(results, "satellite", "kernel")
    code, text = typed(f"run --resume {folder}")
    assert (code, text.endswith("Start a new experiment without --resume.")) == (2, True), text


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("command", ["report", "recommend"])
def test_results_without_any_run_cannot_be_reported(command: str, typed: Typed) -> None:
    folder, _ = begun(typed)
    before = sorted(Path().rglob("*"))
    code, text = typed(f"{command} {folder}")
    assert code == 2
    assert text.startswith(f"error: {folder}: ")
    assert f"`run --resume {folder}`" in text
    assert sorted(Path().rglob("*")) == before


@pytest.mark.usefixtures("interrupted")
def test_search_is_resumed_with_more_runs(typed: Typed) -> None:
    folder, results = begun(typed, "--find-max p99<1s")
    assert results.plan.search is not None
    assert results.plan.search.max_runs == 16
    assert typed(f"run --resume {folder} --max-runs 30")[0] == 130
    assert results.plan.search == Search(goal="p99<1s, errors < 0.1%", max_runs=30)


FULL = "Make room in the folder of results (--out) and in the temporary folder; `run --resume` continues"
CLOSED = "Give this user access to it, or use another path"


@pytest.mark.parametrize(
    ("error", "exit_code", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 3, f"No space left on device. {FULL}"),
        (OSError(errno.EACCES, "Permission denied", "/x"), 2, f"/x: Permission denied. {CLOSED}"),
    ],
)
def test_error_of_a_disk_or_path_is_one_message_with_a_remedy(
    typed: Typed, monkeypatch: pytest.MonkeyPatch, error: OSError, exit_code: int, message: str
) -> None:
    monkeypatch.setattr("ingest_bench.experiment.catalog.read_table", Mock(side_effect=error))
    assert typed("plan quickstart") == (exit_code, f"error: {message}")


def test_list_as_json_has_every_kind_of_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "--json"]) == 0
    parts = json.loads(capsys.readouterr().out)
    kinds = {"experiments", "network profiles", "workloads", "targets", "example targets", "protocols", "probes"}
    assert set(parts) == kinds
    assert parts["experiments"]["quickstart"]
    assert set(parts["probes"]) == set(PROBES)


def test_show_prints_a_shipped_file_or_an_example_target(capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).parent.parent
    shown = {
        ("links",): root / "workloads" / "experiments" / "links.toml",
        ("target", "bulk"): root / "docs" / "custom-targets" / "bulk.toml",
        ("target", "JettyEvents.java"): root / "docs" / "custom-targets" / "JettyEvents.java",
    }
    for words, path in shown.items():
        assert run(["show", *words]) == 0
        assert capsys.readouterr().out == path.read_text()


@pytest.mark.processes
def test_run_does_not_import_drawing_statistics_and_load_libraries() -> None:
    code = "import sys, ingest_bench.cli.run; print(*sys.modules)"
    argv = [sys.executable, "-c", code]
    loaded = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    assert "ingest_bench.lab.campaign" in loaded
    assert not {"matplotlib", "scipy", "locust", "gevent"} & set(loaded)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "quickstart",
            "server opensearch 2.19.6 heap 1GiB network loopback / ethernet workload nyc_taxis users 4 bulk ",
        ),
        ("quickstart", "bulk 1,000 documents warm-up 5s measured 12s probes reads, gc, stalls ┏"),
        (
            "quickstart --set target=sink,opensearch --set heap=1g,2g",
            "server sink 4.1.115.Final / opensearch 2.19.6 heap 1GiB / 2GiB",
        ),
        ("quickstart --set nodes=3 --set network=ethernet", "server opensearch 2.19.6, 3 nodes"),
        # Users and bulk default to those of the workload.
        ("quickstart --set workload=pmc --set users=3,3000", "workload pmc users 3 / 3,000 bulk"),
        ("quickstart --set users=1,2,3,4,5,6,7", "users 1 / 2 / 3 / 4 / 5 / 2 more bulk"),
        ("kafka --set bulk=1MiB", "bulk at most 1MiB"),
        ("--url http://127.0.0.1:1 --documents good.ndjson", "workload good.ndjson index ingest-bench-good-"),
        ("quickstart --documents 9000", "warm-up 5s measured 9,000 documents"),
        ("--url http://127.0.0.1:1", "server http://127.0.0.1:1 network unchanged workload nyc_taxis"),
        ("quickstart --set network=jumbo --set receive_predictor=32KiB --measure 9s", "1 run, about 29 s."),
        ("quickstart --replicates 3", "12 runs, about 6 min."),
        ("quickstart --measure 24h", "4 runs, about 96.0 h."),
    ],
)
def test_plan_prints_settings_and_durations(typed: Typed, line: str, expected: str) -> None:
    code, text = typed(f"plan {line}")
    assert code == 0, text
    assert expected in text


def test_written_experiment_can_be_planned_with_each_of_its_comments(typed: Typed) -> None:
    code, text = typed("init my.toml")
    assert (code, text) == (0, "my.toml: written. Next: ingest-bench plan my.toml, then ingest-bench run my.toml")
    code, text = typed("plan my.toml")
    assert (code, "4 runs, about 2 min." in text) == (0, True), text
    written = Path("my.toml").read_text()
    head, _, fault = written.partition("# [[fault]]")
    Path("fault.toml").write_text(head + "[[fault]]" + fault.replace("\n# ", "\n"))
    assert spec.load_experiment("fault.toml").faults
    keys = re.findall(r"^# (\S+) = ", head, re.MULTILINE)
    assert len(keys) > 8
    for key in keys:
        Path("one.toml").write_text(head.replace(f"# {key} = ", f"{key} = "))
        assert spec.load_experiment("one.toml") != spec.load_experiment("my.toml"), key


@pytest.mark.parametrize("name", ["quickstart", "ethernet", "nyc_taxis"])
def test_show_prints_a_shipped_file_unchanged(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["show", name]) == 0
    shipped = {**files.data_files(catalog.NETWORKS), **files.data_files(catalog.WORKLOADS)}
    shipped |= files.data_files(catalog.EXPERIMENTS)
    assert capsys.readouterr().out == shipped[name].read_text()


def test_shown_file_is_not_wrapped_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=30, color_system=None)
    monkeypatch.setattr(screen, "_STDOUT", console)
    assert app.run(["show", "quickstart"]) == 0
    assert output.getvalue() == files.data_files(catalog.EXPERIMENTS)["quickstart"].read_text()


def test_incomplete_experiment_does_not_stay(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "read_template", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    code, text = typed("init my.toml")
    assert (code, "my.toml: cannot be written: No space left" in text) == (2, True), text
    assert not Path("my.toml").exists()


@pytest.mark.parametrize(("experiment", "parts"), [("quickstart", 1), ("es-23185", 5)])
def test_stdout_of_a_run_as_json_is_one_document(
    experiment: str,
    parts: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(campaign, "check_machine", lambda *_: ("a note",))
    monkeypatch.setattr(campaign, "fetch_servers", lambda _plan, _options, show: show("jdk", 0, None))
    monkeypatch.setattr(campaign, "run_missing", lambda *_: [made.summary({})])
    monkeypatch.setattr(evaluation, "write_report", lambda *_: ())
    app.run(["run", experiment, "--json"])
    output = capsys.readouterr()
    table = json.loads(output.out)
    assert len(table if isinstance(table, list) else [table]) == parts
    assert ("fetch jdk" in output.err, "a note" in output.err) == (True, True)


def test_net_show_names_an_unreadable_journal_and_shows_the_others(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGEST_BENCH_STATE", str(tmp_path / "state"))
    bad = sessions.locate_journal("bad")
    bad.write_text('{"header": {"schema": 2}}\n')
    journal.Journal.create(sessions.locate_journal("good"), journal.create_header("shaped eth7", 60)).close()
    code, text = typed("net show")
    assert code == RunFailed.exit_code
    assert "shaped eth7" in text
    assert f"{bad}: " in text
    sessions.locate_journal("good").unlink()
    code, text = typed("net show")
    assert code == RunFailed.exit_code
    assert "no changes are applied" not in text


@pytest.mark.usefixtures("interrupted")
def test_plan_takes_every_option_of_run_and_starts_nothing(typed: Typed) -> None:
    line = "quickstart --find-max p99<1s --max-runs 5 --netem uml --last-frames --out elsewhere --set heap=1g"
    code, text = typed(f"plan {line}")
    assert (code, text.endswith("quickstart: 4 runs, about 2 min. Nothing was started.")) == (0, True), text
    assert typed(f"run {line} --dry-run") == (0, text)
    assert typed("plan quickstart --max-runs 5")[0] == 2
    folder, _ = begun(typed)
    assert "4 runs" in typed(f"plan --resume {folder}")[1]
    assert not Path("elsewhere").exists()


def test_plan_of_several_parts_ends_with_their_sum(typed: Typed) -> None:
    text = typed("plan es-23185 --quiet")[1]
    assert text.startswith("es-23185-loopback-ethernet: 24 runs, about 17 min. es-23185-heap: ")
    assert text.endswith("es-23185: 114 runs, about 80 min. Nothing was started.")
    assert "1 with costly probes" in typed("plan es-23185-heap")[1]


def test_plan_as_json_is_one_document(typed: Typed) -> None:
    (plan,) = json.loads(typed("plan quickstart --json")[1])
    assert plan["experiment"] == "quickstart"
    assert [run["levels"]["network"] for run in plan["runs"]].count("ethernet") == 2


def test_an_infinite_number_is_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    screen.print_json({"interval": (0.5, math.inf)})
    assert json.loads(capsys.readouterr().out) == {"interval": [0.5, None]}
