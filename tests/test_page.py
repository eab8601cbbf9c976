from __future__ import annotations

import dataclasses
import itertools
import math
import re
from html import escape
from html.parser import HTMLParser
from urllib.parse import unquote

import made_summaries as made
import pytest

from ingest_bench.analysis.compare import cells, comparison
from ingest_bench.analysis.stalls.sentences import OF_STALL
from ingest_bench.model.results import Remark, Series
from ingest_bench.report import REPORTS
from ingest_bench.report.page import charts, distributions, html, intervals, page
from ingest_bench.report.tables import headline

FOUR = made.experiment(replicates=2, network=["loopback", "ethernet"], receive_predictor=["32KiB", "512KiB"])


class Tags(HTMLParser):
    """The tags that are open, and every address that the page wants."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wanted: list[str] = []
        self.sources: list[str] = []
        self.named: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.wanted += [value for name, value in attrs if name == "href" and value]
        self.named += [value for name, value in attrs if name == "id" and value]
        self.sources += [value for name, value in attrs if name == "src" and value]
        if tag not in ("meta", "img", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_wants_only_files_that_the_reports_write() -> None:
    runs = [made.with_series(run) for run in FOUR]
    files = {name: content for report in REPORTS.values() for name, content in report(runs).items()}
    tags = Tags()
    tags.feed(files["report/index.html"].decode())
    assert tags.open == []
    assert all(name.startswith("data:image/png;base64,") for name in tags.sources)
    found = {unquote("report/" + name).replace("report/../", "") for name in tags.wanted if not name.startswith("#")}
    assert found <= set(files)
    assert {name for name in files if name.endswith(".png")} <= found
    # Each cell's row leads to its runs.
    places = [name.removeprefix("#") for name in tags.wanted if name.startswith("#")]
    assert set(places) == {f"cell-{number}" for number in range(1, 5)}
    assert set(places) <= set(tags.named)
    assert len([name for name in files if "time-" in name]) == 4


def test_cells_that_differ_in_a_letter_that_no_file_name_has_both_have_a_picture_over_time() -> None:
    runs = [made.with_series(made.summary({"workload": name})) for name in ("my_docs", "my-docs")]
    names = sorted(name for name in REPORTS["pictures"](runs) if "time-" in name)
    assert len(names) == 2
    assert "report/time-workload=my-docs.png" in names


def test_nothing_on_the_page_comes_from_elsewhere() -> None:
    text = page.index([made.with_series(run) for run in FOUR], {"reads.png": page.Picture(b"x", "x")})
    # The only address is the name of SVG for the script, which nobody asks anything.
    assert re.findall(r"https?:[^\"]*|@import.*|url\([^#].*|fetch\(.*|<link.*|src=(?!\"data:).*", text) == [
        "http://www.w3.org/2000/svg"
    ]


def test_a_title_has_what_differs_between_the_cells_and_nothing_else() -> None:
    alike = [made.changed(run, cell=f"{run.cell}+heap=1g", levels={**run.levels, "heap": "1g"}) for run in FOUR]
    text = page.index(alike, {})
    assert len(re.findall(r"<h2[^>]*>network ethernet, receive predictor 32KiB</h2>", text)) == 1
    assert "heap 1g" not in text


def test_a_name_from_a_run_cannot_become_markup() -> None:
    bad = made.changed(FOUR[0], state="invalid", reason="<img src=x onerror=alert(1)>")
    text = page.index([bad, *FOUR[1:]], {})
    assert "<img src=x" not in text
    assert "&lt;img src=x" in text


def test_the_layers_are_drawn_only_when_allocations_were_measured() -> None:
    assert "report/layers.png" in REPORTS["pictures"](FOUR)
    without = [made.changed(run, values={"outside_tlab_network_bytes": None}) for run in FOUR]
    assert "report/layers.png" not in REPORTS["pictures"](without)


def test_an_experiment_without_a_valid_run_still_has_a_page_that_says_so() -> None:
    files = REPORTS["pictures"]([made.changed(run, state="failed", reason="it died") for run in FOUR])
    assert "No valid run" in files["report/index.html"].decode()
    assert "it died" in files["report/index.html"].decode()


def test_histograms_and_response_times_of_all_cells_share_an_axis() -> None:
    rows = cells.group(FOUR)
    drawn = distributions.reads(rows).split("<h3>")[1:]
    # Where the tallest bar of each cell ends: the buffer, on loopback; 512 KiB is four powers of two beyond 32 KiB.
    ends = []
    for text in drawn[:2]:
        bars = re.findall(r'<rect class="bar" x="([0-9.]+)" y="[0-9.]+" width="([0-9.]+)" height="([0-9.]+)"', text)
        tallest = max(bars, key=lambda bar: float(bar[2]))
        assert float(tallest[2]) == 100
        ends.append(float(tallest[0]) + float(tallest[1]))
    octave = float(re.findall(r'<text x="([0-9.]+)"[^>]*>64 KiB', drawn[0])[0])
    octave -= float(re.findall(r'<text x="([0-9.]+)"[^>]*>16 KiB', drawn[0])[0])
    assert ends[1] - ends[0] == pytest.approx(2 * octave, abs=0.3)
    slow = made.changed(FOUR[0], values={"response_ms_p50": 10, "response_ms_p99": 1000, "response_ms_max": 1000})
    (curve,) = distributions.responses(cells.group([slow])).split("<h3>")[1:]
    assert "50% within 10 ms, 99% within 1,000 ms, all within 1,000 ms" in curve
    heights = [float(y) for y in re.findall(r'cy="([0-9.]+)"', curve)]
    assert heights == [108, 8, 8]
    decades = made.changed(FOUR[0], values={"response_ms_p50": 0.02, "response_ms_p99": 5, "response_ms_max": 900_000})
    (curve,) = distributions.responses(cells.group([decades])).split("<h3>")[1:]
    labels = re.findall(r'<text x="([0-9.]+)" y="([0-9.]+)" text-anchor="end">([^<]+)', curve)
    assert [text for _, _, text in labels] == ["0.01 ms", "1 ms", "100 ms", "10 s", "1000 s"]
    # A letter of 12 pixels is about 7 wide.
    assert all(float(right) >= 7 * len(text) for right, _, text in labels)
    tops = [float(y) for _, y, _ in labels]
    assert min(below - above for below, above in itertools.pairwise(tops)) > 16
    none = made.changed(FOUR[0], histograms={}, values=dict.fromkeys(FOUR[0].values))
    assert not distributions.reads(cells.group([none]))
    assert not distributions.responses(cells.group([none]))


def test_reads_of_one_byte_have_a_bar() -> None:
    single = made.changed(FOUR[0], histograms={"read_bytes": {1: 9}})
    drawn = distributions.reads(cells.group([single]))
    ((left, width, height),) = re.findall(
        r'class="bar" x="([0-9.]+)" y="[0-9.]+" width="([0-9.]+)" height="([0-9.]+)', drawn
    )
    one_byte = float(re.findall(r'<text x="([0-9.]+)"[^>]*>1 B', drawn)[0])
    assert float(left) + float(width) == pytest.approx(one_byte, abs=0.2)
    assert (float(width) > 5, float(height)) == (True, 100)


def test_a_long_run_keeps_its_peaks_and_what_is_no_number_is_left_out() -> None:
    run = made.with_series(FOUR[0])
    moments = tuple(made.START_NS + second * 10**9 for second in range(86_400))
    values = [100.0] * len(moments)
    values[12_345], values[23_456], values[34_567] = 9_000.0, 1.0, math.nan
    day = Series("docs_per_s", moments, tuple(values))
    chart = charts.run(made.changed(run, series={"docs_per_s": day}, measure_end_ns=moments[-1]))
    assert chart is not None
    (line,) = chart["panels"][0]["lines"]
    assert len(line["points"]) <= 4000
    assert {(12_345.0, 9_000.0), (23_456.0, 1.0)} <= set(line["points"])
    assert "NaN" not in page.index([made.changed(run, series={"docs_per_s": day})], {})


def test_the_axis_begins_with_the_load_and_not_with_the_boot_of_the_server() -> None:
    run = made.with_series(FOUR[0])
    heap = Series("heap_bytes", (made.START_NS - 60 * 10**9, made.START_NS), (1e6, 2e6))
    chart = charts.run(made.changed(run, series={**run.series, "heap_bytes": heap}))
    assert chart is not None
    assert (chart["from"], chart["to"]) == (-5, 60)


def test_a_wide_table_is_small_and_no_line_ends_between_a_number_and_its_unit() -> None:
    small, wide = html.table([["size"] * 12, ["64 KiB of 1 s"] * 12]), html.table([["size"] * 13, ["1,514 B"] * 13])
    assert "<table>" in small
    assert '<table class="dense">' in wide
    assert "64&nbsp;KiB of 1&nbsp;s<" in small
    assert "1,514&nbsp;B<" in wide


def test_a_change_beyond_the_scale_is_an_arrow_at_its_end_also_with_one_run_a_side() -> None:
    runs = made.experiment(replicates=1, network=["loopback", "ethernet"])
    slow = made.changed(runs[1], values={"response_ms_p99": 9_000.0})
    found = [
        each for each in comparison.table([runs[0], slow], comparison.COMPARED) if each.column == "response_ms_p99"
    ]
    (row,) = re.findall("<svg.*?</svg>", intervals.drawn(found))
    # 400 wide with 14 left at each end.
    assert '<polygon class="point" points="393.0,13 386.0,7 386.0,19"/>' in row


def test_beside_response_times_stands_what_the_closed_loop_hides_of_them() -> None:
    values = {"response_ms_p50": 10, "response_ms_p99": 122, "response_ms_max": 3400, "requests_answered": 6000}
    run = made.changed(FOUR[0], values={**values, "idle_while_waiting_s": 8.0})
    calm = made.changed(FOUR[0], replicate=3, values={**values, "idle_while_waiting_s": 2.0})
    (curve,) = distributions.responses(cells.group([calm, run])).split("<h3>")[1:]
    assert "closed loop: each user sent nothing for 8.0 of 60.0 s on average, which no percentile has" in curve
    assert "an open loop has it: arrivals=100/s or less" in curve
    (curve,) = distributions.responses(cells.group([made.changed(FOUR[0], values=values)])).split("<h3>")[1:]
    assert "closed loop" not in curve


def test_each_stall_is_in_a_table_and_its_cause_is_on_the_axis_of_time() -> None:
    run = made.with_series(FOUR[0], fault=True)
    text = page.index([run, *FOUR[1:]], {})
    row = text.partition("Stalls: when requests waited")[2].partition("</table>")[0].replace("&nbsp;", " ")
    for expected in ("20.00 to 31.00", "packets lost on the network 11.000 s", "12 answers meanwhile"):
        assert expected in row
    drawn = charts.run(run)
    assert drawn is not None
    assert drawn["stalls"] == [{"cause": "packets lost on the network", "from": 20.0, "to": 31.0}]
    assert "Stalls: when requests waited" not in page.index(FOUR, {})
    # The notes do not say it again.
    told = (Remark(probe=OF_STALL, text="20.00-31.00 s: 1 of 4"), Remark(probe="load", text="a link of 1 Gbit/s"))
    text = page.index([dataclasses.replace(run, remarks=told)], {})
    assert "a link of 1 Gbit/s" in text
    assert "20.00-31.00 s" not in text


def test_the_finding_stands_first_on_the_page() -> None:
    body = page.index(FOUR, {}).partition("<body")[2].partition(">")[2]
    first, second = re.findall(r"<(?:h1|h2|p|table)[ >].*", body)[:2]
    assert first == f"<h1>{escape(headline.reads(FOUR))}</h1>"
    assert headline.reads(FOUR).startswith("A socket read carries")
    assert "<h1" not in second
