"""Synthetic documents: sizes, distributions and seeds."""

from __future__ import annotations

import bz2
import dataclasses
import json
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ingest_bench.documents import words
from ingest_bench.documents.generators import GENERATORS, options_record
from ingest_bench.documents.lines import read_chunks
from ingest_bench.documents.synthetic import (
    BLOCK_DOCUMENTS,
    SPECIAL,
    DocumentGenerator,
    check_workload,
    write_documents,
)
from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog
from ingest_bench.inputs import files, records
from ingest_bench.model.load import DocumentField, Workload

WORKLOADS = sorted(files.data_files("workloads"))


@cache
def shipped_documents(name: str) -> list[bytes]:
    """Return at least 1,000 documents of a shipped workload, generated once for all tests."""
    documents = DocumentGenerator(catalog.load_workload(name), 1, limit=2048)
    return [text for number in range(-(-1000 // documents.size)) for text in documents.block(number)]


def workload(*fields: dict[str, Any]) -> Workload:
    tables = catalog.group_field_options([{"distinct": 1024, **field} for field in fields], "test")
    specs = tuple(DocumentField(**table) for table in tables)
    return dataclasses.replace(catalog.load_workload("nyc_taxis"), name="test", fields=specs)


def documents(*fields: dict[str, Any], seed: int = 1, block: int = 0) -> list[dict[str, Any]]:
    return [json.loads(text) for text in DocumentGenerator(workload(*fields), seed).block(block)]


@pytest.mark.parametrize("name", WORKLOADS)
def test_shipped_workload_has_mapped_fields_and_the_published_mean_size(name: str) -> None:
    shipped = catalog.load_workload(name)
    check_workload(shipped)
    block = shipped_documents(name)
    mean = sum(len(text) + 1 for text in block) / len(block)
    assert mean == pytest.approx(shipped.mean_document_bytes, rel=0.05)
    for text in block[:500]:
        assert b"\n" not in text
        assert set(json.loads(text)) <= set(shipped.mapping["mappings"]["properties"])


def test_seed_determines_the_documents() -> None:
    fare = {"name": "fare", "kind": "decimal", "minimum": 1, "maximum": 99, "median": 9}
    spot = {"name": "spot", "kind": "point", "places": [{"latitude": 40, "longitude": -73, "spread": 1}]}
    taxis = workload({"name": "n", "kind": "phrase", "minimum": 1, "maximum": 3}, fare, spot)
    first, again, other = DocumentGenerator(taxis, 7), DocumentGenerator(taxis, 7), DocumentGenerator(taxis, 8)
    assert first.block(3) == again.block(3)
    assert first.block(3) != other.block(3)
    assert first.block(3) != first.block(4)


def test_workers_generate_each_block_once() -> None:
    generator = DocumentGenerator(workload({"name": "n", "kind": "id"}), 1)
    halves = [generator.blocks(0, 2), generator.blocks(1, 2)]
    numbers = [json.loads(text)["n"] for half in halves for _ in range(2) for text in next(half)]
    assert sorted(numbers) == list(range(4 * BLOCK_DOCUMENTS))


def test_choice_is_as_frequent_as_its_weight() -> None:
    values = [
        document["n"]
        for document in documents({"name": "n", "kind": "choice", "choices": ["a", "b"], "weights": [9, 1]})
    ]
    assert values.count("b") / len(values) == pytest.approx(0.1, abs=0.03)


def test_field_is_present_in_a_share_of_the_documents() -> None:
    first = {"name": "n", "kind": "id"}
    generated = documents(first, {"name": "m", "kind": "constant", "value": None, "present": 0.25})
    assert sum("m" in document for document in generated) / len(generated) == pytest.approx(0.25, abs=0.04)


def test_fields_of_one_row_are_consistent() -> None:
    a = {"name": "a", "kind": "decimal", "minimum": 1, "maximum": 9, "row": "r"}
    total = {"name": "c", "kind": "sum", "of": ["a", "a"], "row": "r"}
    start = {"name": "start", "kind": "date", "start": "2015-01-01", "end": "2015-02-01", "row": "r"}
    end = {"name": "end", "kind": "after", "of": "start", "median": "10min", "row": "r"}
    generated = documents(a, total, start, end)
    for document in generated:
        assert document["c"] == pytest.approx(2 * document["a"], abs=0.011)
        assert document["start"] <= document["end"]
    assert any(document["start"] < document["end"] for document in generated)


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/New_York"])
def _zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the time zone of the machine."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_zone")
def test_dates_do_not_depend_on_the_time_zone() -> None:
    def second(start: str, end: str) -> str:
        return str(documents({"name": "n", "kind": "date", "start": start, "end": end})[0]["n"])

    assert second("2015-03-08", "2015-03-08T00:00:01") == "2015-03-08 00:00:00"
    assert second("2015-03-08T02:30:00", "2015-03-08T02:30:01") == "2015-03-08 02:30:00"
    assert second("0001-01-01", "0001-01-01T00:00:01").endswith("1-01-01 00:00:00")
    assert second("9999-12-31T23:59:58", "9999-12-31T23:59:59") == "9999-12-31 23:59:58"


def test_words_follow_zipfs_law() -> None:
    text = {"name": "n", "kind": "text", "mean": 20000, "vocabulary": 5000}
    counts_by_word: dict[str, int] = {}
    for document in documents(text)[:40]:
        for word in document["n"].lower().replace(".", "").replace(",", "").split():
            counts_by_word[word] = counts_by_word.get(word, 0) + 1
    counts = sorted(counts_by_word.values(), reverse=True)
    assert max(counts_by_word, key=counts_by_word.__getitem__) == "the"
    # Mandelbrot: rank 1 against rank 100 is ((100 + 2.7) / (1 + 2.7)) ** 1.07 = 35.
    assert 20 < counts[0] / counts[99] < 60


def test_text_lengths_have_the_exact_mean() -> None:
    sizes = [len(document["n"]) for document in documents({"name": "n", "kind": "text", "mean": 3000})]
    assert sum(sizes) / len(sizes) == pytest.approx(3000, rel=0.01)
    assert min(sizes) < 1500
    assert max(sizes) > 6000


def test_objects_have_fields_and_lists_have_values() -> None:
    inner = {"name": "tags", "kind": "list", "minimum": 1, "maximum": 3, "items": {"kind": "code", "pattern": "A9"}}
    for document in documents({"name": "o", "kind": "object", "fields": [inner, {"name": "i", "kind": "id"}]})[:50]:
        assert 1 <= len(document["o"]["tags"]) <= 3
        assert all(len(tag) == 2 and tag[0].isalpha() and tag[1].isdigit() for tag in document["o"]["tags"])
        assert isinstance(document["o"]["i"], int)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"name": "n", "kind": "integr", "minimum": 0, "maximum": 1}, 'did you mean "integer"?'),
        ({"name": "n", "kind": "integer", "minimum": 0, "maximun": 1}, '"maximun"; did you mean "maximum"?'),
        ({"name": "n", "kind": "integer", "minimum": 0}, 'the key "maximum" is missing'),
        ({"name": "n", "kind": "choice", "choices": [1, 2], "weights": [1]}, "1 weights for 2 choices"),
        ({"name": "n", "kind": "sum", "of": ["m"]}, '"m" is not a preceding field'),
        ({"name": "n", "kind": "date", "start": "spring", "end": "2016-01-01"}, '"spring" is not a date'),
        ({"name": "n", "kind": "date", "start": "2015-01-31T12:00Z", "end": "2016-01-01"}, 'T12:00Z" is not a date'),
        (
            {"name": "n", "kind": "date", "start": "2015-01-01", "end": "2016-01-01", "format": "%Y%n%t"},
            "n: format: '%Y%n%t' is not a format of a date in one line without quotes",
        ),
        ({"name": "n", "kind": "integer", "minimum": 2, "maximum": 1}, "minimum 2 is greater than maximum 1"),
        ({"name": "n", "kind": "integer", "minimum": -2, "maximum": 1, "scale": "log"}, "minimum -2 has no logarithm"),
        ({"name": "n", "kind": "choice", "choices": [1, 2], "weights": [0, 0]}, "all weights are 0"),
        ({"name": "n", "kind": "choice", "choices": [1, 2], "weights": [-1, 2]}, "weights: -1 is not between 0 and"),
        ({"name": "n", "kind": "date", "start": "2016-01-01", "end": "2015-01-01"}, "is not before end 2015-01-01"),
        ({"name": "n", "kind": "id", "format": "{0.__class__}"}, "is not a format with one number in it"),
        ({"name": "n", "kind": "id", "present": 0.5}, "the first field must be in every document"),
    ],
)
def test_invalid_field_is_named_with_the_remedy(field: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_workload(workload(field))
    assert message in str(caught.value)


ID = {"name": "n", "kind": "id"}
CONSTANT = {"name": "n", "kind": "constant", "value": 1, "row": "r"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([ID, CONSTANT], "fields: n: two fields have this name"),
        ([ID, {"name": "o", "kind": "object", "fields": [ID, CONSTANT]}], "fields: o.n: two fields have this name"),
        ([ID, {**ID, "name": "m", "present": 0.5}], 'm: a field of kind "id" is in every document'),
        ([CONSTANT, {**CONSTANT, "name": "m", "distinct": 20000}], 'm: distinct is 20000, but row "r" has 1024'),
        (
            [{**CONSTANT, "value": 1e308}, {"name": "m", "kind": "sum", "of": ["n", "n"], "row": "r"}],
            "fields: m: the sum of n, n is too large for a number",
        ),
    ],
)
def test_fields_that_do_not_fit_together_are_refused(fields: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_workload(workload(*fields))
    assert message in str(caught.value)


POINT = {"kind": "point", "places": [{"latitude": 40, "longitude": -73, "spread": 1}]}


@pytest.mark.parametrize(
    "field", [*({"kind": "constant", "value": value} for value in ("x", "nan", None, [1, 2], {"a": 1})), POINT]
)
@pytest.mark.parametrize("kind", [{"kind": "sum", "of": ["m"]}, {"kind": "after", "of": "m", "median": "60s"}])
def test_sum_and_after_require_numbers(kind: dict[str, Any], field: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match='fields: n: "m" is not a number or a date in every row'):
        check_workload(workload({"name": "m", "row": "r", **field}, {"name": "n", "row": "r", **kind}))


@pytest.mark.parametrize("value", [0, 4, 9, 2**53 + 1, 2**63 - 2])
def test_integer_of_any_scale_is_in_its_range(value: int) -> None:
    for scale in ("even", "log"):
        field = {"name": "n", "kind": "integer", "minimum": value, "maximum": value, "scale": scale}
        assert {document["n"] for document in documents(field)} == {value}


@pytest.mark.parametrize("directive", 'aAbBcCdDeEfFgGhHIjklLmMnNOpPqQrRsStTuUvVwWxXyYzZ%+0123456789_^#-:\\"\n')
def test_accepted_date_format_gives_a_json_text(directive: str) -> None:
    for form in (f"%{directive}", f"%-{directive}", f"%1{directive}", f"%E{directive}", f"%_{directive}"):
        field = {"name": "n", "kind": "date", "start": "2015-01-31", "end": "2015-02-01", "format": form}
        try:
            check_workload(workload(field))
        except SpecError:
            continue
        assert directive not in "nst"
        assert documents(field)[0]["n"].isprintable()


def test_text_longer_than_the_prose_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    long = {"name": "n", "kind": "text", "mean": 2**20, "sigma": 3, "vocabulary": 100}
    with pytest.raises(SpecError, match="bytes is longer than the prose that it is cut from"):
        check_workload(workload(long))
    monkeypatch.setattr(words, "prose", lambda *_: pytest.fail("the prose was built"))
    check_workload(workload({**long, "mean": 1000, "sigma": 1}))


@pytest.mark.parametrize(
    "field",
    [
        {"kind": "choice", "choices": [*range(20), "none"]},
        {"kind": "choice", "choices": ["none", 1, 2], "weights": [1, 10_000, 10_000]},
        {"kind": "choice", "choices": [*range(3000), "none"]},
        {"kind": "code", "pattern": "9A9"},
        {
            "kind": "one_of",
            "kinds": [{"kind": "choice", "choices": [1, 2, "none"]}, {"kind": "constant", "value": 1}],
            "weights": [1, 1000],
        },
    ],
    ids=lambda field: field["kind"],
)
def test_field_with_rare_non_numbers_is_refused_before_a_load(field: dict[str, Any]) -> None:
    row = {"row": "r", "distinct": 16384}
    spec = workload({"name": "m", **row, **field}, {"name": "n", "kind": "sum", "of": ["m"], **row})
    for act in (check_workload, lambda spec: DocumentGenerator(spec, 1)):
        with pytest.raises(SpecError, match='"m" is not a number or a date in every row'):
            act(spec)


def test_choice_with_weight_0_may_be_a_non_number() -> None:
    field = {"name": "m", "kind": "choice", "choices": [1, "none"], "weights": [1, 0], "row": "r"}
    check_workload(workload(field, {"name": "n", "kind": "sum", "of": ["m"], "row": "r"}))


def test_documents_are_written_to_devices_and_through_links(tmp_path: Path) -> None:
    spec = workload({"name": "n", "kind": "id"})
    device, link, destination = tmp_path / "null", tmp_path / "link.ndjson", tmp_path / "far.ndjson"
    device.symlink_to("/dev/null")
    link.symlink_to(destination)
    assert write_documents(spec, 2, device, 1) == write_documents(spec, 2, link, 1) == destination.stat().st_size
    assert (device.readlink(), link.readlink()) == (Path("/dev/null"), destination)
    assert Path("/dev/null").is_char_device()
    with pytest.raises(SpecError, match=f"^{tmp_path}: cannot be written: it is a folder$"):
        write_documents(spec, 2, tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["far.ndjson", "link.ndjson", "null"]


def test_write_compresses_by_suffix(tmp_path: Path) -> None:
    taxis = workload({"name": "n", "kind": "id"}, {"name": "m", "kind": "constant", "value": "." * 40})
    plain = tmp_path / "a.json"
    size = write_documents(taxis, BLOCK_DOCUMENTS + 3, plain, 1)
    assert plain.stat().st_size == size
    assert plain.read_bytes().count(b"\n") == BLOCK_DOCUMENTS + 3
    for suffix in (".gz", ".bz2", ".zst"):
        compressed = tmp_path / f"a.json{suffix}"
        write_documents(taxis, BLOCK_DOCUMENTS + 3, compressed, 1)
        assert b"".join(read_chunks(compressed)) == plain.read_bytes()
        assert compressed.stat().st_size < size / 2
    assert not list(tmp_path.glob("*.part"))


def test_papers_compress_as_well_as_the_published_ones() -> None:
    # bzip2 compresses the published corpus from 23,256,051,757 to 5,931,724,449 bytes: 3.92.
    block = b"\n".join(shipped_documents("pmc")[:50])
    assert len(block) / len(bz2.compress(block)) == pytest.approx(3.92, rel=0.1)


def test_every_kind_and_option_is_documented() -> None:
    text = (files.data_folder("workloads") / "README.md").read_text()
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    options = {**{kind: options_record(kind) for kind in GENERATORS}, **SPECIAL}
    for kind, record in options.items():
        assert [key for key in records.fields_by_key(record) if f"`{key}`" not in rows[kind]] == []
    assert [key for key in records.fields_by_key(Workload) if f"`{key}`" not in text and key != "name"] == []
