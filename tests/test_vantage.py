"""From where a JVM is watched: what each vantage watches, and what is read of it then."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import made_runs
import pytest

from ingest_bench import probes
from ingest_bench.errors import SpecError
from ingest_bench.experiment import order, spec
from ingest_bench.inputs import urls
from ingest_bench.jvm.attach import Attached
from ingest_bench.jvm.logs import Log
from ingest_bench.lab import evaluation
from ingest_bench.load import reports
from ingest_bench.model.results import Measured, Reading, Remark
from ingest_bench.model.target import TargetOptions
from ingest_bench.probes import nodestats, oom, recording, vantage
from ingest_bench.probes.context import ATTACHED, Events, ReadContext
from ingest_bench.probes.vantage import AttachedTo, FromOutside, Started
from ingest_bench.results import layout

S = 10**9


@dataclass
class Seen:
    """A probe that keeps whom it watches, and since when it does not any more."""

    name: str
    events: Events = field(default_factory=dict)
    logs: tuple[Log, ...] = ()
    watching: list[tuple[int, Path]] = field(default_factory=list)
    begun: list[tuple[int, Path]] = field(default_factory=list)

    @contextlib.contextmanager
    def watch(self, server_pid: int, raw: Path) -> Iterator[None]:
        self.begun.append((server_pid, raw))
        self.watching.append((server_pid, raw))
        yield
        self.watching.remove((server_pid, raw))

    def read(self, context: ReadContext) -> Iterator[Measured]:
        yield Reading(self.name, context.start_ns)


def context(raw: Path) -> ReadContext:
    return ReadContext(raw=raw, start_ns=10 * S, end_ns=12 * S, ports=frozenset(), reader=tuple)


def remarks(measured: Sequence[Measured]) -> list[tuple[str, str]]:
    return [(item.probe, item.text) for item in measured if isinstance(item, Remark)]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (TargetOptions(), "started"),
        (TargetOptions(attach=7), "attached"),
        (TargetOptions(url=urls.parse("http://127.0.0.1:9200")), "outside"),
        (TargetOptions(url=urls.parse("http://127.0.0.1:9200"), attach=7), "attached"),
    ],
)
def test_a_target_says_from_where_it_is_watched(options: TargetOptions, name: str) -> None:
    assert options.vantage == name
    assert options.runs_already == (name != "started")


def test_each_jvm_of_ours_is_watched_by_every_probe_into_the_folder_of_its_node(tmp_path: Path) -> None:
    one, other = Seen("one"), Seen("other")
    each = [(11, tmp_path / "1"), (22, tmp_path / "2")]
    with Started((11, 22)).watch({"one": one, "other": other}, [raw for _, raw in each], 5):
        assert (one.watching, other.watching) == (each, each)
    assert (one.watching, other.watching) == ([], [])


def test_a_node_without_a_folder_is_no_node(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="zip"), Started((11, 22)).watch({"one": Seen("one")}, [tmp_path], 5):
        pytest.fail("the second JVM would not be watched")


@pytest.mark.parametrize("name", ["started", "attached"])
def test_what_a_jvm_left_is_read_by_every_probe(name: Any, tmp_path: Path) -> None:
    found = vantage.VANTAGES[name].read({"one": Seen("one"), "other": Seen("other")}, context(tmp_path))
    assert found == [Reading("one", 10 * S), Reading("other", 10 * S)]


@pytest.mark.parametrize("events", [{}, {"jdk.SocketRead": {"threshold": "0 ns"}}], ids=["none", "reads"])
def test_a_jvm_that_ran_before_is_watched_as_one_of_ours_by_a_recording_of_its_own(
    events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def observed(jvm: Attached, into: Path, **how: Any) -> Iterator[None]:
        asked.append({"pid": jvm.pid, "into": into, **how})
        yield

    said = SimpleNamespace(collector="g1", stack_depth=64, g1_region_bytes=1 << 20)
    monkeypatch.setattr(vantage, "observed", observed)
    monkeypatch.setattr(vantage, "facts_of", lambda _: said)
    log = probes.PROBES["gc"].logs[0]
    probe = Seen("one", events=events, logs=(log,))
    jvm = cast("Attached", SimpleNamespace(pid=7))
    with AttachedTo(jvm).watch({"one": probe}, [tmp_path], 5):
        assert probe.watching == [(7, tmp_path)]
    settings = recording.settings_file(tmp_path)
    logs = [log, oom.EXCEPTIONS]
    assert asked == [{"pid": 7, "into": tmp_path, "settings": settings if events else None, "logs": logs, "limit_s": 5}]
    assert settings.exists() == bool(events)
    assert context(tmp_path).attachment.stack_depth == 64
    assert json.loads((tmp_path / ATTACHED).read_text())["since_ns"] > 0


@pytest.mark.parametrize("names", [("gc", "host"), ("reads", "host")])
def test_from_outside_the_server_is_asked_over_a_connection_of_its_own_where_it_can_tell(
    names: Sequence[str], tmp_path: Path
) -> None:
    open_now: list[str] = []
    told: list[str] = []

    @contextlib.contextmanager
    def connected() -> Iterator[str]:
        open_now.append("connection")
        yield "connection"
        open_now.clear()

    def ask(connection: str) -> Any:
        told.append(connection)
        return {"nodes": {"a": {"jvm": {}}}}

    with FromOutside(connected, ask).watch(probes.chosen(names), [tmp_path], 5):
        assert bool(open_now) == ("gc" in names)
    assert open_now == []
    assert set(told) == ({"connection"} if "gc" in names else set())
    assert (tmp_path / nodestats.FILE).exists() == ("gc" in names)


def test_probes_that_need_the_jvm_say_that_they_are_unavailable_from_outside(tmp_path: Path) -> None:
    names = ("reads", "allocations", "gc", "kernel-reads", "host")
    found = FromOutside.read(probes.chosen(names), context(tmp_path))
    assert [probe for probe, text in remarks(found) if "unavailable" in text] == list(names)
    assert len(found) == len(names)
    assert "the server was not asked, for it has no API that tells of its JVM" in dict(remarks(found))["gc"]


def test_a_server_without_an_api_of_its_jvm_is_not_asked(tmp_path: Path) -> None:
    connected: Any = None
    with FromOutside(connected, None).watch(probes.chosen(["gc"]), [tmp_path], 5):
        pass
    assert not (tmp_path / nodestats.FILE).exists()


def test_a_name_that_no_probe_has_is_named() -> None:
    with pytest.raises(SpecError, match='no probe "gcs"; did you mean "gc"'):
        probes.chosen(["gcs"])


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("", "there is no flight recording in "),
        ('target.attach = 7\ntarget.url = "http://127.0.0.1:9200"\n', "there is no flight recording in "),
        ('target.url = "http://127.0.0.1:9200"\n', "there is no more than its URL"),
    ],
    ids=["started", "attached", "outside"],
)
def test_a_run_is_read_from_where_its_plan_says_that_it_was_watched(target: str, said: str, tmp_path: Path) -> None:
    experiment = tmp_path / "x.toml"
    experiment.write_text(f'probes = ["reads"]\n{target}')
    made = layout.create(tmp_path / "results", order.order(spec.load(str(experiment))), {})
    (run,) = made.plan.runs
    report = made_runs.report()
    offset_ns = report.realtime_minus_monotonic_ns
    window = {
        "measure_start_realtime_ns": report.warm_up_end_ns + offset_ns,
        "measure_end_realtime_ns": report.measure_end_ns + offset_ns,
    }
    record = made_runs.record(run=run.id, cell=run.cell.name, replicate=run.replicate, levels={}, **window)
    folder = made.run(run)
    folder.create()
    folder.write(record)
    reports.write(report, folder.load)
    made_runs.steady().tofile(folder.load / "samples-0.bin")
    found = evaluation.run_summary(made.plan, run, folder, record)
    text = "; ".join(text for probe, text in remarks(found.remarks) if probe == "reads")
    assert said in text
    assert ("no flight recording" in text) != ("no more than its URL" in text)
