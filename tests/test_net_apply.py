from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from interface_lab import Lab, lab

from ingest_bench.network.act.box import kernel_complaint

pytestmark = pytest.mark.netns

NET = (sys.executable, "-c", "from ingest_bench.cli import main; main()", "net")
APPLY = ("apply", "ethernet-100m", "--interface", "eth0", "--to", "198.18.40.2:9200", "--shared-settings")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("state")) as made:
        yield made


def start(place: Lab, *words: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen((*place.client, *NET, *words), stdout=pipe, stderr=pipe, text=True, env=place.env)


def net(place: Lab, *words: str) -> tuple[int, str, str]:
    with start(place, *words) as process:
        out, errors = process.communicate(timeout=120)
    return process.returncode, out, errors


def started(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert "ethernet-100m on eth0 to 198.18.40.2:9200" in process.stdout.readline(), process.communicate()


def test_a_dry_run_prints_the_commands_and_the_way_back_and_changes_nothing(place: Lab) -> None:
    before = place.snapshot()
    status, out, errors = net(place, *APPLY, "--for", "60s", "--dry-run")
    assert status == 0, errors
    there, back = out.split("# and back:\n")
    device = f"if{place.index('eth0')}"
    assert f"ip link set dev {device} gso_max_segs 1\n" in there
    assert f"tc qdisc add dev {device} ingress_block " in there
    assert f"tc qdisc del dev {device} clsact\n" in back
    assert f"ip link set dev {device} gso_max_segs 65535\n" in back
    assert place.snapshot() == before
    # What it prints is what it does: run by hand, there and back again.
    place.run("sh", "-ec", there)
    assert place.snapshot() != before
    place.run("sh", "-ec", back)
    assert place.snapshot() == before


def test_apply_ends_by_itself_when_its_time_is_over(place: Lab) -> None:
    before = place.snapshot()
    status, out, errors = net(place, *APPLY, "--for", "1s")
    assert status == 0, errors
    assert "everything is put back" in out
    assert place.snapshot() == before


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_apply_is_shown_while_it_stands_and_leaves_nothing_when_interrupted_or_killed(
    place: Lab, number: signal.Signals
) -> None:
    before = place.snapshot()
    process = start(place, *APPLY, "--for", "10min")
    started(process)
    status, out, errors = net(place, "show")
    assert status == 0, errors
    assert "ethernet-100m on eth0 to 198.18.40.2:9200" in out
    assert "applied" in out
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == (-number if number == signal.SIGKILL else 130)
    place.wait_until_free()
    assert place.snapshot() == before
    assert net(place, "show")[1] == "nothing is applied\n"


@pytest.mark.nightly
def test_restore_ends_what_another_process_applied(place: Lab) -> None:
    before = place.snapshot()
    process = start(place, *APPLY, "--for", "10min")
    started(process)
    status, out, errors = net(place, "restore")
    assert status == 0, errors
    assert f"tc qdisc del dev if{place.index('eth0')} clsact" in out
    assert " put back" in out
    assert place.snapshot() == before
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "everything is put back" in out
    assert net(place, "restore")[1] == "nothing to put back\n"


def test_a_missing_time_limit_is_a_usage_error(place: Lab) -> None:
    status, _, errors = net(place, *APPLY)
    assert status == 2
    assert "'--for'" in errors


def test_a_kernel_without_netem_is_told_before_anything_is_changed(place: Lab) -> None:
    before = place.snapshot()
    status, out, errors = net(place, *APPLY[:1], "wan-50ms", *APPLY[2:], "--for", "1s")
    if kernel_complaint():
        assert status == 4
        assert "this kernel has no netem, so it cannot be applied on a real interface" in errors
    else:
        assert (status, errors) == (0, "")
        assert "everything is put back" in out
    assert place.snapshot() == before
    assert place.leftovers() == []
