"""The command in a folder of somebody else, with an environment that looks there for everything: nothing there runs."""

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
from ingest_bench.probes.kernel import kernel_reads

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


@pytest.fixture(scope="module", params=commands.USERS, ids=lambda user: f"user {user}" if user else "as we are")
def here(request: pytest.FixtureRequest) -> Iterator[Planted]:
    commands.fill_cache()
    with commands.place(request.param), planted(request.param) as made:
        watching = ["reads", "gc", "allocations", "host"]
        if made.user is None and kernel_reads.capability().present:
            watching.append("kernel-reads")
        (made.folder / "watched.toml").write_text(f"probes = {watching}\n{EXPERIMENT}")
        (made.folder / "reset.toml").write_text(EXPERIMENT + RESET)
        (made.folder / "gate.toml").write_text(GATE)
        yield made


@pytest.mark.nightly
@pytest.mark.parametrize("words", [("doctor",), ("list",), ("plan", "quickstart"), ("net", "check", "ethernet")])
def test_what_looks_at_the_machine_starts_nothing_of_the_folder(here: Planted, words: tuple[str, ...]) -> None:
    code, *said = here.does(*words)
    assert (code, here.ran) == (0, []), said


@pytest.mark.nightly
def test_a_run_with_every_probe_and_what_is_made_of_it_start_nothing_of_the_folder(here: Planted) -> None:
    code, *said = here.does("run", "watched.toml", "--out", "out")
    assert (code, here.ran) == (0, []), said
    (results,) = here.folder.glob("out/*/*")
    (summary,) = json.loads((results / "summary.json").read_text())
    assert summary["state"] == "measured", summary["reason"]
    for words in (("report",), ("recommend",), ("gate", "--thresholds", "gate.toml")):
        code, *said = here.does(*words, str(results.relative_to(here.folder)))
        assert (code, here.ran) == (0, []), said


@pytest.mark.nightly
def test_a_run_with_forged_packets_starts_nothing_of_the_folder(here: Planted) -> None:
    code, *said = here.does("run", "reset.toml", "--out", "reset")
    assert (code, here.ran) == (0, []), said


@pytest.mark.nightly
def test_a_calibration_starts_nothing_of_the_folder(here: Planted) -> None:
    code, *said = here.does("calibrate", "--set", "bulk=64KiB", "--set", "processes=2", "--out", "calibrated")
    assert (code, here.ran) == (0, []), said


@pytest.mark.nightly
def test_a_worker_and_an_attached_jvm_start_nothing_of_the_folder(here: Planted) -> None:
    bind = f"127.0.0.1:{free_port()}"
    # Not below pytest's folder: a server that has to walk through a closed one lets no ordinary user attach.
    served = here.folder / "served"
    served.mkdir()
    code, *said = here.does("worker", "--new-keys", "keys", "--count", "1")
    assert (code, here.ran) == (0, []), said
    with running(served, TargetOptions(name="sink", heap_bytes=128 << 20)) as (http, server):
        joining = ("--workers", "1", "--bind", bind, "--keys", "keys/run.key")
        asked = ("--url", http.origin, "--attach", str(server.jvm_pid), *joining)
        with here.started("worker", "--connect", bind, "--keys", "keys/worker-1.key") as worker:
            code, *said = here.does("run", *asked, "--warm-up", "500ms", "--measure", "1s", "--out", "attached")
            assert (code, here.ran) == (0, []), said
            said = list(worker.communicate(timeout=commands.LIMIT_S))
            assert (worker.returncode, here.ran) == (0, []), said


def test_a_users_command_runs_as_typed_in_the_users_own_folder_and_environment(here: Planted) -> None:
    ask = "pwd; echo $PATH; echo $JAVA_TOOL_OPTIONS; echo =$0"
    code, out, errors = here.does("net", "exec", "ethernet", "--", "/bin/sh", "-c", ask, "a b")
    assert (code, here.ran) == (0, []), errors
    assert out.splitlines() == [str(here.folder), ".:/usr/bin:/bin", "-javaagent:agent.jar", "=a b"]
    # Not ours, so it runs: the folder is first in the user's PATH. Inside an ordinary user is root.
    code, *said = here.does("net", "exec", "ethernet", "--server", "/bin/sleep 60", "--", "uname")
    assert (code, here.ran) == (1, ["uname, uid 0"]), said
    (here.folder / "marks" / "uname, uid 0").unlink()


@pytest.mark.nightly
@pytest.mark.skipif(not system.is_root(), reason="this needs root")
@pytest.mark.parametrize("end", ["its time is over", "restore", "SIGKILL"])
def test_a_shaped_interface_is_put_back_by_nothing_of_the_folder(tmp_path: Path, end: str) -> None:
    with lab(tmp_path / "unused") as place, planted(None) as here:
        before = place.snapshot()
        limit = "1s" if end == "its time is over" else "10min"
        words = (
            "apply",
            "ethernet-100m",
            "--interface",
            "eth0",
            "--to",
            "198.18.40.2:9200",
            "--for",
            limit,
            "--shared-settings",
        )
        with here.started("net", *words, enter=place.client) as shaping:
            assert shaping.stdout is not None
            assert "ethernet-100m on eth0" in shaping.stdout.readline(), shaping.communicate()
            if end == "restore":
                assert place.snapshot() != before
                code, *said = here.does("net", "restore", enter=place.client)
                assert (code, here.ran) == (0, []), said
            elif end == "SIGKILL":
                shaping.kill()
            shaping.communicate(timeout=commands.LIMIT_S)
        Lab(place.client, place.server, here.folder / "state").wait_until_free()
        assert (shaping.returncode, here.ran) == (-signal.SIGKILL if end == "SIGKILL" else 0, [])
        assert place.snapshot() == before
