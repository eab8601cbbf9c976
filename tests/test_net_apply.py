from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from interface_lab import Lab, lab

from ingest_bench.network.act.link import find_kernel_netem_problem

pytestmark = pytest.mark.netns

NET = (sys.executable, "-c", "from ingest_bench.cli import main; main()", "net")
APPLY = ("apply", "ethernet-100m", "--interface", "eth0", "--to", "198.18.40.2:9200", "--shared-settings")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("state")) as opened:
        yield opened


def start(machine: Lab, *words: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen((*machine.client, *NET, *words), stdout=pipe, stderr=pipe, text=True, env=machine.env)


def run_net(machine: Lab, *words: str) -> tuple[int, str, str]:
    with start(machine, *words) as process:
        output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


def wait_until_applied(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert "ethernet-100m on eth0 to 198.18.40.2:9200" in process.stdout.readline(), process.communicate()


def test_dry_run_prints_commands_and_undo_that_work_by_hand(machine: Lab) -> None:
    before = machine.snapshot()
    status, output, errors = run_net(machine, *APPLY, "--for", "60s", "--dry-run")
    assert status == 0, errors
    commands, undo = output.split("# undo:\n")
    device = f"if{machine.index('eth0')}"
    assert f"ip link set dev {device} gso_max_segs 1\n" in commands
    assert f"tc qdisc add dev {device} ingress_block " in commands
    assert f"tc qdisc del dev {device} clsact\n" in undo
    assert f"ip link set dev {device} gso_max_segs 65535\n" in undo
    assert machine.snapshot() == before
    machine.run("sh", "-ec", commands)
    assert machine.snapshot() != before
    machine.run("sh", "-ec", undo)
    assert machine.snapshot() == before


def test_apply_ends_at_its_time_limit(machine: Lab) -> None:
    before = machine.snapshot()
    status, output, errors = run_net(machine, *APPLY, "--for", "5s")
    assert status == 0, errors
    assert "all changes are undone" in output
    assert machine.snapshot() == before


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_apply_is_shown_and_undone_when_interrupted_or_killed(machine: Lab, number: signal.Signals) -> None:
    before = machine.snapshot()
    process = start(machine, *APPLY, "--for", "10min")
    wait_until_applied(process)
    status, output, errors = run_net(machine, "show")
    assert status == 0, errors
    assert "ethernet-100m on eth0 to 198.18.40.2:9200" in output
    assert "applied" in output
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == (-number if number == signal.SIGKILL else 130)
    machine.assert_restored(before)
    assert run_net(machine, "show")[1] == "no changes are applied\n"


@pytest.mark.nightly
def test_restore_undoes_the_changes_of_another_process(machine: Lab) -> None:
    before = machine.snapshot()
    process = start(machine, *APPLY, "--for", "10min")
    wait_until_applied(process)
    status, output, errors = run_net(machine, "restore")
    assert status == 0, errors
    assert f"tc qdisc del dev if{machine.index('eth0')} clsact" in output
    assert " undone" in output
    assert machine.snapshot() == before
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "all changes are undone" in output
    assert run_net(machine, "restore")[1] == "nothing to undo\n"


def test_kernel_without_netem_is_reported_before_any_change(machine: Lab) -> None:
    before = machine.snapshot()
    status, output, errors = run_net(machine, *APPLY[:1], "wan-50ms", *APPLY[2:], "--for", "5s")
    if find_kernel_netem_problem():
        assert status == 4
        assert "cannot be applied to a real interface: this kernel has no netem" in errors
    else:
        assert (status, errors) == (0, "")
        assert "all changes are undone" in output
    assert machine.snapshot() == before
    assert machine.leftovers() == []
