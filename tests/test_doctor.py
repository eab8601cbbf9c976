"""`doctor` on a machine without some programs: all other lines are still shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from ingest_bench import system, targets
from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.host.capability_checks import PACKAGES, run_check
from ingest_bench.jvm import java
from ingest_bench.model.experiment import Capability
from ingest_bench.network.act import link as link_module
from ingest_bench.network.act import uml
from ingest_bench.network.link_capabilities import capabilities
from ingest_bench.probes import kernel_reads
from ingest_bench.targets.base import check_targets

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
# The lines that need a program.
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


def by_name(capabilities: tuple[Capability, ...]) -> dict[str, Capability]:
    return {capability.name: capability for capability in capabilities}


def forget() -> None:
    """Forget cached results."""
    link_module.find_kernel_netem_problem.cache_clear()
    uml.find_uml_problem.cache_clear()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder with links to all programs of this machine, which replaces PATH."""
    for folder in reversed(system.PATH.split(":")):
        for program in Path(folder).iterdir():
            (tmp_path / program.name).unlink(missing_ok=True)
            (tmp_path / program.name).symlink_to(program)
    monkeypatch.setattr(system, "PATH", str(tmp_path))
    forget()
    yield tmp_path
    forget()


@pytest.fixture(scope="module")
def complete() -> dict[str, Capability]:
    """Return the results with all programs of this machine."""
    forget()
    return by_name(capabilities())


def test_a_successful_check_has_its_detail() -> None:
    result = run_check("this", lambda: "seen", remedy="not needed")
    assert result == Capability(name="this", present=True, detail="seen")


@pytest.mark.parametrize(
    ("error", "detail", "remedy"),
    [
        (RunFailed("this: it broke"), "it broke", "Mend it."),
        (MissingCapability("none here\nTry another\nmachine."), "none here", "Try another\nmachine.\nMend it."),
        (
            PermissionError(13, "Permission denied", "/closed"),
            "unknown: the check failed: PermissionError: [Errno 13] Permission denied: '/closed'",
            "Mend it.",
        ),
        (KeyError("x"), "unknown: the check failed: KeyError: 'x'", "Mend it."),
    ],
)
def test_any_error_of_a_check_is_its_detail(error: Exception, detail: str, remedy: str) -> None:
    result = run_check("this", lambda: raising(error), remedy="Mend it.")
    assert result == Capability(name="this", present=False, detail=detail, remedy=remedy)


def test_a_check_without_its_programs_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "PATH", str(tmp_path))
    result = run_check("this", lambda: raising(AssertionError()), ("tc", "sysctl", "ip"))
    assert not result.present
    assert result.detail == "skipped: requires tc, sysctl, ip"
    assert result.remedy == "Install iproute2 procps."


def test_a_broken_java_hides_no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [check.name for check in check_targets(targets.TARGETS)]
    monkeypatch.setattr(java, "find_installed", lambda: raising(PermissionError("no")))
    results = list(check_targets(targets.TARGETS))
    assert [check.name for check in results] == names
    assert not any(check.present for check in results)


@pytest.mark.netns
def test_all_programs_and_lines_are_tested_here(complete: dict[str, Capability]) -> None:
    assert set(NEEDED_BY) == set(PACKAGES)
    assert tuple(complete) == LINES
    assert complete["namespaces"].present
    assert complete["veth pairs"].present
    for result in complete.values():
        assert result.detail
        assert result.present or result.remedy or "Install" in result.detail


@pytest.mark.netns
@pytest.mark.parametrize("program", NEEDED_BY)
def test_a_missing_program_hides_only_lines_that_need_it(
    complete: dict[str, Capability], programs: Path, program: str
) -> None:
    (programs / program).unlink()
    results = by_name(capabilities())
    assert tuple(results) == LINES
    assert results["programs"].detail == f"{program} not found"
    assert results["programs"].remedy == f"Install {PACKAGES[program]}."
    for name in LINES[1:]:
        if name in NEEDED_BY[program]:
            missing = program if name == "namespaces" or "namespaces" not in NEEDED_BY[program] else "namespaces"
            assert results[name].detail == f"skipped: requires {missing}"
            assert not results[name].present
        else:
            assert results[name] == complete[name]
    if program == "tc":
        assert link_module.find_kernel_netem_problem() == "netem: tc not found. Install iproute2."


@pytest.mark.processes
def test_kernel_reads_are_a_line_without_setpriv(programs: Path) -> None:
    (programs / "setpriv").unlink()
    result = kernel_reads.check_capability()
    assert (result.name, result.present, result.detail) == ("kernel-reads", False, "skipped: requires setpriv")
