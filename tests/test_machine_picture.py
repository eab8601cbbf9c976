"""Settings of the machine over time: what was drawn, for whom, and what not."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable

import made_summaries as made
import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from test_plots import assert_readable, figures, texts

from ingest_bench.model.results import Series, Summary
from ingest_bench.report import REPORTS
from ingest_bench.report.plots import plots_machine

SECOND = 10**9


def series(name: str, value: Callable[[float], float], per_s: int = 10) -> Series:
    moments = [made.START_NS + number * SECOND // per_s for number in range(-2 * per_s, 60 * per_s)]
    return Series(name, tuple(moments), tuple(value((at - made.START_NS) / 1e9) for at in moments))


def run(level: str, fault: str, replicate: int = 1) -> Summary:
    """A minute in which fragmented memory makes a valley at 30 s."""
    in_valley = fault == "fragmented" and level == "always"
    rate = series("docs_per_s", lambda at: 400.0 if in_valley and 30 <= at < 33 else 1000 + 33 * at, per_s=1)
    found = [
        rate,
        series("server_cpu_system_cores", lambda at: 1.4 if in_valley and 30 <= at < 33 else 0.1),
        series("server_context_switches_per_s", lambda at: 4000 + 50 * at),
        series("server_page_faults_per_s", lambda _: 300.0),
        series("compact_stall_per_s", lambda at: 20.0 if in_valley and at > 30 else 0.0),
        series("numa_pages_migrated_per_s", lambda _: 0.0),
    ]
    levels = {"host.transparent_hugepages": level, "fault": fault}
    summary = made.summary(levels, replicate, series={each.name: each for each in found})
    return made.changed(summary, values={"docs_per_s_p10": 500.0 if in_valley else 1100.0})


ALL = [run(level, fault) for level, fault in itertools.product(("always", "madvise", "never"), ("none", "fragmented"))]


def drawn(found: list[Summary]) -> Figure:
    with figures() as saved:
        assert plots_machine.machine(found) is not None
    (figure,) = saved
    return figure


def test_each_level_is_a_column_and_each_fault_a_line_on_one_scale() -> None:
    figure = drawn(ALL)
    rows = 5
    assert len(figure.axes) == 3 * rows
    first = figure.axes[:3]
    assert [len(axes.lines) for axes in first] == [2, 2, 2]
    assert len({axes.get_ylim() for axes in first}) == 1
    # The valley of three seconds is there, at its place and depth.
    at, rates = np.array(first[0].lines[1].get_data())
    assert at[rates < 500].tolist() == [30.5, 31.5, 32.5]
    words = [text.get_text() for text in texts(figure)]
    for wanted in ("transparent hugepages always", "— fault none", "— fault fragmented", "Its context switches/s"):
        assert wanted in words
    # What stayed at 0 has no panel, and is named.
    assert "0 at all times: Pages moved between NUMA nodes/s" in words


def test_what_was_not_counted_is_neither_drawn_nor_called_0() -> None:
    blind = [made.changed(each, series={k: v for k, v in each.series.items() if "numa" not in k}) for each in ALL]
    words = " ".join(text.get_text() for text in texts(drawn(blind)))
    assert "NUMA" not in words


def test_no_text_is_beyond_the_edges_or_over_another() -> None:
    assert_readable(drawn(ALL))


def test_eight_lines_and_long_names_of_lines_and_columns_stay_apart_and_on_the_page() -> None:
    faults = ("none", "fragmented", "W" * 200, "x" * 100, "d", "e", "f", "g")
    figure = drawn([run(level, fault) for level in ("always", "W" * 100, "x" * 100, "never") for fault in faults])
    assert sum(text.get_text().startswith("— fault") for text in texts(figure)) == len(faults)
    assert_readable(figure)


def test_the_report_has_it_where_a_setting_varies_and_was_watched() -> None:
    files = REPORTS["pictures"](ALL)
    assert Image.open(io.BytesIO(files["report/machine.png"])).width > 1000
    assert plots_machine.machine([made.with_series(made.summary({"network": "ethernet"}))]) is None
    assert plots_machine.machine([made.changed(each, series={}) for each in ALL]) is None
    invalid = [made.changed(each, state="invalid", reason="promise broken") for each in ALL]
    assert plots_machine.machine(invalid) is None
