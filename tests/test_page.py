"""The page: well-formed, self-contained, with charts and icicles that are never too large."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
from html import escape
from html.parser import HTMLParser

import example_summaries as made
import pytest

from ingest_bench.analysis.compare import cells, comparison
from ingest_bench.analysis.compare.comparison import Comparison
from ingest_bench.analysis.stalls.attribution import STALL_SOURCE
from ingest_bench.model.results import Note, Series
from ingest_bench.report import (
    cell_tables,
    change_tables,
    headline,
    page,
    page_charts,
    plot_cells,
    plot_over_time,
    reports,
)
from ingest_bench.report.reports import REPORTS

FOUR = made.experiment(replicates=2, network=["loopback", "ethernet"], receive_predictor=["32KiB", "512KiB"])
STACKS = {
    "outside TLABs;a.Main.run;io.netty.Buffers.take;byte[]": 6000,
    "outside TLABs;a.Main.run;io.netty.Buffers.take;int[]": 1000,
    "new TLABs;a.Main.run;java.util.List.of;byte[]": 2996,
    "new TLABs;a.Main.run;a.Rare.one;byte[]": 3,
    "new TLABs;a.Main.run;a.Rare.two;byte[]": 1,
}
RUN = made.changed(made.summary({"network": "ethernet"}), stacks=STACKS)


class Tags(HTMLParser):
    """Open tags, and every address and anchor of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []
        self.anchors: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if name == "href" and value]
        self.anchors += [value for name, value in attrs if name == "id" and value]
        self.sources += [value for name, value in attrs if name == "src" and value]
        if tag not in ("meta", "img", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_well_formed_and_has_its_data() -> None:
    runs = [made.with_series(run) for run in made.experiment(replicates=1, network=["loopback", "ethernet"])]
    files = {name: content for report in REPORTS.values() for name, content in report(runs).items()}
    facts = {"cpu": "EPYC", "cores": 2, "kernel": "6.18", "ingest_bench": "0.1.0", "command": "ingest-bench run <made>"}
    text = reports.build_page(runs, files, facts)["report/index.html"].decode()
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    # The finding is first, and nothing is loaded: the only address is the namespace of SVG in the script.
    assert re.findall(r"<(?:h1|h2|p|table)[ >].*", text)[0] == f"<h1>{escape(headline.describe_finding(runs))}</h1>"
    assert re.findall(r"https?:[^\"]*|@import.*|url\([^#].*|fetch\(.*|<link.*", text) == ["http://www.w3.org/2000/svg"]
    assert all(name.startswith("data:image/png;base64,") for name in tags.sources)
    # No link leads to a file: the page may be sent by mail.
    attached = [name for name in tags.links if not name.startswith("#")]
    assert all(name.startswith("data:") for name in attached)
    (summary_csv,) = re.findall('download="summary.csv" href="data:text/plain;base64,([^"]*)"', text)
    assert base64.b64decode(summary_csv) == files["summary.csv"]
    # The row of each cell links to its runs.
    anchors = [name.removeprefix("#") for name in tags.links if name.startswith("#")]
    assert set(anchors) == {f"cell-{number}" for number in (1, 2)}
    assert set(anchors) <= set(tags.anchors)
    assert len([name for name in files if "time-" in name]) == 2
    assert "made · opensearch 2.19.6 · heap 1 GiB · 2 CPUs EPYC · kernel 6.18 · 2023-11-14 22:13 UTC" in text
    assert "<code>ingest-bench run &lt;made&gt;</code>" in text


def test_files_beyond_the_limit_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_MAX_ATTACHED_BYTES", 5)
    text = page.render_results(FOUR, {}, files={"a.csv": b"12345", "report/b.csv": b"6"})
    assert 'download="a.csv"' in text
    assert "b.csv (in the results folder)" in text


def test_picture_that_the_page_draws_itself_is_not_embedded() -> None:
    names = ("layers.png", "reads.png", "time-a.png", "large-allocations.png")
    text = page.render_results(FOUR, dict.fromkeys(names, b"x"))
    assert re.findall('<img [^>]*alt="([^"]*)"', text) == ["allocations outside TLABs by layer"]
    # Unless it answers the question: then it is the first one.
    runs = [dataclasses.replace(run, headline="largest_allocation_bytes") for run in FOUR]
    images = re.findall('<img [^>]*alt="([^"]*)"', page.render_results(runs, dict.fromkeys(names, b"x")))
    assert images == ["heap over time, and objects of 1 MiB and more", "allocations outside TLABs by layer"]


def test_cells_that_differ_in_a_special_character_have_different_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot_over_time, "draw_timeline", lambda _: b"drawn")
    monkeypatch.setattr(plot_cells, "draw_picture", lambda *_: None)
    runs = [made.with_series(made.summary({"workload": name})) for name in ("my_docs", "my-docs")]
    names = sorted(name for name in REPORTS["pictures"](runs) if "time-" in name)
    assert len(names) == 2
    assert "report/time-workload=my-docs.png" in names


def test_title_of_a_cell_has_only_levels_that_vary() -> None:
    same_heap = [made.changed(run, cell=f"{run.cell}+heap=1g", levels={**run.levels, "heap": "1g"}) for run in FOUR]
    text = page.render_results(same_heap, {})
    assert len(re.findall(r"<h2[^>]*>network ethernet, receive predictor 32KiB</h2>", text)) == 1
    assert "heap 1g" not in text


def draw_responses(**values: float | None) -> str:
    row = made.changed(FOUR[0], values=values)
    (curve,) = page_charts.draw_response_times(cells.group_by_cell([row])).split("<h3>")[1:]
    return curve


def test_response_times_are_on_a_logarithmic_axis_interrupted_where_one_is_unknown() -> None:
    values = {"response_ms_p50": 10, "response_ms_p99": 1000, "response_ms_p999": None, "response_ms_max": 1000}
    curve = draw_responses(**values)
    assert "50% within 10 ms, 99% within 1,000 ms, all within 1,000 ms" in curve
    assert [float(y) for y in re.findall(r'cy="([0-9.]+)"', curve)] == [108, 8, 8]
    (path,) = re.findall('class="line first" d="([^"]*)"', curve)
    assert [part[0] for part in path.split(" ")] == ["M", "L", "M"]
    assert "closed loop" not in curve
    hidden = draw_responses(**values, requests_answered=6000, idle_while_waiting_s=8.0)
    assert "closed loop: each user sent nothing for 8.0 of 60.0 s on average" in hidden


def test_main_table_has_few_columns_with_errors_and_says_what_is_worse() -> None:
    failed = {"requests": 4000, "requests_failed": 8, "errors": "timeout 8"}
    runs = [made.changed(FOUR[0], values={"docs_per_s_mean": 20_000.0, "requests": 4000, "requests_failed": 0})]
    runs += [made.changed(FOUR[-1], values={"docs_per_s_mean": 15_000.0, "read_bytes_mean": 98_304.0, **failed})]
    table = page.render_results(runs, {}).partition("<table")[2].partition("</table>")[0].replace("&nbsp;", " ")
    heads = re.findall("<th[^>]*>(.*?)</th>", table)
    assert len(heads) == 7
    assert re.sub("<[^>]*>", "", " ".join(heads)).endswith("errors")
    # The first column is that of the factors; every other head has its definition.
    assert all(head.startswith("<abbr title=") for head in heads[1:])
    assert '15,000 <span class="worse">-25% worse</span>' in table
    assert ">0.2% timeout 8</td>" in table
    rejected = made.changed(runs[1], values={"requests": 8})
    assert ">100% timeout 8</td>" in page.render_results([runs[0], rejected], {})


def test_large_ratio_has_no_exponent() -> None:
    runs = made.experiment(2, network=["loopback", "ethernet"])
    docs = (10.0, 0.1, 12_000.0, 12_100.0)
    runs = [made.changed(run, values={"docs_per_s_mean": value}) for run, value in zip(runs, docs, strict=True)]
    assert headline.build_tiles(runs)[2].answer.startswith("2,386 times")
    finding = headline.describe_finding(runs, "docs_per_s_mean")
    assert "2386 times (" in finding
    assert "or more)" in finding
    change = Comparison(column="x", first="a", second="a", first_runs=2, second_runs=2, first_mean=1, second_mean=1)
    assert change_tables.format_interval(dataclasses.replace(change, sides=None, step_interval=(1199.0, 2399.0))) == (
        "1,200 to 2,400 times"
    )


@pytest.mark.parametrize("facts", [{"cpu": "EPYC"}, {"kernel": 6}, {"cores": 2}])
def test_page_names_the_facts_that_are_known(facts: dict[str, object]) -> None:
    assert "<h1>" in page.render_results(FOUR, {}, facts=facts)


def test_cause_of_many_failures_is_on_the_page_once_and_of_each_run_in_its_cell() -> None:
    failed = [dataclasses.replace(run, state="failed", reason="no disk left", values={}) for run in FOUR]
    first, *sections = page.render_results(failed, {}).split("<section")
    assert first.count("no disk left") == 1
    assert f"failed in {len(FOUR)} runs" in first
    assert "".join(sections).count("no disk left") == len(FOUR)


def test_page_begins_with_length_and_errors_and_ends_with_notes() -> None:
    values = {"requests": 4000, "requests_failed": 8, "measured_seconds": 59.9}
    text = page.render_results(
        [made.changed(FOUR[0], values=values, notes=(Note(source="load", text="late loop"),))], {}
    )
    first, *sections = text.split("<section")
    assert "2023-11-14 22:13 UTC · 60 s measured" in first
    assert "<li>Errors: 8 of 4,000 requests (0.20%) failed" in first
    assert "<td>22:13:20</td>" in sections[-2].replace(' class="number"', "")
    assert "late loop" in sections[-1]


def test_each_head_of_a_topic_has_its_own_definition() -> None:
    for topic in cell_tables.TOPICS.values():
        assert len({column.head for column in topic.columns}) == len(topic.columns)
        assert all(column.meaning for column in topic.columns)
    run = made.changed(FOUR[0], values={"outside_tlab_count": 5, "outside_tlab_max_bytes": 4096})
    text = reports.build_page([run], {}, {})["report/index.html"].decode()
    table = text.partition("The table of Elasticsearch issue 23185")[2].partition("</thead>")[0]
    assert len(re.findall('<abbr title="[^"]+">', table)) == len(cell_tables.TOPICS["es-23185"].columns)


def test_receive_buffer_is_marked_and_the_first_factor_has_colours() -> None:
    cards = page_charts.draw_read_sizes(cells.group_by_cell(FOUR))
    assert re.findall('<div class="(level-[0-9])">', cards) == ["level-0"] * 2 + ["level-1"] * 2
    assert cards.count('<line class="buffer"') == 4
    assert "dashed: buffer, 512 KiB" in cards


def test_histograms_of_all_cells_share_an_axis() -> None:
    cards = page_charts.draw_read_sizes(cells.group_by_cell(FOUR)).split("<h3>")[1:]
    # The right edge of the tallest bar is the buffer size on loopback: 32 and 512 KiB.
    ends = []
    for text in cards[:2]:
        bars = re.findall(r'<rect class="bar" x="([0-9.]+)" y="[0-9.]+" width="([0-9.]+)" height="([0-9.]+)"', text)
        tallest = max(bars, key=lambda bar: float(bar[2]))
        assert float(tallest[2]) == 100
        ends.append(float(tallest[0]) + float(tallest[1]))
    labels = {text: float(x) for x, text in re.findall(r'<text x="([0-9.]+)"[^>]*>([0-9]+ KiB)', cards[0])}
    # Four powers of two.
    assert ends[1] - ends[0] == pytest.approx(2 * (labels["64 KiB"] - labels["16 KiB"]), abs=0.3)
    assert 'class="bar"' in page_charts.draw_read_sizes(
        cells.group_by_cell([made.changed(FOUR[0], histograms={"read_bytes": {1: 9}})])
    )
    none = made.changed(FOUR[0], histograms={}, values=dict.fromkeys(FOUR[0].values))
    assert not page_charts.draw_read_sizes(cells.group_by_cell([none]))
    assert not page_charts.draw_response_times(cells.group_by_cell([none]))


def test_chart_of_a_long_run_keeps_its_peaks_and_drops_nan() -> None:
    moments = tuple(made.START_NS + second * 10**9 for second in range(86_400))
    values = [100.0] * len(moments)
    values[12_345], values[23_456], values[34_567] = 9_000.0, 1.0, math.nan
    day = Series("docs_per_s", moments, tuple(values))
    run = made.changed(made.with_series(FOUR[0]), series={"docs_per_s": day}, measure_end_ns=moments[-1])
    chart = page_charts.chart_data(run)
    assert chart is not None
    (line,) = chart["panels"][0]["lines"]
    assert len(line["points"]) <= 4000
    assert {(12_345.0, 9_000.0), (23_456.0, 1.0)} <= set(line["points"])
    # The axis begins with the load.
    assert chart["from"] == 0
    assert "NaN" not in page.render_results([run], {})


def test_change_beyond_the_scale_is_an_arrow_without_an_interval() -> None:
    runs = made.experiment(replicates=1, network=["loopback", "ethernet"])
    slow = made.changed(runs[1], values={"response_ms_p99": 9_000.0})
    changes = comparison.compare_pairs([runs[0], slow], ["response_ms_p99"])
    (row,) = re.findall("<svg.*?</svg>", page_charts.draw_intervals(changes))
    # 400 wide with 14 left at each end.
    assert '<polygon class="point" points="393.0,13 386.0,7 386.0,19"/>' in row


def test_stall_is_in_the_table_and_on_the_chart_but_not_in_the_notes() -> None:
    run = made.with_series(FOUR[0], fault=True)
    text = page.render_results([run, *FOUR[1:]], {})
    section = text.partition("Stalls: when requests waited")[2].partition("</section>")[0].replace("&nbsp;", " ")
    total, row = section.split("</table>")[:2]
    assert '>packets lost on the network</td><td class="number" data-head="stalls">1</td>' in total
    assert "<summary>All 1 stalls</summary>" in row
    for expected in ("20.00 to 31.00", "packets lost on the network 11.000 s", "meanwhile"):
        assert expected in row
    chart = page_charts.chart_data(run)
    assert chart is not None
    assert chart["stalls"] == [{"cause": "packets lost on the network", "from": 20.0, "to": 31.0}]
    assert "Stalls: when requests waited" not in page.render_results(FOUR, {})
    notes = (Note(source=STALL_SOURCE, text="20.00-31.00 s: 1 of 4"), Note(source="load", text="a link of 1 Gbit/s"))
    text = page.render_results([dataclasses.replace(run, notes=notes)], {})
    assert "a link of 1 Gbit/s" in text
    assert "20.00-31.00 s" not in text


def test_stacks_are_files_in_folded_form_whose_names_fit_a_folder() -> None:
    long = f"predictor={'x' * 220}"
    names = ["buffer=a_b/1", "buffer=a-b/1", "buffer=a+b=1/1", f"{long}y/1-instrumented", f"{long}z/1-instrumented"]
    files = REPORTS["allocations"]([dataclasses.replace(RUN, run=name) for name in names])
    assert len(files) == len(names)
    assert {len(name.removeprefix("report/")) <= 235 for name in files} == {True}
    lines = files["report/allocations-buffer=a_b-1.folded"].decode().splitlines()
    assert lines[0] == "new TLABs;a.Main.run;a.Rare.one;byte[] 3"
    assert {frames: int(size) for frames, _, size in (line.rpartition(" ") for line in lines)} == STACKS


def test_narrow_frames_are_merged_and_counted() -> None:
    icicles = page_charts.build_icicles([RUN])
    (graph,) = icicles.graphs.values()
    assert [(depth, icicles.names[name], size) for depth, name, size in graph["nodes"]] == [
        (0, "all", 10000),
        (1, "outside TLABs", 7000),
        (2, "a.Main.run", 7000),
        (3, "io.netty.Buffers.take", 7000),
        (4, "byte[]", 6000),
        (4, "int[]", 1000),
        (1, "new TLABs", 3000),
        (2, "a.Main.run", 3000),
        (3, "java.util.List.of", 2996),
        (4, "byte[]", 2996),
        (3, "(smaller)", 4),
    ]
    assert graph["merged"] == 4
    few = made.changed(RUN, stacks={**STACKS, "new TLABs;a.Main.run;a.Rare.one;byte[]": 19})
    text = page_charts.icicle_figure(few, page_charts.build_icicles([few]), is_open=True)
    assert "0.2% are in frames below 0.2% each, which are merged." in text
    assert "All stacks: allocations-network=ethernet-1.folded" in text


def frames(way: str, depth: int) -> str:
    return ";".join(f"p.{way}.m{number}" for number in range(depth))


def test_icicle_has_at_most_the_4000_widest_frames_however_deep() -> None:
    many = {f"new TLABs;{frames(f'C{way}', 100)};byte[]": 1 for way in range(300)}
    deep = {f"new TLABs;{frames('C', 2048)};byte[]": 10}
    graph, narrow = (
        page_charts.build_icicles([made.changed(RUN, stacks=stacks)]).data["graphs"][0] for stacks in (many, deep)
    )
    assert len(graph["nodes"]) <= 4001
    assert (graph["merged"], narrow["merged"]) == (300, 0)
    assert graph["least"] > 0.002
    assert [depth for depth, _, _ in narrow["nodes"]] == list(range(2051))


def test_page_limits_its_icicles_and_links_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [made.changed(run, stacks=STACKS) for run in made.experiment(replicates=2, network=["loopback", "ethernet"])]
    size = len(json.dumps(page_charts.build_icicles(runs[:1]).data))
    monkeypatch.setattr(page_charts, "MAX_ICICLE_BYTES", 2 * size)
    icicles = page_charts.build_icicles(runs)
    # The first run of each cell comes before the second of any.
    assert list(icicles.graphs)[:2] == ["network=loopback/1", "network=ethernet/1"]
    assert "network=ethernet/2" not in icicles.graphs
    assert len(json.dumps(icicles.data)) <= 2 * size
    long = made.changed(RUN, stacks={f"new TLABs;{'x' * 5 * size};byte[]": 1})
    assert page_charts.build_icicles([long]).data == {"names": [], "graphs": []}
    text = page.render_results(runs, {})
    assert re.search(
        r"network=ethernet/2: allocations by stack are not drawn.*allocations-network=ethernet-2.folded", text
    )
    assert len(re.findall("<details open>", text)) == 2
    assert "<summary>network=ethernet/1" not in page.render_results([made.summary({"network": "ethernet"})], {})
