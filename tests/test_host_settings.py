"""Settings of the machine: their keys, recommendations, changes for a run, and how they are restored."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from generated import SPECIAL, VALUES, examples
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from ingest_bench import system
from ingest_bench.cli.app import app
from ingest_bench.errors import InvalidRun, MissingCapability, RunFailed, SpecError
from ingest_bench.experiment import spec
from ingest_bench.host import settings
from ingest_bench.host.settings import RECOMMENDATIONS, SETTINGS, MachineFacts, Setting
from ingest_bench.inputs import records
from ingest_bench.lab import campaign
from ingest_bench.lab.runner import RunOptions
from ingest_bench.ledger import sessions, steps
from ingest_bench.model.experiment import HostSettings, Plan
from ingest_bench.results import layout

pytestmark = pytest.mark.machine

EXPERIMENT = '[target]\nname = "sink"\n[load]\nworkload = "nyc_taxis"\n'
SWAPPINESS = SETTINGS["swappiness"].path
DIRTY = SETTINGS["dirty_bytes"].path
RATIO = DIRTY.with_name("dirty_ratio")
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to change settings of the machine")


def changes_machine(test: Callable[[], None]) -> Callable[[], None]:
    for mark in (NEEDS_ROOT, pytest.mark.processes, pytest.mark.usefixtures("state")):
        test = mark(test)
    return test


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INGEST_BENCH_STATE", str(tmp_path / "state"))
    return tmp_path


def read(path: Path) -> str:
    return steps.parse_setting(path.read_text(encoding="ascii").strip())


@contextmanager
def check_restored(*paths: Path) -> Iterator[None]:
    """Check that these files have their values again after the block; otherwise restore them."""
    before = {path: read(path) for path in paths}
    try:
        yield
        assert {path: read(path) for path in paths} == before
    finally:
        for path, text in before.items():
            if text not in (read(path), "0"):
                path.write_text(text, encoding="ascii")


def choose_swappiness() -> int:
    """Return a value near the present one: other programs must not notice the change."""
    return int(read(SWAPPINESS)) + 1


def load_plan(folder: Path, text: str, *assignments: str) -> Plan:
    (folder / "x.toml").write_text(EXPERIMENT + text)
    return spec.build_plan(spec.load_experiment(str(folder / "x.toml"), assignments))


def load_settings(folder: Path, text: str, *assignments: str) -> list[HostSettings]:
    load_plan(folder, text, *assignments)
    experiment = spec.load_experiment(str(folder / "x.toml"), assignments)
    return [cell.host for cell in spec.build_cells(experiment)]


def test_every_key_has_a_file_of_the_kernel() -> None:
    assert set(records.fields_by_key(HostSettings)) == set(SETTINGS)
    assert all(str(setting.path).startswith(("/proc/sys/", "/sys/")) for setting in SETTINGS.values())


def test_settings_may_be_factors_and_are_part_of_the_plan(tmp_path: Path) -> None:
    text = '[host]\nswappiness = 1\n[factors]\n"host.transparent_hugepages" = ["always", "madvise", "never"]\n'
    cells = load_settings(tmp_path, text, "host.dirty_bytes=64MiB", "host.tcp_mem=1000 2000 3000")
    assert [host.transparent_hugepages for host in cells] == ["always", "madvise", "never"]
    assert {(host.swappiness, host.dirty_bytes_bytes, host.tcp_mem) for host in cells} == {
        (1, 64 << 20, (1000, 2000, 3000))
    }
    plan = load_plan(tmp_path, text)
    assert records.from_json(type(plan), records.to_json(plan)) == plan


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("host.swappiness=201", "is not between 0 and 200"),
        ("host.transparent_hugepages=sometimes", "'sometimes' is not one of always, madvise, never"),
        ("host.swappines=1", 'unknown key "host.swappines"; did you mean "swappiness"'),
        ("swappiness=1", 'did you mean "host.swappiness"'),
        ("host.dirty_bytes=100", "is not between 8KiB and"),
        ("host.tcp_mem=3000 2000 1000", "not in rising order"),
        ("host.tcp_mem=1 2 3;reboot", "'3;reboot' is not a whole number"),
        # The same cell twice.
        ("host.dirty_bytes=1MiB,1024KiB", "are the same"),
    ],
)
def test_wrong_setting_is_refused(tmp_path: Path, assignment: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load_settings(tmp_path, "", assignment)


def test_values_are_formatted_as_the_kernel_reads_them() -> None:
    host = HostSettings(
        transparent_hugepages="never",
        dirty_bytes_bytes=64 << 20,
        tcp_mem=(1, 2, 3),
        tcp_slow_start_after_idle=False,
        swappiness=0,
    )
    assert settings.format_settings(host) == {
        "transparent_hugepages": "never",
        "swappiness": "0",
        "dirty_bytes": "67108864",
        "tcp_mem": "1 2 3",
        "tcp_slow_start_after_idle": "0",
    }
    assert settings.format_settings(HostSettings()) == {}


VALID = ["always", "defer+madvise", "1", "200", "64MiB", "1000 2000 3000", "on"]


@pytest.mark.parametrize("key", SETTINGS)
@given(value=st.one_of(VALUES, st.builds("".join, st.lists(st.sampled_from([*VALID, *SPECIAL]), max_size=3))))
@examples(40)
def test_only_numbers_and_known_words_are_written(key: str, value: Any) -> None:
    with contextlib.suppress(SpecError):
        for text in settings.format_settings(records.from_toml(HostSettings, {key: value}, "x.toml")).values():
            assert re.fullmatch(r"[0-9]+( [0-9]+ [0-9]+)?|always|madvise|never|defer|defer\+madvise", text, re.ASCII)


def test_settings_require_root_to_run_but_not_to_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "is_root", lambda: False)
    plan = load_plan(tmp_path, "[host]\nswappiness = 1\n")
    campaign.check_plan(plan)
    with pytest.raises(MissingCapability, match=r"host\.swappiness = 1: only root can set it"):
        campaign.check_machine(plan, RunOptions())
    settings.require_settings(HostSettings())


def test_problem_says_why_a_setting_cannot_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = tmp_path / "enabled"
    choice.write_text("always [madvise] never\n", encoding="ascii")
    assert settings.find_problem(Setting(path=choice), "never") == ""
    assert "accepts only always, madvise, never" in settings.find_problem(Setting(path=choice), "defer")
    assert "there is no" in settings.find_problem(Setting(path=tmp_path / "none"), "1")
    monkeypatch.setattr(settings, "count_numa_nodes", lambda: 1)
    assert settings.find_problem(Setting(path=choice, min_numa_nodes=2)).startswith("it needs 2 NUMA nodes")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "read-only here" in settings.find_problem(Setting(path=choice), "never")


@pytest.mark.parametrize(
    ("before", "undone_file", "undone_value"), [("0", "dirty_ratio", "20"), ("8192", "dirty_bytes", "8192")]
)
def test_setting_that_was_0_is_undone_by_its_alternative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, undone_file: str, undone_value: str
) -> None:
    size, ratio = tmp_path / "dirty_bytes", tmp_path / "dirty_ratio"
    size.write_text(before, encoding="ascii")
    ratio.write_text("20\n", encoding="ascii")

    def make_step(path: Path, value: str) -> steps.Step:
        undo = steps.Undo(action=steps.Action(path=str(path), value=read(path)))
        return steps.Step(name=str(path), action=steps.Action(path=str(path), value=value), undo=(undo,))

    # The ledger accepts only files of the kernel.
    monkeypatch.setattr(settings, "make_setting_step", make_step)
    step = settings.make_step(Setting(path=size, alternative=ratio), "65536")
    assert str(step.action) == f"echo 65536 > {size}"
    assert [str(undo.action) for undo in step.undo] == [f"echo {undone_value} > {tmp_path / undone_file}"]


def test_namespace_settings_are_written_in_the_namespace_and_read_back() -> None:
    values: dict[str, str] = {}

    def run(argv: Sequence[str]) -> str:
        if argv[1] == "-n":
            return values[argv[2]].replace(" ", "\t") + "\n"
        name, _, value = argv[3].partition("=")
        values[name] = value
        return ""

    host = HostSettings(somaxconn=1024, tcp_slow_start_after_idle=False, swappiness=1)
    assert settings.apply_in_namespace(host, run) == {"somaxconn": "1024", "tcp_slow_start_after_idle": "0"}
    assert values == {"net.core.somaxconn": "1024", "net.ipv4.tcp_slow_start_after_idle": "0"}
    with pytest.raises(RunFailed, match=r"host\.somaxconn: 1024 was written, but the namespace has 5"):
        settings.apply_in_namespace(host, lambda argv: "5\n" if argv[1] == "-n" else "")


@changes_machine
def test_settings_are_changed_in_the_block_and_restored_after_it() -> None:
    value, defrag = choose_swappiness(), SETTINGS["transparent_hugepages_defrag"].path
    word = "defer" if read(defrag) != "defer" else "madvise"
    host = records.from_toml(HostSettings, {"swappiness": value, "transparent_hugepages_defrag": word}, "here")
    with check_restored(SWAPPINESS, defrag):
        with settings.apply_settings(host) as machine:
            assert read(SWAPPINESS) == str(value) == machine["swappiness"]
            assert read(defrag) == word == machine["transparent_hugepages_defrag"]
            watched = {session.description: session.is_watched for session in sessions.list_sessions()}
            assert watched[f"host.swappiness = {value}"]
        assert sessions.list_sessions() == []


@changes_machine
def test_setting_with_the_right_value_is_locked_but_not_written() -> None:
    with settings.apply_settings(HostSettings(swappiness=int(read(SWAPPINESS)))):
        (session,) = sessions.list_sessions()
        assert session.steps == ()


@changes_machine
def test_dirty_bytes_are_restored_to_the_former_ratio() -> None:
    assert read(DIRTY) == "0", "this test requires a machine that uses the ratio"
    with check_restored(DIRTY, RATIO), settings.apply_settings(HostSettings(dirty_bytes_bytes=4 << 30)):
        assert (read(DIRTY), read(RATIO)) == (str(4 << 30), "0")


@changes_machine
def test_setting_that_another_program_changes_invalidates_the_run() -> None:
    value = choose_swappiness()

    def change_meanwhile() -> None:
        with settings.apply_settings(HostSettings(swappiness=value)):
            SWAPPINESS.write_text(str(value + 1), encoding="ascii")

    with check_restored(SWAPPINESS), pytest.raises(InvalidRun, match=rf"another program set \S+ to {value + 1}"):
        change_meanwhile()


@pytest.mark.nightly
@NEEDS_ROOT
@pytest.mark.jvm
@pytest.mark.netns
@pytest.mark.usefixtures("state")
def test_run_records_its_settings_and_restores_the_machine(tmp_path: Path) -> None:
    value, old = choose_swappiness(), read(SETTINGS["somaxconn"].path)
    text = 'users = 1\nbulk_documents = 100\nwarm_up = "0s"\nmeasure = "1s"\n'
    plan = load_plan(tmp_path, text + f'[host]\nswappiness = {value}\n[factors]\n"host.somaxconn" = [7, 9]\n')
    with check_restored(SWAPPINESS, SETTINGS["somaxconn"].path):
        campaign.check_machine(plan, RunOptions())
        results = layout.create_results(tmp_path / "results", plan, {})
        summaries = campaign.run_missing(results, RunOptions(), Mock())
    assert [summary.state for summary in summaries] == ["measured"] * 2, [summary.reason for summary in summaries]
    hosts = [results.read_records()[f"somaxconn={number}/1"].host for number in (7, 9)]
    assert [(host["swappiness"], host["somaxconn"]) for host in hosts] == [(str(value), "7"), (str(value), "9")]
    assert old not in ("7", "9")


GOOD = MachineFacts(
    transparent_hugepages="madvise",
    swappiness=60,
    max_map_count=262_144,
    max_open_files=65_535,
    cpu_governors=("performance",),
)


def list_harmful(**facts: Any) -> list[tuple[str, str]]:
    fields = {name: getattr(GOOD, name) for name in MachineFacts.__slots__}
    machine = MachineFacts(**(fields | facts))
    return [(rule.name, rule.describe(machine)) for rule in RECOMMENDATIONS if rule.is_harmful(machine)]


@pytest.mark.parametrize(
    ("facts", "harmful"),
    [
        ({"transparent_hugepages": "always"}, ("transparent huge pages", "always")),
        ({"is_numad_running": True}, ("numad", "running")),
        ({"swap_bytes": 2 << 30}, ("vm.swappiness", "60, with 2GiB of swap")),
        ({"max_map_count": 262_143}, ("vm.max_map_count", "262143")),
        ({"max_open_files": 65_534}, ("open files", "65534")),
        ({"cpu_governors": ("performance", "powersave")}, ("CPU governor", "performance, powersave")),
        ({}, None),
        ({"transparent_hugepages": "never"}, None),
        ({"swappiness": 1, "swap_bytes": 2 << 30}, None),
        ({"max_open_files": None}, None),
        # A virtual machine, or a kernel without any of these settings.
        (
            dict.fromkeys(("transparent_hugepages", "swappiness", "max_map_count", "max_open_files"))
            | {"cpu_governors": ()},
            None,
        ),
    ],
)
def test_recommendation_is_violated_by_its_own_setting_only(
    facts: dict[str, Any], harmful: tuple[str, str] | None
) -> None:
    assert list_harmful(**facts) == ([] if harmful is None else [harmful])


def test_facts_of_this_machine_can_be_read() -> None:
    machine = settings.read_machine_facts()
    assert machine.max_map_count is not None
    assert machine.max_map_count > 0
    assert machine.transparent_hugepages in (None, "always", "madvise", "never")
    assert settings.count_numa_nodes() >= 1


@pytest.mark.netns
@pytest.mark.processes
def test_doctor_shows_recommendations_with_their_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = MachineFacts(max_map_count=65_530, is_numad_running=True)
    monkeypatch.setattr(settings, "read_machine_facts", lambda: machine)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    output = " ".join(result.output.split())
    assert "harmful vm.max_map_count: 65530 recommended: 262144 or more" in output
    assert '(Elasticsearch, "Maximum map count check"' in output
    assert "harmful numad: running recommended: not running: it moves" in output
    assert "fine CPU governor: not supported by this machine" in output
