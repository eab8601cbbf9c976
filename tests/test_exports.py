"""Optional exports of a report: pictures as SVG, and `summary.parquet`."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import example_summaries as made
import pytest

from ingest_bench.cli import app
from ingest_bench.errors import MissingCapability
from ingest_bench.lab import evaluation
from ingest_bench.model.results import ColumnValue, Summary
from ingest_bench.report import plot_cells, summary_files
from ingest_bench.report.reports import build_svg

TWO = made.experiment(replicates=2, network=["loopback", "ethernet"])


def read_parquet(runs: Sequence[Summary]) -> Any:
    pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ingest-bench[parquet]'")
    import pyarrow.parquet  # noqa: PLC0415 - optional

    return pyarrow.parquet.read_table(io.BytesIO(summary_files.format_parquet(runs)))


def test_each_picture_is_also_an_svg_with_reproducible_bytes() -> None:
    def build() -> dict[str, bytes]:
        return {"report/reads.png": plot_cells.draw_picture("reads", TWO[:1]) or b"", "summary.csv": b"text"}

    svgs = build_svg(build)
    assert list(svgs) == ["report/reads.svg"]
    root = ElementTree.fromstring(svgs["report/reads.svg"])  # noqa: S314 - drawn by us
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    # 13.33 inches of 72 points each.
    assert float(root.attrib["width"].removesuffix("pt")) == pytest.approx(959.76, abs=25)
    assert build_svg(build) == svgs
    # Later pictures are PNG again.
    assert build()["report/reads.png"].startswith(b"\x89PNG")


def test_parquet_has_the_columns_of_summary_csv_with_types() -> None:
    runs = [made.changed(TWO[0], values={"gc_pauses": None, "out_of_memory": "heap"}), *TWO[1:]]
    table = read_parquet(runs)
    head, *rows = summary_files.format_summary_csv(runs).splitlines()
    assert table.column_names == head.split(",")
    assert table.num_rows == len(rows) == 4
    types = {name: str(table.schema.field(name).type) for name in table.column_names}
    assert types["documents_acked"] == types["gc_pauses"] == types["replicate"] == "int64"
    assert types["docs_per_s_mean"] == types["zero_throughput_s"] == "double"
    assert types["out_of_memory"] == types["network"] == types["state"] == "string"
    assert table.column("gc_pauses").to_pylist() == [run.values["gc_pauses"] for run in runs]
    assert table.column("gc_pauses").null_count == 1
    assert table.column("instrumented").to_pylist() == [False] * 4


@pytest.mark.parametrize(
    ("values", "kind", "read"),
    [
        ((2**53 + 1, 0.5, None, 3), "double", [2.0**53, 0.5, None, 3.0]),
        ((2**63, 1, 1, 1), "double", [2.0**63, 1.0, 1.0, 1.0]),
        ((2**63 - 1, -1, 0, None), "int64", [2**63 - 1, -1, 0, None]),
        ((1, "x", 0.5, None), "string", ["1", "x", "0.5", None]),
        ((None, None, None, None), "double", [None] * 4),
    ],
)
def test_type_of_a_parquet_column_fits_all_its_values(
    values: Sequence[ColumnValue], kind: str, read: list[ColumnValue]
) -> None:
    runs = [made.changed(run, values={"bytes_read": value}) for run, value in zip(TWO, values, strict=True)]
    table = read_parquet(runs)
    assert str(table.schema.field("bytes_read").type) == kind
    assert table.column("bytes_read").to_pylist() == read


def test_missing_pyarrow_is_named_before_any_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingCapability, match=r"pip install 'ingest-bench\[parquet\]'"):
        summary_files.format_parquet(TWO)
    (tmp_path / "plan.json").write_text("{}")
    monkeypatch.setattr(evaluation, "require_summaries", lambda *_: pytest.fail("raw files were read"))
    assert app.run(["report", str(tmp_path), "--parquet"]) == 4
    assert "--parquet: this Python has no pyarrow" in capsys.readouterr().err
