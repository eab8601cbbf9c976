"""Observers: how each watches a JVM, and how its files are read."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import example_runs
import numpy as np
import pytest
from probe_lab import make_context, notes

from ingest_bench import probes
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.inputs import files, records, urls
from ingest_bench.jvm.attach import AttachedJvm
from ingest_bench.lab import evaluation
from ingest_bench.model.results import CauseIntervals, Interval, NodeObserver, Note, ProbeOutput, Reading, Series
from ingest_bench.model.samples import ClockOffset
from ingest_bench.model.target import TargetOptions
from ingest_bench.probes import node_stats, observer, oom, recording
from ingest_bench.probes.context import ATTACHMENT_FILE, Events, Probe, ReadContext
from ingest_bench.results import layout

S = 10**9


Watched = list[tuple[int, Path]]


def make_probe(name: str, watching: Watched, **options: Any) -> Probe:
    """Return a probe that records the processes that it is watching."""

    @contextlib.contextmanager
    def watch(server_pid: int, raw: Path) -> Iterator[None]:
        watching.append((server_pid, raw))
        yield
        watching.remove((server_pid, raw))

    return Probe(watch=watch, read=lambda context: iter([Reading(name, context.start_ns)]), **options)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (TargetOptions(), "launched"),
        (TargetOptions(attach=(7,)), "attached"),
        (TargetOptions(url=urls.parse_url("http://127.0.0.1:9200")), "external"),
        (TargetOptions(url=urls.parse_url("http://127.0.0.1:9200"), attach=(7, 8)), "attached"),
        (TargetOptions(url=urls.parse_url("http://127.0.0.1:9200"), watchers=2), "remote"),
    ],
)
def test_observer_follows_from_pid_and_url(options: TargetOptions, name: str) -> None:
    assert options.observer == name
    assert options.is_already_running == (name != "launched")


def test_every_probe_watches_each_launched_jvm_into_the_folder_of_its_node(tmp_path: Path) -> None:
    watching: Watched = []
    both = {name: make_probe(name, watching) for name in ("first", "second")}
    nodes = [(11, tmp_path / "1"), (22, tmp_path / "2")]
    with observer.watch_launched((11, 22), both, [raw for _, raw in nodes]):
        assert sorted(watching) == sorted(nodes * 2)
    assert watching == []
    with pytest.raises(ValueError, match="zip"), observer.watch_launched((11, 22), both, [tmp_path]):
        pytest.fail("the second JVM would not be watched")


@pytest.mark.parametrize("name", ["launched", "attached"])
def test_files_of_a_jvm_are_read_by_every_probe(name: Any, tmp_path: Path) -> None:
    selected = {name: make_probe(name, []) for name in ("first", "second")}
    outputs = observer.read_outputs(name, selected, make_context(tmp_path, 10 * S, 12 * S))
    assert list(outputs) == [Reading("first", 10 * S), Reading("second", 10 * S)]


def test_times_of_files_from_another_machine_are_converted_to_our_clock(tmp_path: Path) -> None:
    ahead_ns = 3600 * S

    def read(context: ReadContext) -> Iterator[ProbeOutput]:
        yield Reading("start", context.start_ns)
        yield Series("heap_bytes", (context.start_ns, context.end_ns), (1.0, 2.0))
        yield CauseIntervals("gc", (Interval("gc", context.start_ns + 1, context.end_ns),))

    clock = ClockOffset(worker=0, offset_before_ns=ahead_ns, offset_after_ns=ahead_ns, measured_after_at_ns=S)
    context = make_context(tmp_path, 10 * S, 12 * S)
    assert [*observer.read_outputs("remote", {"one": Probe(read=read)}, context, clock)] == [
        Reading("start", 10 * S + ahead_ns),
        Series("heap_bytes", (10 * S, 12 * S), (1.0, 2.0)),
        CauseIntervals("gc", (Interval("gc", 10 * S + 1, 12 * S),)),
    ]
    reads = np.array([(11 * S + ahead_ns, 512, 40000)], dtype=layout.READ)
    folder = layout.NodeFolder(tmp_path)
    folder.create_folders()
    (folder.raw / "reads.bin").write_bytes(reads.tobytes())
    assert folder.read_socket_reads()["end_ns"].tolist() == [11 * S + ahead_ns]
    files.write_json(folder.raw / layout.OBSERVER, records.to_json(NodeObserver(pid=7, clock=clock)))
    assert folder.read_socket_reads()["end_ns"].tolist() == [11 * S]


@pytest.mark.parametrize(
    "change", [{"offset_before_ns": 2**62}, {"offset_after_ns": 10**12}, {"measured_before_at_ns": -(2**62)}]
)
def test_offset_that_no_clock_has_is_damaged(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = layout.NodeFolder(tmp_path)
    folder.create_folders()
    damaged = NodeObserver(pid=7, clock=ClockOffset(worker=0, **change))
    files.write_json(folder.raw / layout.OBSERVER, records.to_json(damaged))
    with pytest.raises(SpecError, match=r"observer\.json: this file is damaged: clock"):
        folder.read_observer()


@pytest.mark.parametrize("events", [{}, {"jdk.SocketRead": {"threshold": "0 ns"}}], ids=["none", "reads"])
def test_attached_jvm_gets_a_recording_and_the_logs_of_the_probes(
    events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def observe(jvm: AttachedJvm, raw: Path, **options: Any) -> Iterator[None]:
        calls.append({"pid": jvm.pid, "raw": raw, **options})
        yield

    facts = SimpleNamespace(collector="g1", stack_depth=64, g1_region_bytes=1 << 20)
    monkeypatch.setattr(observer, "observe", observe)
    monkeypatch.setattr(observer, "read_facts", lambda _: facts)
    log = probes.PROBES["gc"].logs[0]
    watching: Watched = []
    probe = make_probe("one", watching, events=events, logs=(log,))
    nodes = [(7, tmp_path / "1"), (8, tmp_path / "2")]
    jvms = [cast("AttachedJvm", SimpleNamespace(pid=pid)) for pid, _ in nodes]
    for _, raw in nodes:
        raw.mkdir()
    with observer.watch_attached(jvms, {"one": probe}, [raw for _, raw in nodes], 5):
        assert watching == nodes
    assert watching == []
    logs = [log, oom.EXCEPTIONS]
    for call, (pid, raw) in zip(calls, nodes, strict=True):
        settings = recording.settings_path(raw)
        expected = {"pid": pid, "raw": raw, "settings": settings if events else None, "logs": logs, "limit_s": 5}
        assert call == expected
        assert settings.exists() == bool(events)
        assert make_context(raw, 10 * S, 12 * S).attachment.stack_depth == 64
        assert json.loads((raw / ATTACHMENT_FILE).read_text())["since_ns"] > 0
        assert {(raw / name).read_bytes() for name in ("gc.log", "exceptions.log")} == {b""}


def test_a_jvm_that_cannot_be_watched_ends_the_watch_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []

    @contextlib.contextmanager
    def observe(jvm: AttachedJvm, _: Path, **__: Any) -> Iterator[None]:
        if jvm.pid == 8:
            raise RunFailed("attach: pid 8 refused JFR.start")
        try:
            yield
        finally:
            ended.append(jvm.pid)

    facts = SimpleNamespace(collector="g1", stack_depth=64, g1_region_bytes=None)
    monkeypatch.setattr(observer, "observe", observe)
    monkeypatch.setattr(observer, "read_facts", lambda _: facts)
    jvms = [cast("AttachedJvm", SimpleNamespace(pid=pid)) for pid in (7, 8)]
    with pytest.raises(RunFailed, match="pid 8"), observer.watch_attached(jvms, {}, [tmp_path, tmp_path], 5):
        pytest.fail("one of them is not watched")
    assert ended == [7]


@pytest.mark.parametrize("names", [("gc", "host"), ("reads", "host")])
def test_stats_of_an_external_server_are_polled_over_a_separate_connection_for_gc(
    names: Sequence[str], tmp_path: Path
) -> None:
    is_open: list[bool] = []
    connections: list[str] = []

    @contextlib.contextmanager
    def connect() -> Iterator[str]:
        is_open.append(True)
        yield "connection"
        is_open.clear()

    def request_stats(connection: str) -> Any:
        connections.append(connection)
        return {"nodes": {"a": {"jvm": {}}}}

    with observer.watch_external(connect, request_stats, probes.select_probes(names), [tmp_path]):
        assert bool(is_open) == ("gc" in names)
    assert is_open == []
    assert set(connections) == ({"connection"} if "gc" in names else set())
    assert (tmp_path / node_stats.FILE).exists() == ("gc" in names)


def test_probes_that_need_the_host_are_unavailable_for_an_external_server(tmp_path: Path) -> None:
    names = ("reads", "allocations", "gc", "kernel-reads", "host")
    context = make_context(tmp_path, 10 * S, 12 * S)
    outputs = list(observer.read_outputs("external", probes.select_probes(names), context))
    sources = [item.source for item in outputs if isinstance(item, Note) and "unavailable" in item.text]
    assert sources == [*names, "heap"]
    assert len(outputs) == len(sources)
    assert "the server has no API for JVM stats" in " ".join(notes(outputs))


def test_server_without_a_stats_api_is_not_polled(tmp_path: Path) -> None:
    with observer.watch_external(pytest.fail, None, probes.select_probes(["gc"]), [tmp_path]):
        assert not (tmp_path / node_stats.FILE).exists()


def test_unknown_probe_is_refused_with_a_suggestion() -> None:
    with pytest.raises(SpecError, match='unknown probe "gcs"; did you mean "gc"'):
        probes.select_probes(["gcs"])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("", "there is no flight recording in "),
        ('target.attach = [7]\ntarget.url = "http://127.0.0.1:9200"\n', "there is no flight recording in "),
        (
            'target.url = "http://127.0.0.1:1"\ntarget.watch_jmx = ["[::1]:7091"]\n',
            "there is no flight recording in ",
        ),
        ('target.url = "http://127.0.0.1:9200"\n', "only its URL is known"),
    ],
    ids=["launched", "attached", "jmx", "external"],
)
def test_run_is_read_by_the_observer_of_its_plan(target: str, message: str, tmp_path: Path) -> None:
    results = example_runs.write_results(tmp_path, f'probes = ["reads"]\n{target}')
    (summary,) = evaluation.summarise_runs(results)
    text = "; ".join(note.text for note in summary.notes if note.source == "reads")
    assert message in text
    assert ("no flight recording" in text) != ("only its URL" in text)
