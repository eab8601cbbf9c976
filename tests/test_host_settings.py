"""Settings of the machine: what is asked for, what cannot be had, what is changed and how it is put back."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from generated import SPECIAL, VALUES, examples
from hypothesis import given
from hypothesis import strategies as st

from ingest_bench import system
from ingest_bench.errors import InvalidRun, MissingCapability, RunFailed, SpecError
from ingest_bench.experiment import key_paths, order, spec
from ingest_bench.host import machine, settings
from ingest_bench.host.settings import SETTINGS, Setting
from ingest_bench.inputs import records
from ingest_bench.lab import campaign
from ingest_bench.lab.runner import RunOptions
from ingest_bench.ledger import sessions, steps
from ingest_bench.load.supervisor import Progress
from ingest_bench.model.host_settings import HostSettings
from ingest_bench.results import layout

pytestmark = pytest.mark.machine

EXPERIMENT = '[target]\nname = "sink"\n[load]\nworkload = "nyc_taxis"\n'
SWAPPINESS = SETTINGS["swappiness"].path
DIRTY = SETTINGS["dirty_bytes"].path
RATIO = DIRTY.with_name("dirty_ratio")
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to change settings of the machine")


class Silent:
    """Nobody watches."""

    def begin(self, number: int, name: str, left: int) -> None: ...

    def stage(self, name: str) -> None: ...

    def load(self, seen: Progress) -> None: ...

    def end(self, said: str) -> None: ...


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INGEST_BENCH_STATE", str(tmp_path / "state"))
    return tmp_path


@contextmanager
def unchanged(*paths: Path) -> Iterator[None]:
    """What these files said before the block they say after it; and if not, they are set to it."""
    before = {path: steps.chosen(path.read_text(encoding="ascii").strip()) for path in paths}
    try:
        yield
        assert {path: steps.chosen(path.read_text(encoding="ascii").strip()) for path in paths} == before
    finally:
        for path, text in before.items():
            if steps.chosen(path.read_text(encoding="ascii").strip()) != text and text != "0":
                path.write_text(text, encoding="ascii")


def says(path: Path) -> str:
    return steps.chosen(path.read_text(encoding="ascii").strip())


def another(path: Path) -> int:
    """A value near to that of this machine: whoever else works on it must not notice."""
    return int(says(path)) + 1


def cells(folder: Path, text: str, *sets: str) -> list[HostSettings]:
    (folder / "x.toml").write_text(EXPERIMENT + text)
    return [cell.host for cell in spec.cells(spec.load(str(folder / "x.toml"), sets))]


def test_every_key_has_its_file_and_every_file_its_key() -> None:
    assert set(records.keys(HostSettings)) == set(SETTINGS)
    assert all(str(setting.path).startswith(("/proc/sys/", "/sys/")) for setting in SETTINGS.values())


def test_settings_are_factors_and_levels_and_part_of_the_plan(tmp_path: Path) -> None:
    text = '[host]\nswappiness = 1\n[factors]\n"host.transparent_hugepages" = ["always", "madvise", "never"]\n'
    found = cells(tmp_path, text, "host.dirty_bytes=64MiB", "host.tcp_mem=1000 2000 3000")
    assert [one.transparent_hugepages for one in found] == ["always", "madvise", "never"]
    assert {(one.swappiness, one.dirty_bytes_bytes, one.tcp_mem) for one in found} == {
        (1, 64 << 20, (1000, 2000, 3000)),
    }
    ordered = order.order(spec.load(str(tmp_path / "x.toml")))
    again = records.from_json(type(ordered), records.to_json(ordered))
    assert again == ordered


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("host.swappiness=201", "is not between 0 and 200"),
        ("host.transparent_hugepages=sometimes", "'sometimes' is not one of always, madvise, never"),
        ("host.swappines=1", 'unknown key "host.swappines"; did you mean "swappiness"'),
        ("swappiness=1", 'did you mean "host.swappiness"'),
        ("host.dirty_bytes=100", "is not between 8KiB and"),
        ("host.tcp_mem=3000 2000 1000", "out of order"),
        ("host.tcp_mem=1000 2000", "has 2 values, not 3"),
        ("host.tcp_mem=1 2 3;reboot", "'3;reboot' is not a whole number"),
        ("host.somaxconn=1\n2", "is not a whole number"),
    ],
)
def test_a_setting_that_is_none_is_refused_in_one_sentence(tmp_path: Path, given: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        cells(tmp_path, "", given)


def test_two_cells_that_differ_in_a_setting_alone_are_two_and_the_same_one_twice_is_refused(tmp_path: Path) -> None:
    assert len(cells(tmp_path, "", "host.swappiness=1,2")) == 2
    with pytest.raises(SpecError, match="are the same"):
        cells(tmp_path, "", "host.dirty_bytes=1MiB,1024KiB")


@pytest.mark.parametrize("target", ['url = "http://127.0.0.1:9200"', "attach = 4711"])
def test_the_machine_of_a_server_that_runs_already_is_as_it_is(tmp_path: Path, target: str) -> None:
    (tmp_path / "x.toml").write_text(f"[target]\n{target}\n[host]\nswappiness = 1\n")
    with pytest.raises(SpecError, match=r"host\.swappiness: the machine of target\.(url|attach) is as it is"):
        spec.load(str(tmp_path / "x.toml"))


def test_values_are_written_as_the_kernel_reads_them() -> None:
    asked = HostSettings(
        transparent_hugepages="never",
        dirty_bytes_bytes=64 << 20,
        tcp_mem=(1, 2, 3),
        tcp_slow_start_after_idle=False,
        swappiness=0,
    )
    assert settings.wanted(asked) == {
        "transparent_hugepages": "never",
        "swappiness": "0",
        "dirty_bytes": "67108864",
        "tcp_mem": "1 2 3",
        "tcp_slow_start_after_idle": "0",
    }
    assert settings.wanted(HostSettings()) == {}


RIGHT = ["always", "defer+madvise", "1", "200", "64MiB", "1000 2000 3000", "on"]


@pytest.mark.parametrize("key", SETTINGS)
@given(value=st.one_of(VALUES, st.builds("".join, st.lists(st.sampled_from([*RIGHT, *SPECIAL]), max_size=3))))
@examples(60)
def test_only_numbers_and_known_words_are_written_whatever_a_user_writes(key: str, value: Any) -> None:
    with contextlib.suppress(SpecError):
        for written in settings.wanted(records.from_toml(HostSettings, {key: value}, "x.toml")).values():
            assert re.fullmatch(r"[0-9]+( [0-9]+ [0-9]+)?|always|madvise|never|defer|defer\+madvise", written, re.ASCII)


def test_an_ordinary_user_is_told_before_anything_starts_and_can_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "is_root", lambda: False)
    (tmp_path / "x.toml").write_text(EXPERIMENT + "[host]\nswappiness = 1\n")
    ordered = order.order(spec.load(str(tmp_path / "x.toml")))
    campaign.check(ordered)
    with pytest.raises(MissingCapability, match=r"host\.swappiness = 1: only root may set it"):
        campaign.preflight(ordered, RunOptions())
    settings.require(HostSettings())


def test_what_this_machine_cannot_set_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = tmp_path / "enabled"
    choice.write_text("always [madvise] never\n", encoding="ascii")
    assert settings.trouble_with(Setting(path=choice), "never") == ""
    assert "knows only always, madvise, never" in settings.trouble_with(Setting(path=choice), "defer")
    assert "there is no" in settings.trouble_with(Setting(path=tmp_path / "none"), "1")
    monkeypatch.setattr(machine, "numa_nodes", lambda: 1)
    assert settings.trouble_with(Setting(path=choice, needs_nodes=2)).startswith("it needs 2 NUMA nodes")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "read-only here" in settings.trouble_with(Setting(path=choice), "never")


def test_what_cannot_be_set_back_to_zero_goes_back_to_what_counted_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, share = tmp_path / "dirty_bytes", tmp_path / "dirty_ratio"
    share.write_text("20\n", encoding="ascii")
    setting = Setting(path=size, instead=share)

    def plain_step(path: Path, value: str) -> steps.Step:
        old = steps.Action(path=str(path), value=says(path))
        return steps.Step(name=str(path), do=steps.Action(path=str(path), value=value), undo=(steps.Undo(action=old),))

    # The ledger takes files of the kernel alone.
    monkeypatch.setattr(settings, "setting_step", plain_step)
    for before, undone in (("0", f"echo 20 > {share}"), ("8192", f"echo 8192 > {size}")):
        size.write_text(before, encoding="ascii")
        step = settings.change(setting, "65536")
        assert str(step.do) == f"echo 65536 > {size}"
        assert [str(undo.action) for undo in step.undo] == [undone]


def test_what_a_namespace_has_of_its_own_is_set_there_by_numbers_alone_and_read_back() -> None:
    kept: dict[str, str] = {}

    def run(argv: Sequence[str]) -> str:
        if argv[1] == "-n":
            return kept[argv[2]].replace(" ", "\t") + "\n"
        name, _, value = argv[3].partition("=")
        kept[name] = value
        return ""

    asked = HostSettings(somaxconn=1024, tcp_slow_start_after_idle=False, swappiness=1)
    assert settings.set_in_namespace(asked, run) == {"somaxconn": "1024", "tcp_slow_start_after_idle": "0"}
    assert kept == {"net.core.somaxconn": "1024", "net.ipv4.tcp_slow_start_after_idle": "0"}
    with pytest.raises(RunFailed, match=r"host\.somaxconn: 1024 was written, and the namespace has 5"):
        settings.set_in_namespace(asked, lambda argv: "5\n" if argv[1] == "-n" else "")


def test_keys_of_the_machine_need_its_name_before_them() -> None:
    assert key_paths.path_of("host.somaxconn") == ("host", "somaxconn")


@NEEDS_ROOT
@pytest.mark.processes
@pytest.mark.usefixtures("state")
def test_a_setting_holds_inside_the_block_and_is_put_back_after_it() -> None:
    value = another(SWAPPINESS)
    with unchanged(SWAPPINESS):
        with settings.applied(HostSettings(swappiness=value)) as found:
            assert says(SWAPPINESS) == str(value) == found["swappiness"]
            assert found["transparent_hugepages"] in ("always", "madvise", "never")
            (applied,) = sessions.show()
            assert (applied.what, applied.alive) == (f"host.swappiness = {value}", True)
        assert sessions.show() == []


@NEEDS_ROOT
@pytest.mark.processes
@pytest.mark.usefixtures("state")
def test_a_word_of_the_kernel_holds_and_is_put_back_as_the_one_that_was_chosen() -> None:
    path = SETTINGS["transparent_hugepages_defrag"].path
    trouble = settings.trouble_with(SETTINGS["transparent_hugepages_defrag"])
    if trouble:
        pytest.skip(trouble)
    word = "defer" if says(path) != "defer" else "madvise"
    with unchanged(path):
        asked = records.from_toml(HostSettings, {"transparent_hugepages_defrag": word}, "here")
        with settings.applied(asked) as found:
            assert says(path) == word == found["transparent_hugepages_defrag"]


@NEEDS_ROOT
@pytest.mark.processes
def test_what_the_machine_has_already_is_held_and_not_written(state: Path) -> None:
    value = int(says(SWAPPINESS))
    with settings.applied(HostSettings(swappiness=value)):
        (applied,) = sessions.show()
        assert applied.steps == ()
    assert state.exists()


@NEEDS_ROOT
@pytest.mark.processes
@pytest.mark.usefixtures("state")
def test_dirty_bytes_are_put_back_to_the_share_that_counted_before() -> None:
    assert says(DIRTY) == "0", "this machine has a number of bytes: this test needs the usual share"
    with unchanged(DIRTY, RATIO), settings.applied(HostSettings(dirty_bytes_bytes=4 << 30)):
        assert (says(DIRTY), says(RATIO)) == (str(4 << 30), "0")


@NEEDS_ROOT
@pytest.mark.processes
@pytest.mark.usefixtures("state")
def test_two_who_want_the_same_setting_are_told_who_has_it() -> None:
    value = another(SWAPPINESS)
    with unchanged(SWAPPINESS), settings.applied(HostSettings(swappiness=value)):
        told = rf"in use by pid {os.getpid()}: host\.swappiness = {value}"
        with pytest.raises(RunFailed, match=told), settings.applied(HostSettings(swappiness=value)):
            pass
        # Another setting is nobody's.
        with settings.applied(HostSettings(dirty_background_bytes_bytes=1 << 30)):
            assert says(SETTINGS["dirty_background_bytes"].path) == str(1 << 30)


@NEEDS_ROOT
@pytest.mark.processes
@pytest.mark.usefixtures("state")
def test_a_setting_that_somebody_else_changes_meanwhile_makes_the_run_invalid() -> None:
    value = another(SWAPPINESS)

    def overtaken() -> None:
        with settings.applied(HostSettings(swappiness=value)):
            SWAPPINESS.write_text(str(value + 1), encoding="ascii")

    with unchanged(SWAPPINESS), pytest.raises(InvalidRun, match=rf"somebody else set \S+ to {value + 1}"):
        overtaken()


@pytest.mark.nightly
@NEEDS_ROOT
@pytest.mark.jvm
@pytest.mark.netns
@pytest.mark.usefixtures("state")
def test_a_run_says_what_it_was_measured_under_and_leaves_the_machine_as_it_was(tmp_path: Path) -> None:
    value, own = another(SWAPPINESS), says(SETTINGS["somaxconn"].path)
    text = EXPERIMENT + 'users = 1\nbulk_documents = 100\nwarm_up = "0s"\nmeasure = "1s"\n'
    (tmp_path / "x.toml").write_text(text + f'[host]\nswappiness = {value}\n[factors]\n"host.somaxconn" = [7, 9]\n')
    ordered = order.order(spec.load(str(tmp_path / "x.toml")))
    with unchanged(SWAPPINESS, SETTINGS["somaxconn"].path):
        campaign.preflight(ordered, RunOptions())
        results = layout.create(tmp_path / "results", ordered, {})
        found = campaign.carry_out(results, RunOptions(), Silent())
    assert [summary.state for summary in found] == ["measured", "measured"], [summary.reason for summary in found]
    kept = [results.records()[f"somaxconn={number}/1"].host for number in (7, 9)]
    assert [(one["swappiness"], one["somaxconn"]) for one in kept] == [(str(value), "7"), (str(value), "9")]
    assert own not in ("7", "9")
