"""What a report makes beside CSV and PNG: SVG of the same pictures, and a table with types."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import made_summaries as made
import pytest

from ingest_bench.cli import app
from ingest_bench.errors import MissingCapability
from ingest_bench.lab import evaluation
from ingest_bench.model.results import Value
from ingest_bench.report import REPORTS, parquet_table, vector
from ingest_bench.report.tables import text_tables

TWO = made.experiment(replicates=2, network=["loopback", "ethernet"])


def test_each_picture_is_there_as_svg_and_the_same_summaries_give_the_same_bytes() -> None:
    runs = [made.with_series(run) for run in TWO]
    pictures = REPORTS["pictures"](runs)
    drawn = vector(lambda: REPORTS["pictures"](runs))
    assert set(drawn) == {name.replace(".png", ".svg") for name in pictures if name.endswith(".png")}
    for content in drawn.values():
        root = ElementTree.fromstring(content)  # noqa: S314 - drawn by us
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        # 13.33 inches are 72 points each.
        assert float(root.attrib["width"].removesuffix("pt")) == pytest.approx(959.76, abs=0.1)
    assert vector(lambda: REPORTS["pictures"](runs)) == drawn
    # What is drawn afterwards is PNG again.
    assert REPORTS["pictures"](runs)["report/reads.png"] == pictures["report/reads.png"]


def test_the_table_with_types_has_the_columns_of_summary_csv_and_null_for_what_is_unknown() -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ingest-bench[parquet]'")
    import pyarrow.parquet as files  # noqa: PLC0415 - it may not be there

    runs = [made.changed(TWO[0], values={"gc_pauses": None, "out_of_memory": "heap"}), *TWO[1:]]
    table = files.read_table(io.BytesIO(parquet_table(runs)["summary.parquet"]))
    head, *rows = text_tables.summary_csv(runs).splitlines()
    assert table.column_names == head.split(",")
    assert table.num_rows == len(rows) == 4
    types = {name: str(table.schema.field(name).type) for name in table.column_names}
    assert types["documents_acked"] == types["gc_pauses"] == types["replicate"] == "int64"
    assert types["docs_per_s_mean"] == types["silent_s"] == "double"
    assert types["out_of_memory"] == types["network"] == types["state"] == "string"
    assert table.column("gc_pauses").to_pylist() == [run.values["gc_pauses"] for run in runs]
    assert table.column("gc_pauses").null_count == 1
    assert table.column("docs_per_s_mean").to_pylist() == [run.values["docs_per_s_mean"] for run in runs]
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
def test_a_column_takes_whatever_numbers_and_texts_its_runs_have(
    values: Sequence[Value], kind: str, read: list[Value]
) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ingest-bench[parquet]'")
    import pyarrow.parquet as files  # noqa: PLC0415 - it may not be there

    runs = [made.changed(run, values={"bytes_read": value}) for run, value in zip(TWO, values, strict=True)]
    table = files.read_table(io.BytesIO(parquet_table(runs)["summary.parquet"]))
    assert str(table.schema.field("bytes_read").type) == kind
    assert table.column("bytes_read").to_pylist() == read


def test_without_pyarrow_it_is_said_how_to_get_it_before_any_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingCapability, match=r"pip install 'ingest-bench\[parquet\]'"):
        parquet_table(TWO)
    (tmp_path / "plan.json").write_text("{}")

    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(evaluation, "summaries", never)
    assert app.run(["report", str(tmp_path), "--parquet"]) == 4
    said = " ".join(capsys.readouterr().err.split())
    assert "--parquet: this Python has no pyarrow" in said
    assert "pip install 'ingest-bench[parquet]'" in said
