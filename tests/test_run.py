"""Whole runs: an experiment in a file, the sink as the server, namespaces, the load, the probes, the summary."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ingest_bench.analysis.run import steady
from ingest_bench.cli.app import app
from ingest_bench.errors import SpecError
from ingest_bench.experiment import order, spec
from ingest_bench.lab import buffer_advice, campaign, evaluation, window
from ingest_bench.lab.runner import RunOptions
from ingest_bench.load.supervisor import Progress
from ingest_bench.model.results import RunRecord, Summary
from ingest_bench.model.samples import OUTCOMES, SAMPLE
from ingest_bench.network.measure import capture
from ingest_bench.results import layout, run_folder
from ingest_bench.results.layout import Results

SINK = """
probes = ["reads", "gc"]
[target]
name = "sink"
heap = "256m"
[load]
workload = "nyc_taxis"
users = 2
bulk_documents = 200
warm_up = "1s"
"""


class Silent:
    """Nobody watches."""

    def begin(self, number: int, name: str, left: int) -> None: ...

    def stage(self, name: str) -> None: ...

    def load(self, seen: Progress) -> None: ...

    def end(self, said: str) -> None: ...


def carried_out(folder: Path, text: str, options: RunOptions | None = None) -> tuple[Results, list[Summary]]:
    (folder / "x.toml").write_text(text)
    ordered = order.order(spec.load(str(folder / "x.toml")))
    campaign.preflight(ordered, RunOptions())
    results = layout.create(folder / "results", ordered, {})
    return results, campaign.carry_out(results, options or RunOptions(), Silent())


@pytest.mark.ordinary
@pytest.mark.jvm
@pytest.mark.netns
def test_a_run_of_each_cell_is_measured_and_its_counts_agree(tmp_path: Path) -> None:
    text = SINK + 'measure = "2s"\n[factors]\nnetwork = ["loopback", "ethernet"]\n'
    results, found = carried_out(tmp_path, text, RunOptions(last_frames=True))
    assert {summary.state for summary in found} == {"measured"}, [summary.reason for summary in found]
    for summary in found:
        assert summary.values["bytes_read"] == summary.values["bytes_sent"]
        assert summary.values["documents_counted"] == summary.values["documents_acked"]
        assert summary.values["sink_bytes_read"] == summary.values["bytes_sent"]
        assert summary.values["sink_reads"] == summary.values["reads_recorded"]
    sizes = {summary.values["network"]: summary.values["wire_bytes_p50"] for summary in found}
    assert sizes["ethernet"] == 1514
    # Nobody asks why.
    assert not list(results.path.rglob("*.pcap"))
    assert len((results.path / "summary.csv").read_text().splitlines()) == 3


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_a_recording_for_profiling_has_what_the_probes_need_too_and_a_note_says_that_it_cost_something(
    tmp_path: Path,
) -> None:
    results, (found,) = carried_out(tmp_path, SINK + 'measure = "2s"\n', RunOptions(jfr="profile"))
    assert found.state == "measured", found.reason
    assert found.values["bytes_read"] == found.values["bytes_sent"]
    (raw,) = results.path.glob("*/1/raw")
    types = json.loads((raw / "recording.json").read_text())["content"]["types"]
    assert types["jdk.ExecutionSample"] > 10
    assert types["jdk.SocketRead"] >= found.values["reads_recorded"]
    assert (raw / "recording.jfr").stat().st_size
    assert [remark.text for remark in found.remarks if "--jfr profile" in remark.text]


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_what_the_sink_allocated_stands_beside_what_its_reads_predict(tmp_path: Path) -> None:
    text = SINK + 'measure = "2s"\n[factors]\nreceive_predictor = ["16KiB", "64KiB", "64KiB..256KiB"]\n'
    results, found = carried_out(tmp_path, text)
    assert {summary.state for summary in found} == {"measured"}, [summary.reason for summary in found]
    small, large, adaptive = buffer_advice.predictions(results, found)
    assert small.source == large.source == large.cell
    assert abs(small.error) < 0.10
    # From its own reads the prediction is exact: the same buffers, counted twice.
    assert large.error == pytest.approx(0, abs=1e-9)
    assert adaptive.cost.is_extrapolated
    evaluation.write_report(results, found)
    assert (results.path / "report/predicted.csv").read_text().count("its own reads") == 1
    answer = CliRunner().invoke(app, ["recommend", str(results.path)], standalone_mode=False)
    assert answer.return_value == 0
    assert answer.output.count("recommended: ") == 3


@pytest.mark.nightly
@pytest.mark.ordinary
@pytest.mark.jvm
@pytest.mark.netns
def test_faults_happen_at_their_moments_and_every_acknowledged_document_is_there(tmp_path: Path) -> None:
    faults = """
arrivals = "50/s"
measure = "9s"
[network]
profile = "ethernet"
[[fault]]
kind = "partition"
at = "2s"
for = "2s"
[[fault]]
kind = "reset"
at = "5s"
[[fault]]
kind = "pause"
at = "6s"
for = "1s"
"""
    _, (summary,) = carried_out(tmp_path, SINK + faults)
    assert summary.state == "measured", summary.reason
    assert [fault.kind for fault in summary.faults] == ["partition", "reset", "pause"]
    lasted = [((fault.ended or 0) - fault.started) / 1e9 for fault in summary.faults]
    assert 1.5 < lasted[0] < 4
    stalled, failed = summary.values["silent_s"], summary.values["requests_failed"]
    assert isinstance(stalled, (int, float))
    assert stalled >= 1
    assert isinstance(failed, int)
    attempts, requests = summary.values["attempts"], summary.values["requests"]
    assert isinstance(attempts, int)
    assert isinstance(requests, int)
    # One of which nothing was sent yet is tried again.
    assert failed >= 1 or attempts > requests
    assert summary.values["documents_counted"] is not None


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ('kind = "partition"\nat = "1s"', 'how long does it last\\? Add for = "5s"'),
        ('kind = "pause"\nat = "8s"\nfor = "5s"', "it ends after the measurement"),
        ('kind = "profile"\nat = "1s"\nfor = "1s"', "fault profile: which one"),
        ('kind = "profile"\nprofile = "ethernet"\nat = "1s"\nfor = "1s"', "cannot turn into"),
        ('kind = "parttion"\nat = "1s"', "is not one of"),
    ],
)
def test_a_fault_that_cannot_happen_is_refused_before_anything_starts(tmp_path: Path, fault: str, message: str) -> None:
    (tmp_path / "x.toml").write_text(f'{SINK}measure = "9s"\n[network]\nprofile = "loopback"\n[[fault]]\n{fault}\n')
    with pytest.raises(SpecError, match=message):
        campaign.preflight(order.order(spec.load(str(tmp_path / "x.toml"))), RunOptions())


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_a_measurement_begins_where_its_own_data_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they say of a busy machine: every number is cut by it, and a better detector may say it anew."""
    sought = SINK.replace('"1s"', '"auto"') + 'measure = "3s"\narrivals = "100/s"\n[network]\nprofile = "loopback"\n'
    results, (summary,) = carried_out(tmp_path, sought)
    assert summary.state == "measured", summary.reason
    (record,) = results.records().values()
    planned = results.plan.runs[0]
    folder = results.run(planned)
    report = window.report(folder, planned.cell)
    assert report is not None
    assert record.warm_up_ns == report.warm_up_end_ns - report.started_monotonic_ns
    assert 0 <= record.warm_up_ns <= 3 * 10**9
    assert (record.measure_start_realtime_ns, record.measure_end_realtime_ns) == (
        summary.measure_start_ns,
        summary.measure_end_ns,
    )
    assert report.measure_end_ns - report.warm_up_end_ns == 3 * 10**9
    assert report.load_end_ns - report.started_monotonic_ns == 6 * 10**9
    # One is counted where it is sent, and a busy machine sends some a few moments after they were due.
    assert summary.values["requests"] == pytest.approx(300, abs=10)
    assert summary.values["documents_counted"] == 600 * 200
    # What the load left is as it was: the window stands beside it, and is found anew.
    written = (folder.load / "load.json").read_bytes()
    assert json.loads(written)["measure_end_ns"] == report.load_end_ns
    at_once = dataclasses.replace(report, warm_up_end_ns=report.started_monotonic_ns)
    with monkeypatch.context() as patched:
        patched.setattr(steady, "settled", lambda *_: at_once)
        again = evaluation.run_summary(results.plan, planned, folder, record)
    assert again.measure_start_ns == report.started_monotonic_ns + report.realtime_minus_monotonic_ns
    assert (folder.load / "load.json").read_bytes() == written
    after_s = summary.values["steady_after_s"]
    if after_s is None:
        assert any("second half" in remark.text for remark in summary.remarks)
    else:
        assert after_s == pytest.approx(record.warm_up_ns / 1e9, abs=1e-6)
    assert evaluation.summaries(results) == [summary]


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
@pytest.mark.parametrize(
    ("kind", "more"),
    [("heap", ""), ("direct", '"sink.buffers" = "direct"\n')],
)
def test_a_server_that_runs_out_of_memory_is_a_result_with_its_kind_and_its_numbers(
    kind: str, more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The sink keeps whole bodies: 8 users hold 80 MB at once, and one body is more than what is there off the heap.
    text = SINK.replace('"256m"', '"64m"\njvm = ["-XX:MaxDirectMemorySize=8m"]').replace("users = 2", "users = 8")
    text = (
        text.replace("bulk_documents = 200", "bulk_documents = 20000")
        + 'measure = "6s"\n[network]\nprofile = "loopback"\n'
    )
    (tmp_path / "x.toml").write_text(f'{text}[target.setting]\n"sink.hold" = "true"\n{more}')
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(app, ["run", "x.toml"], standalone_mode=False, terminal_width=300)
    assert answer.exception is None
    (row,) = evaluation.kept(next((tmp_path / "results" / "x").iterdir()))
    assert (row.state, row.reason.split(":")[0], row.values["out_of_memory"]) == ("oom", kind, kind)
    assert f"OOM ({kind})" in " ".join(answer.output.split())
    for name in ("bytes_sent", "reads", "gc_pauses", "heap_after_gc_max_bytes", "out_of_memory_after_s"):
        value = row.values[name]
        assert isinstance(value, (int, float))
        assert value > 0


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_an_out_of_memory_error_that_a_server_survived_is_told_beside_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Bodies of two users, 5 MB each, have room one after the other, not at the same time.
    text = SINK.replace('"256m"', '"256m"\njvm = ["-XX:MaxDirectMemorySize=8m"]')
    text = text.replace("bulk_documents = 200", "bulk_documents = 10000") + 'measure = "6s"\n'
    (tmp_path / "x.toml").write_text(f'{text}[target.setting]\n"sink.hold" = "true"\n"sink.buffers" = "direct"\n')
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(app, ["run", "x.toml"], standalone_mode=False, terminal_width=300)
    assert answer.exception is None
    (row,) = evaluation.kept(next((tmp_path / "results" / "x").iterdir()))
    assert (row.state, row.values["out_of_memory"]) == ("measured", "direct"), row.reason
    acked, after_s = row.values["documents_acked"], row.values["out_of_memory_after_s"]
    assert isinstance(acked, int)
    assert acked > 0
    assert isinstance(after_s, float)
    assert 0 < after_s < 10
    assert "the server had an OutOfMemoryError and lived on: direct: " in " ".join(answer.output.split())


@pytest.mark.nightly
@pytest.mark.ordinary
@pytest.mark.jvm
@pytest.mark.netns
def test_a_hopeless_run_is_aborted_while_it_runs_and_says_why_and_ends_with_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = SINK.replace('"256m"', '"256m"\nsetting = { "sink.broken" = "30%" }')
    (tmp_path / "x.toml").write_text(faulty + 'arrivals = "50/s"\nmeasure = "10min"\nabort = "errors > 5% for 2s"\n')
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(app, ["run", "x.toml", "--last-frames"], standalone_mode=False, terminal_width=300)
    assert (answer.exception, answer.return_value) == (None, 3)
    said = " ".join(answer.output.split())
    assert "aborted: only/1: aborted by errors > 5% for 2s: errors " in said
    folder = next((tmp_path / "results" / "x").iterdir())
    (row,) = evaluation.kept(folder)
    assert (row.state, row.reason.partition(":")[0]) == ("aborted", "aborted by errors > 5% for 2s")
    for name in ("requests", "requests_failed", "docs_per_s_mean", "response_ms_p99", "generator_cpu_percent"):
        value = row.values[name]
        assert isinstance(value, (int, float))
        assert value > 0
    # The headers of its last frames are there for whoever asks why, up to the end of its load.
    (path,) = folder.rglob("*.pcap")
    assert f"{path.relative_to(path.parents[1])} (" in said
    seen = capture.read(path)
    (report,) = (run_folder.RunFolder(each.parent.parent).load_report() for each in folder.rglob("load/load.json"))
    assert report is not None
    ended_s = (report.measure_end_ns + report.realtime_minus_monotonic_ns) / 1e9
    assert seen.ended_s == pytest.approx(ended_s, abs=3)
    assert len(seen.frames) > 100
    assert seen.connections
    # It is a result: to resume does nothing, and the report is the same.
    again = CliRunner().invoke(app, ["run", "--resume", str(folder)], standalone_mode=False, terminal_width=300)
    assert (again.exception, again.return_value) == (None, 3)
    assert not list(folder.rglob("*.broken-*"))


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_queries_beside_the_indexing_are_counted_apart_from_it(tmp_path: Path) -> None:
    mixed = (
        'measure = "2s"\narrivals = "20/s"\nprocesses = 2\nquery_arrivals = "50/s"\n[factors]\nquery_users = [1, 3]\n'
    )
    results, found = carried_out(tmp_path, SINK + mixed)
    assert len(found) == 2
    for summary in found:
        assert summary.state == "measured", summary.reason
        # One of the warm-up may still be under way when the measurement begins.
        assert summary.values["requests"] in (40, 41)
        assert summary.values["queries"] in (100, 101, 102)
        assert summary.values["bytes_read"] == summary.values["bytes_sent"]
        assert summary.values["documents_counted"] == summary.values["documents_acked"] == 60 * 200
        assert summary.values["query_ms_p50"] is not None
    failures = {summary.run: summary.values["queries_failed"] for summary in found}
    for run in results.plan.runs:
        queries = results.run(run).queries()
        assert queries is not None
        assert len(queries) == 150
        seen = queries.whole()
        failed = seen[seen["outcome"] != OUTCOMES.index("ok")]
        assert failures[run.id] == len(failed)
        # On a busy machine the one user may not be free for the last query when the load ends: it is never sent.
        assert len(failed) <= 1
        assert not failed["attempts"].any()
    folder = results.run(results.plan.runs[0])
    queries, report = folder.queries(), folder.load_report()
    assert queries is not None
    assert report is not None
    assert queries.whole()["bytes_sent"].sum() + folder.samples().whole()["bytes_sent"].sum() == report.bytes_written


TRACK = Path(__file__).parent / "data" / "track"


def of_track(folder: Path, choice: str, target: str) -> tuple[Results, Summary, RunRecord]:
    results, (summary,) = carried_out(folder, f"probes = ['reads', 'gc']\n[load.track]\n{choice}\n[target]\n{target}")
    (record,) = results.records().values()
    assert summary.state == "measured", summary.reason
    assert summary.values["bytes_read"] == summary.values["bytes_sent"]
    assert summary.values["documents_counted"] == summary.values["documents_acked"]
    assert summary.values["workload"] == "track"
    return results, summary, record


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_a_track_is_run_as_it_is_and_again_from_its_plan(tmp_path: Path) -> None:
    results, summary, record = of_track(tmp_path, f"path = '{TRACK}'", "name = 'sink'\nheap = '256m'")
    assert summary.values["documents_acked"] == 1200 + 300
    assert summary.values["requests"] == 12 + 6
    assert record.skipped == ("recent (search)", "sleep")
    names = [stage.name for stage in record.stages]
    assert names[3:8] == ["delete-index", "create-index", "check-cluster-health", "index-rides", "index-places"]
    shutil.rmtree(results.run(results.plan.runs[0]).path)
    (again,) = campaign.carry_out(layout.open_results(results.path), RunOptions(), Silent())
    assert (again.state, again.values["documents_counted"]) == ("measured", 1500)


@pytest.mark.nightly
@pytest.mark.opensearch
@pytest.mark.netns
def test_a_track_is_run_on_opensearch_by_two_processes(tmp_path: Path) -> None:
    choice = f"path = '{TRACK}'\ntest_mode = true\n[load]\nprocesses = 2"
    _, summary, _ = of_track(tmp_path, choice, "name = 'opensearch'\nheap = '512m'")
    assert summary.values["documents_counted"] == 1000 + 300


STREAMS = Path(__file__).parent / "data" / "streams"


@pytest.mark.nightly
@pytest.mark.opensearch
@pytest.mark.netns
def test_parallel_tasks_fill_a_data_stream_and_an_index_at_the_same_time_until_the_named_one_is_done(
    tmp_path: Path,
) -> None:
    text = f"probes = ['gc']\n[load.track]\npath = '{STREAMS}'\n[target]\nname = 'opensearch'\nheap = '512m'"
    results, (summary,) = carried_out(tmp_path, text)
    assert summary.state == "measured", summary.reason
    (record,) = results.records().values()
    assert "index-logs + index-rides" in [stage.name for stage in record.stages]
    folder = results.run(results.plan.runs[0])
    logs, rides = (
        np.concatenate([np.fromfile(path, dtype=SAMPLE) for path in folder.load.glob(f"*-{name}/samples-*.bin")])
        for name in ("index-logs", "index-rides")
    )
    assert (int(logs["documents_acked"].sum()), len(logs)) == (2000, 20)
    # Two requests a second, of a hundred: it was ended with the other one, and what it sent is there.
    assert 1 <= len(rides) < 50
    assert summary.values["documents_counted"] == summary.values["documents_acked"]
    assert summary.values["documents_acked"] == 2000 + int(rides["documents_acked"].sum())
    assert rides["sent_ns"].min() < logs["done_ns"].max()


@pytest.mark.nightly
@pytest.mark.opensearch
@pytest.mark.netns
def test_ready_bulk_bodies_are_counted_in_their_own_indices_however_often_they_are_sent(tmp_path: Path) -> None:
    lines = (
        f'{{"index": {{"_index": "{index}", {own}}}}}\n{{"vendor_id": "{number}"}}\n'
        for number in range(200)
        for index, own in (("first", f'"_id": "{number}"'), ("second", '"routing": "1"'))
    )
    (tmp_path / "bulk.json").write_text("".join(lines))
    text = SINK.replace("sink", "opensearch").replace("256m", "512m") + 'measure = "2s"\n'
    _, (summary,) = carried_out(tmp_path, text + f"documents = '{tmp_path / 'bulk.json'}'\n")
    assert summary.state == "measured", summary.reason
    acked, counted = summary.values["documents_acked"], summary.values["documents_counted"]
    assert isinstance(acked, int)
    assert isinstance(counted, int)
    assert counted == 200 + acked / 2


@pytest.mark.nightly
@pytest.mark.ordinary
@pytest.mark.opensearch
@pytest.mark.netns
def test_an_opensearch_flushes_again_and_again_and_its_large_allocations_are_known(tmp_path: Path) -> None:
    text = SINK.replace("sink", "opensearch").replace("256m", "512m").replace('"gc"', '"gc", "large-allocations"')
    fault = '[[fault]]\nkind = "flush"\nat = "500ms"\nevery = "1s"\n'
    _, (summary,) = carried_out(tmp_path, f'{text}measure = "3s"\n{fault}')
    assert summary.state == "measured", summary.reason
    assert {fault.kind for fault in summary.faults} == {"flush"}
    assert 1 <= len(summary.faults) <= 3
    values = summary.values
    assert isinstance(values["largest_allocation_bytes"], int)
    assert values["largest_allocation_bytes"] > 0
    assert values["largest_allocation_stack"]
    # A heap of 512 MiB has regions of 1 MiB: each object of so much is humongous.
    assert values["allocations_humongous"] == values["allocations_1mib"]
    assert values["documents_counted"] == values["documents_acked"]


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_the_faults_of_a_run_that_ends_out_of_memory_are_kept(tmp_path: Path) -> None:
    # More and more bodies are held at once, in the end far more than the heap has room for.
    text = SINK.replace("256m", "28m").replace("users = 2\n", 'users = 150\narrivals = "ramp 1/s..300/s 8s"\n')
    text = text.replace("bulk_documents = 200", "bulk_documents = 2000").replace('"1s"', '"500ms"')
    held = '[target.setting]\n"sink.hold" = "true"\n"sink.delay" = "600ms"\n'
    fault = '[[fault]]\nkind = "gc"\nat = "100ms"\n'
    _, (summary,) = carried_out(tmp_path, f'{text}measure = "20s"\n{held}{fault}')
    assert summary.state == "oom", summary.reason
    assert [each.kind for each in summary.faults] == ["gc"]
