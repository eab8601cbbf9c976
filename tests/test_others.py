"""Who else uses the machine: other experiments, and whoever takes its CPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingest_bench.host import others
from ingest_bench.host.others import Used

MARKED = """
import sys
from pathlib import Path
from ingest_bench.host import others
with others.marked(Path(sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_an_experiment_is_seen_by_others_while_it_runs_and_not_by_itself() -> None:
    path = Path("/somewhere/with a space") / ("long" * 40) / "results/links"
    assert not any(one.endswith("results/links") for one in others.experiments())
    argv = [sys.executable, "-c", MARKED, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with others.watched(all_ours=False) as seen:
            pass
        (found,) = [one for one in seen.experiments if one.endswith("long/results/links")]
        (said,) = [note for note in seen.notes if "another experiment ran at the same time" in note]
        assert found in said
        # Whatever ends it: nothing is left.
        process.kill()
    assert found not in others.experiments()
    with others.marked(path):
        assert found not in others.experiments()


@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for two containers on the host's network")
def test_two_containers_on_one_network_see_each_other_though_both_are_process_1() -> None:
    argv = ("unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", MARKED, "results/of two containers")
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe) as one, subprocess.Popen(argv, stdin=pipe, stdout=pipe) as two:
        for process in (one, two):
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        seen = subprocess.run(
            (*argv[:5], "-c", "from ingest_bench.host import others; print(others.experiments())"),
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "results/of two containers" in seen.stdout
        for process in (one, two):
            process.communicate()


def test_what_ran_only_at_the_beginning_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "experiments", iter([("results/a",), ()]).__next__)
    with others.watched(all_ours=False) as seen:
        assert seen.notes[0].endswith("(results/a)")
    assert seen.notes == ("this machine is shared: another experiment ran at the same time (results/a)",)


@pytest.mark.parametrize(
    ("all_s", "ours_s", "said"),
    [
        (110.0, 108.5, ""),  # 0.15 of 2 CPUs
        (118.0, 110.0, "other processes took 0.8 of its 2 CPUs on average"),
        (100.0, 100.0, ""),
    ],
)
def test_the_cpu_time_of_others_is_what_is_not_ours(all_s: float, ours_s: float, said: str) -> None:
    before = Used(at_s=50.0, all_s=100.0, ours_s=100.0)
    assert others.cpu(before, Used(at_s=60.0, all_s=all_s, ours_s=ours_s), 2) == said
    assert others.cpu(before, before, 2) == ""


def test_what_our_children_used_is_ours_once_they_have_ended() -> None:
    before = Used.now()
    subprocess.run([sys.executable, "-c", "for _ in range(3_000_000): pass"], check=True)
    after = Used.now()
    ticks_s = 2 / os.sysconf("SC_CLK_TCK")
    assert after.ours_s - before.ours_s >= ticks_s
