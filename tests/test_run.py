"""Complete runs: experiment file, server, namespaces, load, probes and summary."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from typer.testing import CliRunner

from ingest_bench.cli.app import app
from ingest_bench.experiment import spec
from ingest_bench.lab import buffer_advice, campaign, evaluation
from ingest_bench.lab.runner import RunOptions
from ingest_bench.model.results import ColumnValue, Summary
from ingest_bench.model.samples import SAMPLE
from ingest_bench.network.measure import capture
from ingest_bench.results import layout
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


def carried_out(folder: Path, text: str, options: RunOptions | None = None) -> tuple[Results, list[Summary]]:
    (folder / "x.toml").write_text(text)
    ordered = spec.build_plan(spec.load_experiment(str(folder / "x.toml")))
    campaign.check_machine(ordered, RunOptions())
    results = layout.create_results(folder / "results", ordered, {})
    return results, campaign.run_missing(results, options or RunOptions(), Mock())


def run_command(*words: str) -> tuple[int, str]:
    """Run the command; return its exit code and its output as one line."""
    answer = CliRunner().invoke(app, words, standalone_mode=False, terminal_width=300)
    assert answer.exception is None
    return answer.return_value, " ".join(answer.output.split())


def number(row: Summary | Mapping[str, ColumnValue], column: str) -> float:
    """Return a number of a run, or of one of its nodes."""
    value = (row.values if isinstance(row, Summary) else row)[column]
    assert isinstance(value, (int, float)), column
    return value


@pytest.mark.ordinary
@pytest.mark.jvm
@pytest.mark.netns
def test_run_of_each_cell_is_measured_and_its_counts_agree(tmp_path: Path) -> None:
    text = SINK + 'measure = "2s"\n[factors]\nnetwork = ["loopback", "ethernet"]\n'
    results, summaries = carried_out(tmp_path, text, RunOptions(last_frames=True))
    assert {summary.state for summary in summaries} == {"measured"}, [summary.reason for summary in summaries]
    for summary in summaries:
        assert summary.values["bytes_read"] == summary.values["bytes_sent"]
        assert summary.values["documents_counted"] == summary.values["documents_acked"]
        assert summary.values["sink_bytes_read"] == summary.values["bytes_sent"]
        assert summary.values["sink_reads"] == summary.values["reads_recorded"]
    sizes = {summary.values["network"]: summary.values["wire_bytes_p50"] for summary in summaries}
    assert sizes["ethernet"] == 1514
    # Deleted because the runs went well.
    assert not list(results.path.rglob("*.pcap"))
    assert len((results.path / "summary.csv").read_text().splitlines()) == 3


@pytest.mark.jvm
@pytest.mark.netns
def test_bursts_are_sent_at_once_and_the_memory_that_they_leave_is_known(tmp_path: Path) -> None:
    # On a busy machine a burst takes half a second.
    text = SINK.replace('"gc"', '"host", "direct-memory"').replace('"1s"', '"3s"').replace("users = 2", "users = 5")
    text += 'arrivals = "burst 5 3s"\nprocesses = 2\nmeasure = "3s"\n[network]\nprofile = "loopback"\n'
    results, (row,) = carried_out(tmp_path, text)
    assert row.state == "measured", row.reason
    assert row.values["bytes_sent"] == row.values["bytes_read"] == row.values["sink_bytes_read"]
    assert row.values["documents_acked"] == row.values["documents_counted"] == 2 * 5 * 200
    assert row.values["docs_per_s_mean"] == pytest.approx(5 * 200 / 3)
    assert (row.values["arrivals_waited"], row.values["zero_throughput_s"]) == (0, None)
    folder = results.run_folder(results.plan.runs[0])
    samples = np.concatenate([np.fromfile(path, dtype=SAMPLE) for path in sorted(folder.load.glob("samples-*.bin"))])
    due_ns = np.unique(samples["scheduled_ns"])
    assert np.diff(due_ns).tolist() == [3 * 10**9]
    for at_ns in due_ns:
        assert sorted(samples["user"][samples["scheduled_ns"] == at_ns]) == [0, 1, 2, 3, 4]
    # The GC log has whole MiB of the two collections around the load.
    log = (folder.nodes(1)[0].raw / "gc.log").read_text()
    before, after = (int(mib) for mib in re.findall(r"Pause Full \(Diagnostic Command\) \d+M->(\d+)M", log))
    assert number(row, "heap_retained_after_idle_bytes") / 2**20 == pytest.approx(after - before, abs=1)
    assert number(row, "rss_retained_after_idle_bytes") < number(row, "server_rss_max_bytes")
    for memory in ("direct", "rss"):
        assert 0 <= number(row, f"{memory}_retained_s") <= 3
    evaluation.write_report(results, [row])
    assert "burst sent within" in (results.path / "report/bursts.md").read_text()


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_allocations_of_the_sink_agree_with_predictions_from_its_reads(tmp_path: Path) -> None:
    text = SINK + 'measure = "2s"\n[factors]\nreceive_predictor = ["16KiB", "64KiB", "64KiB..256KiB"]\n'
    results, summaries = carried_out(tmp_path, text)
    assert {summary.state for summary in summaries} == {"measured"}, [summary.reason for summary in summaries]
    small, large, adaptive = buffer_advice.predict_costs(results, summaries)
    assert small.source == large.source == large.cell
    assert abs(small.error) < 0.10
    # From its own reads the prediction is exact: the same buffers, counted twice.
    assert large.error == pytest.approx(0, abs=1e-9)
    assert adaptive.cost.is_extrapolated
    evaluation.write_report(results, summaries)
    assert (results.path / "report/predicted.csv").read_text().count("its own reads") == 1
    code, output = run_command("recommend", "--buffers", str(results.path))
    assert (code, output.count("recommended: ")) == (0, 3)


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_automatic_warm_up_is_computed_from_the_samples(tmp_path: Path) -> None:
    sought = SINK.replace('"1s"', '"auto"') + 'measure = "3s"\narrivals = "100/s"\n[network]\nprofile = "loopback"\n'
    results, (summary,) = carried_out(tmp_path, sought)
    assert summary.state == "measured", summary.reason
    (record,) = results.read_records().values()
    planned = results.plan.runs[0]
    folder = results.run_folder(planned)
    report = evaluation.load_measured_report(folder, planned.cell)
    assert report is not None
    assert record.warm_up_ns == report.warm_up_end_ns - report.started_monotonic_ns
    assert 0 <= record.warm_up_ns <= 3 * 10**9
    assert (record.measure_start_realtime_ns, record.measure_end_realtime_ns) == (
        summary.measure_start_ns,
        summary.measure_end_ns,
    )
    assert report.measure_end_ns - report.warm_up_end_ns == 3 * 10**9
    assert report.load_end_ns - report.started_monotonic_ns == 6 * 10**9
    # A busy machine sends some requests shortly after they were due, thus in the measurement.
    assert summary.values["requests"] == pytest.approx(300, abs=10)
    assert summary.values["documents_counted"] == 600 * 200
    # The load's own files have no detected start, so that another detector can be applied to them.
    assert json.loads((folder.load / "load.json").read_text())["measure_end_ns"] == report.load_end_ns
    after_s = summary.values["steady_after_s"]
    if after_s is None:
        assert any("second half" in remark.text for remark in summary.notes)
    else:
        assert after_s == pytest.approx(record.warm_up_ns / 1e9, abs=1e-6)
    assert evaluation.summarise_runs(results) == [summary]


HOLD = '[target.setting]\n"sink.hold" = "true"\n'
DIRECT = '"sink.buffers" = "direct"\n'


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
@pytest.mark.parametrize(
    ("state", "kind", "settings", "shown"),
    [
        # The sink keeps whole bodies: 8 users hold 80 MB at once.
        ("oom", "heap", ("64m", 8, 20_000, ""), "OOM (heap)"),
        # One body is larger than the direct memory.
        ("oom", "direct", ("64m", 8, 20_000, DIRECT), "OOM (direct)"),
        # Bodies of two users, 5 MB each, fit one after the other, but not at the same time.
        ("measured", "direct", ("256m", 2, 10_000, DIRECT), "the server continued after an OutOfMemoryError (1 of 1)"),
    ],
)
def test_out_of_memory_is_reported_with_its_kind_time_and_numbers(
    state: str,
    kind: str,
    settings: tuple[str, int, int, str],
    shown: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heap, users, documents, more = settings
    text = SINK.replace('"256m"', f'"{heap}"\njvm = ["-XX:MaxDirectMemorySize=8m"]')
    text = text.replace("users = 2", f"users = {users}").replace("documents = 200", f"documents = {documents}")
    (tmp_path / "x.toml").write_text(f'{text}measure = "6s"\n[network]\nprofile = "loopback"\n{HOLD}{more}')
    monkeypatch.chdir(tmp_path)
    _, output = run_command("run", "x.toml")
    assert shown in output
    (row,) = evaluation.read_summaries(next((tmp_path / "results" / "x").glob("20*")))
    assert (row.state, row.values["out_of_memory"]) == (state, kind), row.reason
    assert state == "measured" or row.reason.startswith(f"{kind}:")
    assert 0 < number(row, "out_of_memory_after_s") < 10
    for name in ("bytes_sent", "reads", "gc_pauses", "heap_after_gc_max_bytes"):
        assert number(row, name) > 0


@pytest.mark.nightly
@pytest.mark.ordinary
@pytest.mark.jvm
@pytest.mark.netns
def test_run_is_aborted_by_its_condition_and_exits_with_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty = SINK.replace('"256m"', '"256m"\nsetting = { "sink.broken" = "30%" }')
    (tmp_path / "x.toml").write_text(faulty + 'arrivals = "50/s"\nmeasure = "10min"\nabort = "errors > 5% for 2s"\n')
    monkeypatch.chdir(tmp_path)
    code, output = run_command("run", "x.toml", "--last-frames", "-v")
    assert code == 3
    assert "aborted: only/1: aborted by errors > 5% for 2s: errors " in output
    folder = next((tmp_path / "results" / "x").glob("20*"))
    (row,) = evaluation.read_summaries(folder)
    assert (row.state, row.reason.partition(":")[0]) == ("aborted", "aborted by errors > 5% for 2s")
    for name in ("requests", "requests_failed", "docs_per_s_mean", "response_ms_p99", "generator_cpu_percent"):
        assert number(row, name) > 0
    # The headers of its last frames are kept up to the end of its load.
    (path,) = folder.rglob("*.pcap")
    assert f"{path.relative_to(path.parents[1])} (" in output
    records = capture.read_capture(path)
    (report,) = (layout.RunFolder(item.parent.parent).read_load_report() for item in folder.rglob("load/load.json"))
    assert report is not None
    ended_s = (report.measure_end_ns + report.realtime_minus_monotonic_ns) / 1e9
    assert records.ended_s == pytest.approx(ended_s, abs=3)
    assert len(records.frames) > 100
    assert records.connections
    # It is a result: to resume does nothing, and the report is the same.
    assert run_command("run", "--resume", str(folder))[0] == 3
    assert not list(folder.rglob("*.broken-*"))


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_queries_are_counted_separately_from_indexing(tmp_path: Path) -> None:
    mixed = (
        'measure = "2s"\narrivals = "20/s"\nprocesses = 2\nquery_arrivals = "50/s"\n[factors]\nquery_users = [1, 3]\n'
    )
    results, summaries = carried_out(tmp_path, SINK + mixed)
    assert len(summaries) == 2
    for summary in summaries:
        assert summary.state == "measured", summary.reason
        # One of the warm-up may still be under way when the measurement begins.
        assert summary.values["requests"] in (40, 41)
        assert summary.values["queries"] in (100, 101, 102)
        assert summary.values["bytes_read"] == summary.values["bytes_sent"]
        assert summary.values["documents_counted"] == summary.values["documents_acked"] == 60 * 200
        assert summary.values["query_ms_p50"] is not None
        # On a busy machine the one user may not be free for the last query when the load ends: it is never sent.
        assert number(summary, "queries_failed") <= 1
    folder = results.run_folder(results.plan.runs[0])
    queries, report = folder.queries(), folder.read_load_report()
    assert queries is not None
    assert report is not None
    assert (
        queries.load_all()["bytes_sent"].sum() + folder.samples().load_all()["bytes_sent"].sum() == report.bytes_written
    )


TRACK = Path(__file__).parent / "data" / "track"


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_track_is_run_and_repeated_from_its_plan(tmp_path: Path) -> None:
    text = f"probes = ['reads', 'gc']\n[load.track]\npath = '{TRACK}'\n[target]\nname = 'sink'\nheap = '256m'"
    results, (summary,) = carried_out(tmp_path, text)
    (record,) = results.read_records().values()
    assert summary.state == "measured", summary.reason
    assert summary.values["workload"] == "track"
    assert summary.values["bytes_read"] == summary.values["bytes_sent"]
    assert summary.values["documents_counted"] == summary.values["documents_acked"] == 1200 + 300
    assert summary.values["requests"] == 12 + 6
    assert record.skipped == ("recent (search)", "sleep")
    names = [stage.name for stage in record.phases]
    assert names[3:8] == ["delete-index", "create-index", "check-cluster-health", "index-rides", "index-places"]
    shutil.rmtree(results.run_folder(results.plan.runs[0]).path)
    (again,) = campaign.run_missing(layout.open_results(results.path), RunOptions(), Mock())
    assert (again.state, again.values["documents_counted"]) == ("measured", 1500)


STREAMS = Path(__file__).parent / "data" / "streams"


@pytest.mark.nightly
@pytest.mark.opensearch
@pytest.mark.netns
def test_parallel_tasks_end_with_the_completing_one(tmp_path: Path) -> None:
    text = f"probes = ['gc']\n[load.track]\npath = '{STREAMS}'\n[target]\nname = 'opensearch'\nheap = '512m'"
    results, (summary,) = carried_out(tmp_path, text)
    assert summary.state == "measured", summary.reason
    (record,) = results.read_records().values()
    assert "index-logs + index-rides" in [stage.name for stage in record.phases]
    folder = results.run_folder(results.plan.runs[0])
    logs, rides = (
        np.concatenate([np.fromfile(path, dtype=SAMPLE) for path in folder.load.glob(f"*-{name}/samples-*.bin")])
        for name in ("index-logs", "index-rides")
    )
    assert (int(logs["documents_acked"].sum()), len(logs)) == (2000, 20)
    # Ended with the other task after a few of its 100 requests, which are kept.
    assert 1 <= len(rides) < 50
    assert summary.values["documents_counted"] == summary.values["documents_acked"]
    assert summary.values["documents_acked"] == 2000 + int(rides["documents_acked"].sum())
    assert rides["sent_ns"].min() < logs["done_ns"].max()


@pytest.mark.nightly
@pytest.mark.ordinary
@pytest.mark.opensearch
@pytest.mark.netns
def test_repeated_flushes_of_opensearch_and_its_large_allocations(tmp_path: Path) -> None:
    text = SINK.replace("sink", "opensearch").replace("256m", "512m").replace('"gc"', '"gc", "large-allocations"')
    fault = '[[fault]]\nkind = "flush"\nat = "500ms"\nevery = "1s"\n'
    _, (summary,) = carried_out(tmp_path, f'{text}measure = "3s"\n{fault}')
    assert summary.state == "measured", summary.reason
    assert {fault.kind for fault in summary.faults} == {"flush"}
    assert 1 <= len(summary.faults) <= 3
    values = summary.values
    assert number(summary, "largest_allocation_bytes") > 0
    assert values["largest_allocation_stack"]
    # A heap of 512 MiB has regions of 1 MiB: each object of 1 MiB is humongous.
    assert values["allocations_humongous"] == values["allocations_1mib"]
    assert values["documents_counted"] == values["documents_acked"]


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_faults_of_an_out_of_memory_run_are_kept(tmp_path: Path) -> None:
    # More and more bodies are held at once, in the end far more than the heap has room for.
    text = SINK.replace("256m", "28m").replace("users = 2\n", 'users = 150\narrivals = "ramp 1/s..300/s 8s"\n')
    text = text.replace("bulk_documents = 200", "bulk_documents = 2000").replace('"1s"', '"500ms"')
    held = '[target.setting]\n"sink.hold" = "true"\n"sink.delay" = "600ms"\n'
    fault = '[[fault]]\nkind = "gc"\nat = "100ms"\n'
    _, (summary,) = carried_out(tmp_path, f'{text}measure = "20s"\n{held}{fault}')
    assert summary.state == "oom", summary.reason
    assert [item.kind for item in summary.faults] == ["gc"]
