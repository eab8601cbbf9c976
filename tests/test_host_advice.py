"""What of a machine is known to hurt servers: a rule each, judged from what was read."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from ingest_bench.cli.app import app
from ingest_bench.host import machine
from ingest_bench.host.advice import RULES, advice
from ingest_bench.host.machine import MachineFacts

GOOD = MachineFacts(
    transparent_hugepages="madvise",
    swappiness=60,
    max_map_count=262_144,
    open_files=65_535,
    cpu_governors=("performance",),
)


def hurting(**found: Any) -> list[tuple[str, str]]:
    fields = {name: getattr(GOOD, name) for name in MachineFacts.__slots__}
    return [(one.name, one.found) for one in advice(MachineFacts(**(fields | found))) if one.hurts]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"transparent_hugepages": "always"}, ("transparent huge pages", "always")),
        ({"numad_runs": True}, ("numad", "runs")),
        ({"swap_bytes": 2 << 30}, ("vm.swappiness", "60, with 2GiB of swap")),
        ({"max_map_count": 262_143}, ("vm.max_map_count", "262143")),
        ({"open_files": 65_534}, ("open files", "65534")),
        ({"cpu_governors": ("performance", "powersave")}, ("CPU governor", "performance, powersave")),
    ],
)
def test_each_rule_is_broken_by_one_thing_and_by_no_other(found: dict[str, Any], told: tuple[str, str]) -> None:
    assert hurting(**found) == [told]


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"transparent_hugepages": "never"},
        {"swappiness": 1, "swap_bytes": 2 << 30},
        {"open_files": None},
        # A virtual machine, or a kernel without any of this.
        dict.fromkeys(("transparent_hugepages", "swappiness", "max_map_count", "open_files")) | {"cpu_governors": ()},
    ],
)
def test_what_is_as_recommended_or_not_there_hurts_nobody(found: dict[str, Any]) -> None:
    assert hurting(**found) == []
    assert len(advice(MachineFacts())) == len(RULES)


def test_this_machine_can_be_read() -> None:
    found = machine.facts()
    assert found.max_map_count is not None
    assert found.max_map_count > 0
    assert found.transparent_hugepages in (None, "always", "madvise", "never")
    assert machine.numa_nodes() >= 1


@pytest.mark.netns
@pytest.mark.processes
def test_doctor_says_what_hurts_with_what_is_recommended_and_by_whom_and_ends_with_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "facts", lambda: MachineFacts(max_map_count=65_530, numad_runs=True))
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "hurts vm.max_map_count: 65530 recommended: 262144 or more" in said
    assert '(Elasticsearch, "Maximum map count check"' in said
    assert "hurts numad: runs recommended: none: it moves" in said
    assert "fine CPU governor: this machine has none" in said
