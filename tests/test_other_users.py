"""Other users of the machine during a run: other experiments, and processes that use its CPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from readied import ready

from ingest_bench.host import cpu
from ingest_bench.host.cpu import CpuUsage

ANNOUNCER = """
import sys
from pathlib import Path
from ingest_bench.host import cpu
with cpu.announce_experiment(Path(sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_experiment_is_visible_to_others_while_it_runs() -> None:
    path = Path("/somewhere/with a space") / ("long" * 40) / "results/links"
    assert not any(other.endswith("results/links") for other in cpu.list_other_experiments())
    argv = (sys.executable, "-c", ANNOUNCER, str(path))
    with ready(argv) as process:
        with cpu.watch_other_users(starts_everything=False) as others:
            pass
        (name,) = [other for other in others.experiments if other.endswith("long/results/links")]
        (note,) = [note for note in others.notes if "another experiment ran at the same time" in note]
        assert name in note
        # A kill leaves nothing behind.
        process.kill()
    assert name not in cpu.list_other_experiments()
    with cpu.announce_experiment(path):
        assert name not in cpu.list_other_experiments()


@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for two containers on the host's network")
def test_two_containers_with_process_1_see_each_other() -> None:
    enter = ("unshare", "--pid", "--fork", "--kill-child", sys.executable)
    argv = (*enter, "-c", ANNOUNCER, "results/of two containers")
    with ready(argv), ready(argv):
        program = "from ingest_bench.host import cpu; print(cpu.list_other_experiments())"
        listed = subprocess.run((*enter, "-c", program), capture_output=True, text=True, check=True)
        assert "results/of two containers" in listed.stdout


def test_experiment_that_ran_only_at_the_begin_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "list_other_experiments", iter([("results/a",), ()]).__next__)
    with cpu.watch_other_users(starts_everything=False) as others:
        pass
    assert others.notes == ("this machine is shared: another experiment ran at the same time (results/a)",)


@pytest.mark.parametrize(
    ("all_s", "own_s", "text"),
    [
        (110.0, 108.5, ""),  # 0.15 of 2 CPUs
        (118.0, 110.0, "other processes took 0.8 of its 2 CPUs on average"),
        (100.0, 100.0, ""),
    ],
)
def test_cpu_of_others_is_the_total_without_our_own(all_s: float, own_s: float, text: str) -> None:
    before = CpuUsage(at_s=50.0, all_s=100.0, own_s=100.0)
    assert cpu.describe_other_cpu(before, CpuUsage(at_s=60.0, all_s=all_s, own_s=own_s), 2) == text
    assert cpu.describe_other_cpu(before, before, 2) == ""


def test_cpu_of_our_exited_children_is_our_own() -> None:
    before = CpuUsage.read()
    subprocess.run((sys.executable, "-c", "for _ in range(3_000_000): pass"), check=True)
    assert CpuUsage.read().own_s - before.own_s >= 2 / os.sysconf("SC_CLK_TCK")
