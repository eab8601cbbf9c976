"""Programs and modules planted in the working directory and environment are never run."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import commands
import pytest
from interface_lab import Lab, lab
from planted import Planted, planted
from running import free_port, running

from ingest_bench import system
from ingest_bench.model.target import TargetOptions
from ingest_bench.probes import kernel_reads

pytestmark = [pytest.mark.jvm, pytest.mark.netns, pytest.mark.processes]

EXPERIMENT = """
[network]
profile = "ethernet"
[target]
name = "sink"
heap = "128m"
[load]
workload = "nyc_taxis"
users = 2
bulk_documents = 200
warm_up = "500ms"
measure = "1500ms"
"""
RESET = """
[[fault]]
kind = "reset"
at = "500ms"
"""
GATE = '[[threshold]]\ncolumn = "docs_per_s_mean"\nat_least = 1\n'


@pytest.fixture(scope="module")
def here() -> Iterator[Planted]:
    commands.fill_cache()
    with commands.place(), planted(None) as planted_here:
        watching = ["reads", "gc", "allocations", "host"]
        if kernel_reads.check_capability().present:
            watching.append("kernel-reads")
        (planted_here.folder / "watched.toml").write_text(f"probes = {watching}\n{EXPERIMENT}{RESET}")
        (planted_here.folder / "gate.toml").write_text(GATE)
        yield planted_here


@pytest.mark.nightly
@pytest.mark.parametrize("words", [("doctor",), ("list",), ("plan", "quickstart"), ("net", "check", "ethernet")])
def test_commands_that_inspect_the_machine_run_no_planted_program(here: Planted, words: tuple[str, ...]) -> None:
    code, *output = here.run(*words)
    assert (code, here.executed) == (0, []), output


@pytest.mark.nightly
def test_run_with_every_probe_and_its_reports_run_no_planted_program(here: Planted) -> None:
    code, *output = here.run("run", "watched.toml", "--out", "out")
    assert (code, here.executed) == (0, []), output
    (results,) = here.folder.glob("out/*/20*")
    (summary,) = json.loads((results / "summary.json").read_text())
    assert summary["state"] == "measured", summary["reason"]
    for words in (("report",), ("recommend",), ("gate", "--thresholds", "gate.toml")):
        code, *output = here.run(*words, str(results.relative_to(here.folder)))
        assert (code, here.executed) == (0, []), output


@pytest.mark.nightly
def test_worker_and_attached_jvm_run_no_planted_program(here: Planted) -> None:
    bind = f"127.0.0.1:{free_port()}"
    # Not below pytest's folder: a server that has to walk through a closed one lets no ordinary user attach.
    served = here.folder / "served"
    served.mkdir()
    code, *output = here.run("worker", "--new-keys", "keys", "--count", "1")
    assert (code, here.executed) == (0, []), output
    with running(served, TargetOptions(name="sink", heap_bytes=128 << 20)) as (http, server):
        joining = ("--workers", "1", "--bind", bind, "--keys", "keys/run.key")
        arguments = ("--url", http.origin, "--attach", str(server.jvm_pid), *joining)
        with here.start("worker", "--connect", bind, "--keys", "keys/worker-1.key") as worker:
            code, *output = here.run("run", *arguments, "--warm-up", "500ms", "--measure", "1s", "--out", "attached")
            assert (code, here.executed) == (0, []), output
            output = list(worker.communicate(timeout=commands.LIMIT_S))
            assert (worker.returncode, here.executed) == (0, []), output


def test_command_of_net_exec_runs_in_the_folder_and_environment_of_the_user(here: Planted) -> None:
    ask = "pwd; echo $PATH; echo $JAVA_TOOL_OPTIONS; echo =$0"
    code, stdout, errors = here.run("net", "exec", "ethernet", "--", "/bin/sh", "-c", ask, "a b")
    assert (code, here.executed) == (0, []), errors
    assert stdout.splitlines() == [str(here.folder), ".:/usr/bin:/bin", "-javaagent:agent.jar", "=a b"]
    # Not ours, so it runs: the folder is first in the user's PATH. Inside an ordinary user is root.
    code, *output = here.run("net", "exec", "ethernet", "--server", "/bin/sleep 60", "--", "uname")
    assert (code, here.executed) == (1, ["uname, uid 0"]), output
    (here.folder / "marks" / "uname, uid 0").unlink()


@pytest.mark.nightly
@pytest.mark.skipif(not system.is_root(), reason="this needs root")
@pytest.mark.parametrize("end", ["its time is over", "restore", "SIGKILL"])
def test_interface_is_restored_without_a_planted_program(tmp_path: Path, end: str) -> None:
    with lab(tmp_path / "unused") as place, planted(None) as here:
        before = place.snapshot()
        limit = "1s" if end == "its time is over" else "10min"
        words = ("--interface", "eth0", "--to", "198.18.40.2:9200", "--shared-settings", "--for", limit)
        with here.start("net", "apply", "ethernet-100m", *words, enter=place.client) as shaping:
            assert shaping.stdout is not None
            assert "ethernet-100m on eth0" in shaping.stdout.readline(), shaping.communicate()
            if end == "restore":
                assert place.snapshot() != before
                code, *output = here.run("net", "restore", enter=place.client)
                assert (code, here.executed) == (0, []), output
            elif end == "SIGKILL":
                shaping.kill()
            shaping.communicate(timeout=commands.LIMIT_S)
        Lab(place.client, place.server, here.folder / "state").wait_until_free()
        assert (shaping.returncode, here.executed) == (-signal.SIGKILL if end == "SIGKILL" else 0, [])
        assert place.snapshot() == before
