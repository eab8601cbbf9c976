"""Results folders are untrusted: names never lead outside, and a damaged file is named in one line."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import example_runs
import numpy as np
import pytest

from ingest_bench import system
from ingest_bench.cli import app
from ingest_bench.errors import SpecError
from ingest_bench.host import proc
from ingest_bench.inputs import records
from ingest_bench.lab import buffer_advice, campaign, evaluation
from ingest_bench.lab.runner import RunOptions
from ingest_bench.model.experiment import Run
from ingest_bench.model.results import SCHEMAS, FileDigest, Reading, Summary
from ingest_bench.model.samples import EVENT_LOOP_STALL
from ingest_bench.network.measure import wire
from ingest_bench.probes import gc, host, node_stats, recording
from ingest_bench.probes import kernel_tap as tap
from ingest_bench.probes.context import ReadContext
from ingest_bench.results import layout
from ingest_bench.results.layout import Results

Messages = Callable[..., tuple[int, str]]
Path_ = tuple[str | int, ...]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Two runs of the same cell, both measured."""
    return example_runs.write_results(tmp_path, "replicates = 2\n", link={"retransmits": 3})


@pytest.fixture
def typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Messages:
    """Exit code and output of a command; it must leave every file below the test's folder as it was."""

    def type_in(*words: str) -> tuple[int, str]:
        before = everything(tmp_path)
        code = app.run(list(words))
        message = capsys.readouterr()
        assert everything(tmp_path) == before
        return code, " ".join((message.out + message.err).split())

    return type_in


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


def change(path: Path, keys: Path_, value: Any) -> None:
    table = json.loads(path.read_text())
    path.write_text(json.dumps(changed(table, keys, value)))


def changed(table: Any, keys: Path_, value: Any) -> Any:
    """The same with another value at that place; `...` takes it out."""
    if not keys:
        return value
    results_made = copy.deepcopy(table)
    inner = results_made
    for key in keys[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    return results_made


def places(value: Any, above: Path_ = ()) -> Iterator[Path_]:
    yield above
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*above, key))


@pytest.mark.parametrize("files", [5, ["a"], {"/etc/hosts": 5}, None])
def test_impossible_fingerprints_are_refused(results: Results, typed: Messages, files: Any) -> None:
    change(results.path / "facts.json", ("files",), files)
    code, message = typed("run", "--resume", str(results.path))
    assert code == SpecError.exit_code
    assert f"{results.path / 'facts.json'}: this file is damaged, or of another version: " in message


@pytest.mark.parametrize(
    ("name", "trouble"),
    [
        ("../../evil/1", "not the name of one folder"),
        ("/etc/1", "not the name of one folder"),
        ("only/..", "not the name of one folder"),
        ("only/1/2", "not the name of one folder"),
        ("", "not the name of one folder"),
        ("only/\x1b[2J", "characters that cannot be printed"),
        ("only/" + "x" * 236, "longer than 235 bytes"),
        ("only/" + "ä" * 200, "longer than 235 bytes"),
        ("a,filename=x/1", "a comma, colon, quote or space"),
        ("other/1", "to a cell with another name"),
        ("only/2", "there are two runs"),
    ],
)
def test_run_name_that_is_not_a_folder_is_refused(results: Results, name: str, trouble: str) -> None:
    cell = name.partition("/")[0] if name != "other/1" else "only"
    first = [run["id"] for run in json.loads((results.path / "plan.json").read_text())["runs"]].index("only/1")
    change(results.path / "plan.json", ("runs", first, "id"), name)
    change(results.path / "plan.json", ("runs", first, "cell", "name"), cell)
    with pytest.raises(SpecError, match=rf"plan\.json: .*{trouble}") as error:
        _ = layout.open_results(results.path).plan
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize("name", ["..toml", "my experiment.toml", "x" * 240 + ".toml"])
def test_experiment_name_that_is_not_a_folder_is_refused(tmp_path: Path, typed: Messages, name: str) -> None:
    (tmp_path / name).write_text('[target]\nname = "sink"\n')
    for command in (("plan",), ("run", "--out", str(tmp_path / "results"))):
        code, message = typed(*command, str(tmp_path / name))
        assert code == 2, message
        assert "the experiment" in message
        assert "cannot be a folder" in message


@pytest.mark.parametrize("link", ["only", "summary.csv", "only/1/raw/reads.bin", "only/1/load/load.json"])
def test_link_out_of_the_folder_is_refused(results: Results, tmp_path: Path, link: str) -> None:
    place, elsewhere = results.path / link, tmp_path / "elsewhere"
    if place.exists():
        place.rename(elsewhere)
    place.symlink_to(elsewhere)
    with pytest.raises(SpecError, match=f"^{place}: this is a link that leads out"):
        layout.open_results(results.path)


def test_link_is_not_followed_when_a_file_is_written(results: Results, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (results.path / f".{os.getpid()}.new").symlink_to(victim)
    results.write_files({"summary.csv": b"new"})
    assert victim.read_text() == "mine"
    assert (results.path / "summary.csv").read_text() == "new"


def test_folder_that_jvm_options_cannot_contain_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.toml").write_text('probes = ["gc"]\n[target]\nname = "sink"\n')
    for target_folder in ("a b", "a,b", "a:b"):
        assert app.run(["run", str(tmp_path / "x.toml"), "--out", str(tmp_path / target_folder)]) == 2
        assert f"{tmp_path / target_folder}: JVM options accept no path" in capsys.readouterr().err
        assert not (tmp_path / target_folder).exists()


def test_unknown_probe_of_a_plan_is_named(results: Results, typed: Messages) -> None:
    change(results.path / "plan.json", ("runs", 0, "cell", "probes"), ["reeds"])
    code, message = typed("report", str(results.path))
    assert (code, 'unknown probe "reeds"; did you mean "reads"?' in message) == (2, True), message


def test_report_is_never_written_outside_of_the_folder(results: Results) -> None:
    for name in ("../x", "/etc/x", "report/../../x", "report/\0"):
        with pytest.raises(SpecError, match="cannot be a folder"):
            results.write_files({name: b""})


DAMAGED = (b"", b"{", b"{}", b"[]", b"7", b"\xff\xfe", b"[" * 10_000, b'{"schema": 2}', b'{"experiment": "\\ud800"}')


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: repr(content[:20]))
@pytest.mark.parametrize("file", ["plan.json", "only/1/run.json", "only/1/load/load.json"])
def test_damaged_file_is_named_in_one_line(results: Results, typed: Messages, file: str, content: bytes) -> None:
    (results.path / file).write_bytes(content)
    code, message = typed("report", str(results.path))
    assert code == 2, message
    assert message.startswith(f"error: {results.path / file}: ")
    assert len(message) < len(str(results.path / file)) + 150


@pytest.mark.parametrize(
    ("file", "keys", "value", "sentence"),
    [
        ("plan.json", ("surprise",), 1, 'unknown key "surprise"'),
        ("plan.json", ("seed",), "1", 'seed: "1" is not a whole number'),
        ("plan.json", ("seed",), True, "seed: true is not a whole number"),
        ("plan.json", ("seed",), 2**64, "seed: a number of more than 64 bits"),
        ("plan.json", ("runs", 0, "cell", "load"), [], "runs[0].cell.load: a list is not an object"),
        ("plan.json", ("runs", 0, "cell", "target", "gc"), "best", 'runs[0].cell.target.gc: "best" is not one of'),
        ("plan.json", ("runs", 0, "replicate"), ..., 'runs[0]: the key "replicate" is missing'),
        ("plan.json", ("runs",), [], "the plan has no runs"),
        ("only/1/run.json", ("state",), "fine", "state: \"fine\" is not one of 'planned'"),
        ("only/1/run.json", ("link", "surprise"), 1, "link: there is no column 'surprise'"),
        ("only/1/run.json", ("run",), "only/2", "is of another run than only/1"),
        ("only/1/run.json", ("counters",), {"by_peer_port": [1]}, 'counters["by_peer_port"]: a list is not an object'),
        ("only/1/run.json", ("faults",), [{"kind": "pause"}], 'faults[0]: the key "start_ns" is missing'),
        ("only/1/run.json", ("measure_start_realtime_ns",), 0, "its measurement is not within the load's time"),
        ("only/1/run.json", ("measure_end_realtime_ns",), 1, "its measurement is not within the load's time"),
        ("only/1/run.json", ("measure_end_realtime_ns",), 2**62, "its measurement is not within the load's time"),
        ("only/1/load/load.json", ("local_ports",), [0], "local_ports: a port is a number from 1 to 65535"),
        ("only/1/load/load.json", ("local_ports",), ["x"], 'local_ports[0]: "x" is not a whole number'),
        ("only/1/load/load.json", ("measure_end_ns",), 2**62, "no load starts and ends at such times"),
        ("only/1/load/load.json", ("errors",), "x" * 600, "is not a list"),
    ],
)
def test_impossible_value_is_named_with_its_key(
    results: Results, typed: Messages, file: str, keys: Path_, value: Any, sentence: str
) -> None:
    change(results.path / file, keys, value)
    code, message = typed("report", str(results.path))
    assert code == 2, message
    assert f"{results.path / file}" in message or "only/1" in message
    assert sentence in message


@pytest.mark.parametrize("runtime", [..., 7, {"home": 1}], ids=["none", "a number", "half"])
def test_unknown_java_of_a_recording_is_named_with_its_key(results: Results, typed: Messages, runtime: Any) -> None:
    folder = results.run_folder(results.plan.runs[0])
    (folder.raw / "recording.jfr").write_bytes(b"x")
    change(results.path / "plan.json", ("runs", 0, "cell", "probes"), ["reads"])
    server = {"version": "2.19.6"} | ({} if runtime is ... else {"runtime": runtime})
    change(folder.path / "run.json", ("server",), server)
    code, message = typed("report", str(results.path))
    assert code == 2, message
    assert f"{folder.path / 'run.json'}: this file is damaged: server: runtime: " in message


ROW = b'{"to-server": {"frames": {}, "sampled_frames": 0, "tcp": [{"at_ns": 1, "connections": [{}]}]}}'
RAW = (ROW, b"[]", b"null", b"7", b"{", b"", b'{"to-server": 7}', b'{"to-server": {"frames": [1]}}', b"[" * 10_000)


@pytest.mark.parametrize("content", RAW, ids=lambda content: repr(content[:30]))
def test_impossible_wire_file_is_named_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / wire.WIRE_FILE
    path.write_bytes(content)
    with pytest.raises(SpecError, match=f"^{path}: this file is damaged: "):
        wire.read_wire(path)
    path.unlink()
    assert wire.read_wire(path) == {}


DELETED = Path.unlink


def write_over(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        *(("recording.json", write_over(content)) for content in RAW),
        ("recording.json", lambda path: path.write_text(path.read_text().replace('"pauses": [1]', '"pauses": 7'))),
        ("recording.json", lambda path: path.write_text(path.read_text().replace('"last_ns": 1', '"last_ns": 7'))),
        # Reads are extracted from the recording after the run, so its record knows no checksum of them.
        *(("reads.bin", damage) for damage in (write_over(b"reads"), write_over(b"raeds" * 100), DELETED)),
    ],
)
def test_damaged_extract_of_a_recording_is_rebuilt(
    file: str, damage: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recording.jfr").write_bytes(b"x")
    message = '{"events": 3, "last_ns": 1, "lost_bytes": 0, "files": [], "pauses": [1]}'
    extractions = []

    def run(*argv: Any, **_: Any) -> str:
        extractions.append(argv)
        (tmp_path / "reads.bin").write_bytes(b"reads" * 100)
        return message

    monkeypatch.setattr(system, "run", run)
    context = ReadContext(raw=tmp_path, start_ns=0, end_ns=1, ports=frozenset(), reader=tuple)
    for _ in range(2):
        assert recording.load_recording(context).content == json.loads(message)
    assert len(extractions) == 1
    damage(tmp_path / file)
    assert recording.load_recording(context).content == json.loads(message)
    assert len(extractions) == 2
    assert json.loads((tmp_path / "recording.json").read_text())["content"] == json.loads(message)


@pytest.mark.parametrize("line", ["7", "null", '"text"', '["a"]', "[" * 10_000, "{}"])
def test_impossible_line_of_the_host_probe_is_skipped(tmp_path: Path, line: str) -> None:
    first, second = (json.dumps([at] * len(proc.FIELDS)) for at in (1, 2))
    (tmp_path / "host.jsonl").write_text(f"{first}\n{line.replace('a', 'a' * len(proc.FIELDS))}\n{second}\n")
    assert {len(column) for column in host._load_table(tmp_path / "host.jsonl").values()} == {2}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["at_ns", "run_queue", "server_rss_bytes", "cpu_busy_ticks", "at_monotonic_ns"])
@pytest.mark.parametrize("value", [None, math.nan, math.inf, 1e300, -1, 1 << 62])
def test_impossible_sample_of_the_host_probe_is_skipped(tmp_path: Path, name: str, value: float | None) -> None:
    lines = [[at] * len(proc.FIELDS) for at in range(10, 14)]
    odd: list[Any] = [value if field == name else 14 for field in proc.FIELDS]
    (tmp_path / "host.jsonl").write_text("\n".join(map(json.dumps, [*lines, odd, [20] * len(proc.FIELDS)])))
    raw = ReadContext(raw=tmp_path, start_ns=10, end_ns=20, ports=frozenset(), reader=tuple)
    values = {values.name: values.value for values in host.HOST.read(raw) if isinstance(values, Reading)}
    assert values["run_queue_max"] == 13


@pytest.mark.parametrize("line", ["7", "null", "[]", '{"at_ns": 1}', '{"at_ns": 1, "nodes": []}'])
def test_impossible_line_of_node_stats_is_named_in_one_line(tmp_path: Path, line: str) -> None:
    (tmp_path / node_stats.FILE).write_text(f"{line}\n")
    with pytest.raises(SpecError, match=f"^{tmp_path / node_stats.FILE}: this file is damaged: "):
        node_stats._load_samples(tmp_path / node_stats.FILE)


def test_sparse_gc_log_of_100_gigabytes_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "gc.log"
    path.write_text("[2026-11-22T07:38:46.274+0000][0.004s][info][gc] Using G1\n")
    os.truncate(path, 100 << 30)
    context = ReadContext(raw=tmp_path, start_ns=0, end_ns=1, ports=frozenset(), reader=tuple)
    with pytest.raises(SpecError, match=f"^{path}: this is not a GC log: it has a line of 65,536 characters or more$"):
        list(gc.GC.read(context))


NUMBERS = (-1, 0, 2**62, -(2**62), 10**30, 1e308, -1.5, True)
ODD: tuple[Any, ...] = (None, [], {}, "", "../../x", *NUMBERS, "\ud800", "\x1b[31m", [1], {"a": 1})


@pytest.mark.parametrize(
    ("file", "change_it", "message"),
    [
        ("load/samples-0.bin", lambda path: path.write_bytes(path.read_bytes()[:-1000]), "bytes, and"),
        (
            "load/samples-0.bin",
            lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"),
            "was changed after the run",
        ),
        ("raw/gc.log", Path.unlink, "was deleted after the run"),
    ],
)
def test_changed_raw_file_invalidates_the_run(
    results: Results, file: str, change_it: Callable[[Path], None], message: str
) -> None:
    run = results.plan.runs[0]
    folder = results.run_folder(run)
    (folder.raw / "gc.log").write_text("what a JVM wrote")
    record = dataclasses.replace(example_runs.record(), files=folder.digest_files())
    assert "files" not in evaluation.summarise_run(results.plan, run, folder, record).invalid_for
    change_it(folder.path / file)
    rows = evaluation.summarise_run(results.plan, run, folder, record)
    assert (rows.state, rows.invalid_for[0]) == ("invalid", "files")
    assert f"{file} " in rows.reason
    assert message in rows.reason


@pytest.fixture
def watched(results: Results) -> Results:
    """Write a run with a stall: the measurements of its load, its link, its server and its machine."""
    run = next(run for run in results.plan.runs if run.id == "only/1")
    change(results.path / "plan.json", ("runs",), [json.loads(json.dumps(records.to_json(run)))])
    change(results.path / "plan.json", ("runs", 0, "cell", "probes"), ["gc", "host", "kernel-reads"])
    folder, report = results.run_folder(run), example_runs.report()
    start_ns, ahead_ns = report.started_monotonic_ns, report.realtime_minus_monotonic_ns
    rows = [example_runs.sample(at / 10, at / 10 + 0.01) for at in range(70)]
    example_runs.samples([*rows, example_runs.sample(3.0, 5.0)]).tofile(folder.load / "samples-0.bin")
    example_runs.samples([example_runs.sample(at, at + 0.01) for at in range(7)]).tofile(folder.load / "queries-0.bin")
    example_runs.cpu(0.5, 0.5, 0.5).tofile(folder.load / "cpu-0.bin")
    stood = np.array([(start_ns + 3 * 10**9, start_ns + 5 * 10**9)], dtype=EVENT_LOOP_STALL)
    stood.tofile(folder.load / "loop_stalls-0.bin")
    connection = example_runs.tcp_connection(rtt_us=300, sent_ms_ago=900, received_ms_ago=950, timeouts=1)
    again = dataclasses.asdict(connection)
    tcp = [
        {"at_ns": start_ns + ahead_ns + at * 250_000_000, "connections": [again | {"retransmits": at}]}
        for at in range(28)
    ]
    end = {"frames": {"1514": 70}, "sampled_frames": 70, "tcp": tcp}
    (folder.raw / "wire.json").write_text(json.dumps({"to-server": end, "to-client": end}))
    (folder.raw / "gc.log").write_text(
        "[2026-11-22T07:38:46.274+0000][0.004s][info][gc] Using G1\n"
        "[2026-11-22T07:38:47.274+0000][1.004s][info][gc] GC(0) Pause Full (System.gc()) 6M->1M(64M) 9.619ms\n"
    )
    (folder.raw / "host.jsonl").write_text(
        "".join(
            f"{json.dumps([at_ns + ahead_ns, at_ns, *range(2, len(proc.FIELDS))])}\n"
            for at_ns in range(start_ns, start_ns + 3 * 10**9, 10**9)
        )
    )
    kernel = np.zeros(70, dtype=list(tap.RECORD))
    kernel["at_ns"], kernel["returned"], kernel["requested"] = start_ns + 3 * 10**9, 50_000, 65_536
    kernel["peer_port"] = 40000
    kernel.tofile(folder.raw / "kernel-reads.bin")
    clocks = [[start_ns, ahead_ns], [start_ns + 7 * 10**9, ahead_ns]]
    (folder.raw / "kernel-reads.json").write_text(json.dumps({"pid": 1, "clocks": clocks}))
    return layout.open_results(results.path)


def damages(content: bytes, chosen: random.Random) -> Iterator[bytes]:
    """Yield the content cut off, overwritten, and if it is JSON: with another type, without a key, with one more."""
    yield from (b"", content[: len(content) // 2], content + b"\xff" * 7, chosen.randbytes(len(content)))
    yield b"\x7f" * len(content)
    try:
        table = json.loads(content)
    except ValueError:
        return
    every_place = list(places(table))
    for keys in chosen.sample(every_place, min(len(every_place), 4)):
        inner = table
        for key in keys:
            inner = inner[key]
        odd = [chosen.choice(ODD), *([...] if keys else [])]
        yield from (json.dumps(changed(table, keys, value)).encode() for value in odd)
        if isinstance(inner, dict):
            yield json.dumps(changed(table, (*keys, "surprise"), 1)).encode()


def look(folder: Path) -> list[Summary]:
    opened = layout.open_results(folder)
    rows = evaluation.summarise_runs(opened)
    buffer_advice.advise_cells(opened, rows)
    return rows


def trouble(folder: Path) -> str:
    """Return the sentence about it; empty where the folder can be read."""
    try:
        look(folder)
    except SpecError as error:
        return str(error)
    return ""


def test_file_with_any_damage_is_read_or_named_in_one_line(watched: Results) -> None:
    (row,) = look(watched.path)
    assert (row.values["stalls"], row.values["kernel_reads"], row.values["requests"]) == (1, 70, 51)
    chosen = random.Random(1)  # noqa: S311 - a sample, not a secret
    paths = [path for path in (watched.path / "only" / "1").rglob("*") if path.is_file()]
    assert len(paths) == 11
    plan = watched.path / "plan.json"
    for path in (plan, *paths):
        intact = path.read_bytes()
        for content in damages(intact, chosen):
            path.write_bytes(content)
            message = trouble(watched.path)
            is_named = str(path) in message or "or load/load.json" in message
            # A damaged plan may differ from its runs, which are named then.
            assert not message or is_named or path == plan
            assert len(message.splitlines()) <= 1
        path.write_bytes(intact)


@pytest.mark.parametrize("name", ["loop_stalls-0.bin", "cpu-0.bin", "samples-0.bin", "queries-0.bin"])
def test_impossible_time_is_named_with_its_file(watched: Results, name: str) -> None:
    path = watched.run_folder(watched.plan.runs[0]).load / name
    path.write_bytes(b"\x7f" * path.stat().st_size)
    with pytest.raises(SpecError, match=rf"^{path}: this file is damaged: \w+_ns holds an impossible time$"):
        look(watched.path)


def test_digests_do_not_lead_out_of_the_folder(results: Results) -> None:
    folder = results.run_folder(results.plan.runs[0])
    with pytest.raises(SpecError, match="cannot be a folder"):
        folder.describe_changes({"../../../etc/passwd": FileDigest(bytes=1, sha256="")})


@pytest.mark.parametrize("file", ["plan.json", "only/1/run.json", "only/1/load/load.json"])
def test_newer_schema_is_refused(results: Results, typed: Messages, file: str) -> None:
    path = results.path / file
    table = json.loads(path.read_text())
    formats = SCHEMAS[path.name]
    assert table["schema"] == formats
    path.write_text(json.dumps(table | {"schema": formats + 1}))
    code, message = typed("report", str(results.path))
    assert code == 2, message
    assert f"a newer ingest-bench wrote it (schema {formats + 1}, this one reads {formats})" in message
    del table["schema"]
    path.write_text(json.dumps(table))
    if formats > 1:
        code, message = typed("report", str(results.path))
        assert (code, "an older ingest-bench wrote it" in message) == (2, True), message


def test_files_of_a_repeated_run_are_not_read(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    complete, cut = results.plan.runs
    (whole_row,) = (row for row in evaluation.summarise_runs(results) if row.run == complete.id)
    folder = results.run_folder(cut)
    folder.write_record(example_runs.record(run=cut.id, cell=cut.cell.name, replicate=cut.replicate, state="started"))
    (folder.load / "load.json").write_bytes(b"")
    done = dataclasses.replace(whole_row, run=cut.id, replicate=cut.replicate)
    carried_out = []

    def run_once(_results: Results, planned: Run, *_: object) -> Summary:
        carried_out.append(planned)
        return done

    monkeypatch.setattr(campaign, "run_once", run_once)
    watcher: Any = SimpleNamespace(begin_run=lambda *_, **__: None)
    rows = campaign.run_missing(results, RunOptions(), watcher)
    assert carried_out == [cut]
    assert {row.run for row in rows} == {complete.id, cut.id}
