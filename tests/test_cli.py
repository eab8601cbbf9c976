"""What a user gets for a slip: one message, the right exit code, and nothing started."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ingest_bench import targets
from ingest_bench.cli.app import run
from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.experiment import order, spec
from ingest_bench.jvm.java import Java
from ingest_bench.lab import campaign, find_max
from ingest_bench.lab.runner import RunOptions
from ingest_bench.lab.server import attaching
from ingest_bench.ledger import book, sessions
from ingest_bench.load.fleet import keys, roster
from ingest_bench.load.fleet.roster import Remote
from ingest_bench.model.experiment import Plan, Search
from ingest_bench.model.results import RunRecord
from ingest_bench.network.act import box
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
        said = capsys.readouterr()
        return code, " ".join((said.out + said.err).split())

    (tmp_path / "empty.ndjson").write_text("")
    (tmp_path / "empty.toml").write_text('[[threshold]]\ncolumn = "gc_pauses"\nat_most = 1\n')
    (tmp_path / "bad.ndjson").write_text('{"a": 1}\nnot json\n')
    return type_in


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("rum quickstart", "run"),
        ("run quikstart", 'did you mean "quickstart"?'),
        ("run quickstart --set heep=1g", 'did you mean "heap"?'),
        ("run quickstart --set target=opensaerch", 'did you mean "opensearch"?'),
        ("run quickstart --set workload=nyc_taxi", 'did you mean "nyc_taxis"?'),
        ("run quickstart --set network=etherne", 'did you mean "ethernet"?'),
        ("run quickstart --set version=1.0", '"1.0"'),
        ("run quickstart --set network.to_server.rate=100 --set network=ethernet", "'100' is not a rate"),
        ("run quickstart --set heap=1g,1g", "is given twice"),
        ("run quickstart --set heap=9000g", "larger than this machine's memory"),
        ("run quickstart --documents empty.ndjson", "empty.ndjson"),
        ("run quickstart --documents bad.ndjson", "line 2"),
        ("run quickstart --documents nothing.ndjson", "nothing.ndjson"),
        ("run quickstart --measure 10", "10"),
        ("run quickstart --documents 0", "--documents 0"),
        (f"run quickstart --documents {'9' * 5000}", "more than thirty digits"),
        ("run quickstart --documents 1000 --measure 10s", "in place of --measure"),
        ("run quickstart --documents 1000 --warm-up auto", "from a known start"),
        ("run quickstart --documents 1000 --find-max p99<1s", "not a number of documents"),
        ("run --resume nowhere", "nowhere"),
        ("report nowhere", "no results"),
        ("workload show pmcc", 'did you mean "pmc"?'),
        ("fetch opensearh", 'did you mean "opensearch"?'),
        (f"run {'x' * 600}.toml", "there is no such file"),
        (f"run --track {'x' * 600}", "is not a file's path"),
        (f"run quickstart --out {'x' * 600}", "File name too long"),
        (f"run --resume {'x' * 600}", "File name too long"),
        (f"report {'x' * 600}", "File name too long"),
        (f"gate {'x' * 600} --thresholds empty.toml", "File name too long"),
        (f"gate nothing.csv --thresholds {'x' * 600}.toml", "File name too long"),
    ],
)
def test_a_slip_gets_one_message_with_the_remedy_and_nothing_starts(typed: Typed, line: str, message: str) -> None:
    code, said = typed(line)
    assert code == 2, said
    assert message in said
    assert "Traceback" not in said
    assert not Path("results").exists()


def test_nobody_records_in_a_jvm_that_is_only_an_address(typed: Typed) -> None:
    code, said = typed("run --url http://127.0.0.1:9 --jfr profile")
    assert code == 2
    assert "--jfr profile: nobody can record in the JVM at http://127.0.0.1:9 from outside" in " ".join(said.split())


@pytest.mark.parametrize("is_attached", [False, True])
def test_a_java_without_settings_for_profiling_is_told_of_before_anything_starts(
    is_attached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jdk = Java(home=tmp_path / "java", version=17, source="--java-home")
    jvm = SimpleNamespace(jcmd=jdk.home / "bin" / "jcmd")
    monkeypatch.setattr(targets, "fetch", lambda *_: jdk)
    monkeypatch.setattr(attaching, "jvm_of", lambda *_: jvm)
    monkeypatch.setattr(campaign, "reader", lambda *_: jdk)
    monkeypatch.setattr(recording, "reader", lambda _: ())
    ordered = order.order(spec.load("running", ["attach=7"]) if is_attached else spec.load("quickstart"))
    campaign.fetch(ordered, RunOptions(), lambda *_: None)
    with pytest.raises(MissingCapability, match="--jfr profile: the settings of this Java cannot be read"):
        campaign.fetch(ordered, RunOptions(jfr="profile"), lambda *_: None)
    recording.profile(jdk.home).parent.mkdir(parents=True)
    recording.profile(jdk.home).write_text("<configuration/>")
    campaign.fetch(ordered, RunOptions(jfr="profile"), lambda *_: None)


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is to be carried out is interrupted as it begins."""

    def carry_out(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "preflight", lambda *_: ())
    monkeypatch.setattr(campaign, "fetch", lambda *_: None)
    monkeypatch.setattr(campaign, "carry_out", carry_out)
    monkeypatch.setattr(find_max, "carry_out", carry_out)


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("option", ["", " --jfr profile"])
def test_the_rest_of_an_interrupted_experiment_is_recorded_as_its_beginning(option: str, typed: Typed) -> None:
    code, said = typed(f"run quickstart{option}")
    assert code == 130
    (folder,) = Path("results/quickstart").iterdir()
    assert said.endswith(f"The rest: ingest-bench run --resume {folder}{option}")
    assert typed(f"run --resume {folder}{option}")[0] == 130
    code, said = typed(f"run --resume {folder}{'' if option else ' --jfr profile'}")
    assert code == 2
    assert f"give --jfr {'profile' if option else 'default'}" in said
    # compare and gate name what differs of this.
    assert layout.facts(folder)["jfr"] == ("profile" if option else "default")


@pytest.mark.usefixtures("interrupted")
def test_the_rest_of_an_interrupted_experiment_is_all_of_it_as_it_was_carried_out(typed: Typed) -> None:
    Path("one.toml").write_text('[target]\nname = "sink"\n')
    Path("two.toml").write_text('[target]\nname = "sink"\n')
    Path("both.toml").write_text('includes = ["one.toml", "two.toml"]\n')
    how = "--netem uml --java-home /some/jdk --allow-delete --last-frames"
    code, said = typed(f"run both.toml {how}")
    assert code == 130
    (one,), (two,) = Path("results/one").iterdir(), Path("results/two").iterdir()
    rest = "; ".join(f"ingest-bench run --resume {folder} {how}" for folder in (one, two))
    assert said.endswith(f"The rest: {rest}")


@pytest.mark.usefixtures("interrupted")
def test_the_rest_of_an_experiment_with_workers_is_the_command_that_goes_on(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Remote] = []

    def joined(remote: Remote, *_: object) -> contextlib.AbstractContextManager[SimpleNamespace]:
        asked.append(remote)
        return contextlib.nullcontext(SimpleNamespace(joined=remote.workers))

    monkeypatch.setattr(roster, "joined", joined)
    keys.write_new(Path("my keys"), 2)
    monkeypatch.setenv("INGEST_BENCH_KEYS", "my keys/run.key")
    how = "--workers 2 --bind 127.0.0.1:7001 --locust-web 127.0.0.1:8089"
    code, said = typed(f"run --url http://127.0.0.1:9 {how}")
    assert code == 130
    rest = said.partition("The rest: ")[2]
    assert "--keys 'my keys/run.key'" in rest
    monkeypatch.delenv("INGEST_BENCH_KEYS")
    # Typed as it was printed.
    monkeypatch.setattr("sys.argv", shlex.split(rest))
    assert run() == 130
    assert asked[0] == asked[1]
    assert asked[0].bind.port == 7001


def begun(typed: Typed, options: str = "") -> tuple[Path, Results]:
    """The folder of a quickstart that was interrupted at once, and what is in it."""
    assert typed(f"run quickstart {options}")[0] == 130
    (folder,) = Path("results/quickstart").iterdir()
    return folder, layout.open_results(folder)


@pytest.mark.usefixtures("interrupted")
def test_what_a_resumed_experiment_cannot_take_is_refused(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = begun(typed)
    before = sorted(Path().rglob("*"))
    for option, message in {
        "--out elsewhere": f"--resume {folder}: what is measured goes there, too; leave --out elsewhere out",
        "--out results": "leave --out results out",
        "--most-runs 20": f"--most-runs 20: only a search takes it, and {folder} is none",
        "--find-max=": "--resume takes its plan from the folder",
        "--aa 5": "--resume takes its plan from the folder",
        "--bind 127.0.0.1": "--bind is where --workers N join; how many?",
        "--keys keys/run.key": "--keys says which of --workers N may join; how many?",
    }.items():
        code, said = typed(f"run --resume {folder} {option}")
        assert (code, message in said) == (2, True), said
    monkeypatch.setenv("INGEST_BENCH_KEYS", "keys/run.key")
    # The environment names it for other commands, too.
    assert typed(f"run --resume {folder}")[0] == 130
    code, said = typed("run quickstart --most-runs 20")
    assert (code, "only a search takes it; add --find-max GOAL" in said) == (2, True), said
    assert sorted(Path().rglob("*")) == before


@pytest.fixture
def both_netems(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has the kernel's netem, and User-Mode Linux."""
    monkeypatch.setattr(box, "BOXES", {"kernel": lambda: "", "uml": lambda: ""})


def finished(results: Results, network: str, netem: str, replicates: int = 1) -> None:
    """The records of so many runs on that network at most."""
    for planned in [each for each in results.plan.runs if each.cell.levels["network"] == network][:replicates]:
        results.run(planned).create()
        results.run(planned).write(
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
def test_no_experiment_is_resumed_with_another_netem(typed: Typed, began: str, others: str) -> None:
    folder, results = begun(typed, f"--replicates 2 --set network=loopback,wan-50ms {began}")
    used = "uml" if began else "kernel"
    finished(results, "loopback", "plain")
    assert typed(f"run --resume {folder} {others}")[0] == 130
    finished(results, "wan-50ms", used)
    assert typed(f"run --resume {folder} --netem {used}")[0] == typed(f"run --resume {folder} {began}")[0] == 130
    code, said = typed(f"run --resume {folder} {others}")
    assert code == 2
    assert f"by netem {used}" in said
    assert said.endswith(f"give --netem {used}")


@pytest.mark.usefixtures("interrupted", "both_netems")
def test_netem_of_runs_that_are_done_keeps_none_from_being_resumed_that_needs_none(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, results = begun(typed, "--replicates 2 --set network=loopback,wan-50ms --netem uml")
    checked: list[list[str]] = []

    def preflight(plan: Plan, _options: object) -> tuple[str, ...]:
        checked.append(sorted({run.cell.levels["network"] for run in plan.runs}))
        return ()

    monkeypatch.setattr(campaign, "preflight", preflight)
    finished(results, "wan-50ms", "uml")
    assert typed(f"run --resume {folder}")[0] == 2, "a replicate of it is left"
    finished(results, "wan-50ms", "uml", replicates=99)
    # Nor is netem needed on this machine.
    monkeypatch.setattr(box, "BOXES", {"kernel": lambda: "none", "uml": lambda: "none"})
    assert typed(f"run --resume {folder}")[0] == 130
    finished(results, "loopback", "plain", replicates=99)
    assert typed(f"run --resume {folder}")[0] == 130
    assert checked == [["loopback"], []]


@pytest.mark.usefixtures("interrupted", "both_netems")
def test_runs_that_were_mixed_are_told_of_no_netem_that_would_be_refused(typed: Typed) -> None:
    folder, results = begun(typed, "--replicates 2 --set network=wan-50ms,satellite")
    finished(results, "wan-50ms", "uml")
    finished(results, "satellite", "kernel")
    code, said = typed(f"run --resume {folder}")
    assert (code, said.endswith("no --netem does both; begin anew, without --resume")) == (2, True), said


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("command", ["report", "recommend"])
def test_of_an_experiment_that_was_not_begun_there_is_nothing_to_say(command: str, typed: Typed) -> None:
    folder, _ = begun(typed)
    before = sorted(Path().rglob("*"))
    code, said = typed(f"{command} {folder}")
    assert code == 2
    assert said == f"error: {folder}: none of its runs was carried out yet; `run --resume {folder}` does them"
    assert sorted(Path().rglob("*")) == before


@pytest.mark.usefixtures("interrupted")
def test_a_search_is_resumed_with_more_runs(typed: Typed) -> None:
    folder, results = begun(typed, "--find-max p99<1s")
    assert results.plan.search is not None
    assert results.plan.search.most_runs == 16
    assert typed(f"run --resume {folder} --most-runs 30")[0] == 130
    assert results.plan.search == Search(goal="p99<1s, errors < 0.1%", most_runs=30)


def test_a_full_disk_is_one_message_with_the_remedy(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("ingest_bench.experiment.catalog.table", full)
    code, said = typed("plan quickstart")
    assert code == 3
    assert said == (
        "error: No space left on device. Make room where results go (--out) and in the temporary folder; "
        "`run --resume` goes on"
    )


def test_a_program_can_read_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"experiments", "network profiles", "workloads", "targets", "protocols", "probes"}
    assert found["experiments"]["quickstart"]
    assert set(found["probes"]) == set(PROBES)


def test_a_command_that_draws_and_compares_nothing_does_not_wait_for_what_draws_and_compares() -> None:
    code = "import sys, ingest_bench.cli.measure; print(*sys.modules)"
    argv = [sys.executable, "-c", code]
    loaded = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    assert "ingest_bench.lab.campaign" in loaded
    assert not {"matplotlib", "scipy", "locust", "gevent"} & set(loaded)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "quickstart",
            "server opensearch 2.19.6 heap 1GiB network loopback / ethernet workload nyc_taxis users 4 bulk ",
        ),
        ("quickstart", "bulk 1,000 documents warm-up 5s measured 12s probes reads, gc, stalls ┏"),
        (
            "quickstart --set target=sink,opensearch --set heap=1g,2g",
            "server sink java17 / opensearch 2.19.6 heap 1GiB / 2GiB",
        ),
        ("quickstart --set nodes=3 --set network=ethernet", "server opensearch 2.19.6, 3 nodes"),
        # Without users and a bulk of its own the workload's.
        ("quickstart --set workload=pmc --set users=3,3000", "workload pmc users 3 / 3,000 bulk"),
        ("quickstart --set users=1,2,3,4,5,6,7", "users 1 / 2 / 3 / 4 / 5 / 2 more bulk"),
        ("kafka --set bulk=1MiB", "bulk at most 1MiB"),
        ("quickstart --documents 9000", "warm-up 5s measured 9,000 documents"),
        ("--url http://127.0.0.1:1", "server http://127.0.0.1:1 network as it is workload nyc_taxis"),
        ("quickstart --set network=jumbo --set receive_predictor=32KiB --measure 9s", "1 run, about 29 s."),
        ("quickstart --replicates 3", "12 runs, about 6 min."),
        ("quickstart --measure 24h", "4 runs, about 96.0 h."),
    ],
)
def test_a_plan_says_what_its_runs_have_in_common_and_how_long_they_take(typed: Typed, line: str, said: str) -> None:
    code, told = typed(f"plan {line}")
    assert code == 0, told
    assert said in told


def test_net_show_names_a_file_that_it_cannot_read_and_shows_the_rest(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGEST_BENCH_STATE", str(tmp_path / "state"))
    bad = sessions.file_of("bad")
    bad.write_text('{"header": {"schema": 2}}\n')
    book.Ledger.create(sessions.file_of("good"), book.new_header("shaped eth7", 60)).close()
    code, said = typed("net show")
    assert code == RunFailed.exit_code
    assert "shaped eth7" in said
    assert f"{bad}: what a session has changed cannot be read" in said
    sessions.file_of("good").unlink()
    code, said = typed("net show")
    assert code == RunFailed.exit_code
    assert "nothing is applied" not in said
