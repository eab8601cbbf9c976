"""What `doctor` says of a machine that lacks something: whatever is hidden, every other line is there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from ingest_bench import system, targets
from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.jvm import java
from ingest_bench.model.capability import Capability
from ingest_bench.network.act import box, uml
from ingest_bench.network.link_capabilities import capabilities
from ingest_bench.probes.kernel import kernel_reads
from ingest_bench.targets.server_capabilities import capabilities as server_capabilities
from ingest_bench.trials import PACKAGES, Trial, tried

LINES = (
    "programs",
    "namespaces",
    "process namespaces",
    "veth pairs",
    "token bucket",
    "offloads",
    "links",
    "netem by kernel",
    "netem by uml",
    "queues by kernel",
    "queues by uml",
    "congestion control",
)
IN_NAMESPACES = LINES[2:-1]
# What cannot be tried without the program; all the rest is as ever.
NEEDED_BY = {
    "ip": ("veth pairs", "links"),
    "tc": ("token bucket", "links", "netem by kernel", "queues by kernel"),
    "sysctl": ("links",),
    "nsenter": ("namespaces", *IN_NAMESPACES),
    "unshare": ("namespaces", *IN_NAMESPACES),
    "setpriv": ("namespaces", *IN_NAMESPACES),
}


def raising(error: Exception) -> NoReturn:
    raise error


def by_name(found: tuple[Capability, ...]) -> dict[str, Capability]:
    return {each.name: each for each in found}


def forget() -> None:
    """What was found of this machine is found anew."""
    box.kernel_complaint.cache_clear()
    uml.complaint.cache_clear()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with links to all the programs of this machine, in place of where they are looked for."""
    for folder in reversed(system.PATH.split(":")):
        for program in Path(folder).iterdir():
            (tmp_path / program.name).unlink(missing_ok=True)
            (tmp_path / program.name).symlink_to(program)
    monkeypatch.setattr(system, "PATH", str(tmp_path))
    forget()
    yield tmp_path
    forget()


def test_what_works_is_told_with_what_was_seen() -> None:
    found = tried(Trial(name="this", attempt=lambda: "seen", remedy="not needed"))
    assert found == Capability(name="this", present=True, detail="seen")


@pytest.mark.parametrize(
    ("error", "detail", "remedy"),
    [
        (RunFailed("this: it broke"), "it broke", "Mend it."),
        (MissingCapability("none here\nTry another\nmachine."), "none here", "Try another\nmachine.\nMend it."),
        (
            PermissionError(13, "Permission denied", "/closed"),
            "not found out, the check itself failed: PermissionError: [Errno 13] Permission denied: '/closed'",
            "Mend it.",
        ),
        (KeyError("x"), "not found out, the check itself failed: KeyError: 'x'", "Mend it."),
    ],
)
def test_any_error_of_a_check_is_its_own_line_and_nobody_elses(error: Exception, detail: str, remedy: str) -> None:
    found = tried(Trial(name="this", attempt=lambda: raising(error), remedy="Mend it."))
    assert found == Capability(name="this", present=False, detail=detail, remedy=remedy)


def test_what_needs_a_missing_program_is_not_tried_and_says_for_want_of_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "PATH", str(tmp_path))
    found = tried(Trial(name="this", attempt=lambda: raising(AssertionError()), needs=("tc", "sysctl", "ip")))
    assert not found.present
    assert found.detail == "not tried, for want of tc, sysctl, ip"
    assert found.remedy == "Install iproute2 procps."


def test_a_cache_that_may_not_be_read_and_a_java_that_is_broken_hide_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    every = [each.name for each in server_capabilities(targets.TARGETS)]
    monkeypatch.setattr(java, "on_machine", lambda: raising(PermissionError("no")))
    found = list(server_capabilities(targets.TARGETS))
    assert [each.name for each in found] == every
    assert not any(each.present for each in found)


@pytest.mark.netns
def test_every_program_that_is_asked_for_has_its_test_here() -> None:
    assert set(NEEDED_BY) == set(PACKAGES)
    assert tuple(each.name for each in capabilities()) == LINES


@pytest.mark.netns
@pytest.mark.parametrize("program", NEEDED_BY)
def test_a_program_that_is_missing_hides_only_what_needs_it(programs: Path, program: str) -> None:
    whole = by_name(capabilities())
    forget()
    (programs / program).unlink()
    found = by_name(capabilities())
    assert tuple(found) == LINES
    assert found["programs"].detail == f"{program} not found"
    assert found["programs"].remedy == f"Install {PACKAGES[program]}."
    for name in LINES[1:]:
        if name in NEEDED_BY[program]:
            missing = program if name == "namespaces" or "namespaces" not in NEEDED_BY[program] else "namespaces"
            assert found[name].detail == f"not tried, for want of {missing}"
            assert not found[name].present
        else:
            assert found[name] == whole[name]


@pytest.mark.netns
def test_without_tc_a_link_that_needs_netem_says_so_and_blames_no_kernel(programs: Path) -> None:
    (programs / "tc").unlink()
    assert box.kernel_complaint() == "netem: tc not found. Install iproute2."


@pytest.mark.processes
def test_the_probe_of_kernel_reads_is_a_line_where_no_child_can_be_started(programs: Path) -> None:
    (programs / "setpriv").unlink()
    found = kernel_reads.capability()
    assert (found.name, found.present, found.detail) == ("kernel-reads", False, "not tried, for want of setpriv")


@pytest.mark.netns
@pytest.mark.processes
def test_doctor_lists_everything_on_a_machine_with_none_of_the_programs() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to hide programs from one process only")
    command = (sys.executable, "-c", "from ingest_bench.cli import main; main()", "doctor")
    whole = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout
    hide = 'for program in ip tc nsenter sysctl; do mount --bind /dev/null "$(command -v $program)"; done; exec "$@"'
    argv = ("unshare", "--mount", "--propagation", "private", "sh", "-ec", hide, "sh", *command)
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert names(done.stdout) == names(whole)
    assert set(LINES) < set(names(whole))
    assert "no   namespaces: not tried, for want of nsenter\n" in done.stdout
    assert "no   veth pairs: not tried, for want of namespaces\n" in done.stdout
    # What needs none of them is as ever.
    for line in whole.splitlines():
        if line.startswith("yes  ") and line[5:].partition(":")[0] not in LINES:
            assert line in done.stdout


def names(said: str) -> list[str]:
    return [line[5:].partition(":")[0] for line in said.splitlines() if line.startswith(("yes  ", "no   "))]
