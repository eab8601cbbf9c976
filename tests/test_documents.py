"""Synthetic documents: their sizes, their distributions, and that a seed decides them."""

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

from ingest_bench.documents import export, words
from ingest_bench.documents.generators import GENERATORS
from ingest_bench.documents.lines import read_chunks
from ingest_bench.documents.synthetic import BLOCK_DOCUMENTS, KINDS, SPECIAL, DocumentGenerator, check_workload
from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog
from ingest_bench.inputs import files, records
from ingest_bench.model.load import DocumentField, Workload

WORKLOADS = sorted(files.data_files("workloads"))


@cache
def made(name: str) -> list[bytes]:
    """A thousand documents or more of a shipped workload, made once for all tests."""
    documents = DocumentGenerator(catalog.load_workload(name), 1)
    return [text for number in range(-(-1000 // documents.size)) for text in documents.block(number)]


def workload(*fields: dict[str, Any]) -> Workload:
    specs = tuple(DocumentField(**table) for table in catalog.group_field_options(list(fields), "test"))
    return dataclasses.replace(catalog.load_workload("nyc_taxis"), name="test", fields=specs)


def documents(*fields: dict[str, Any], seed: int = 1, block: int = 0) -> list[dict[str, Any]]:
    return [json.loads(text) for text in DocumentGenerator(workload(*fields), seed).block(block)]


def test_the_five_workloads_of_the_issue_are_there() -> None:
    assert {"geonames", "geopoint", "nyc_taxis", "percolator", "pmc"} <= set(WORKLOADS)
    bulks = {name: catalog.load_workload(name).bulk_documents for name in WORKLOADS}
    assert bulks == {"geonames": 5000, "geopoint": 5000, "nyc_taxis": 10000, "percolator": 5000, "pmc": 500}


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_mean_size_is_within_5_percent_of_the_published_one(name: str) -> None:
    found = catalog.load_workload(name)
    block = made(name)
    mean = sum(len(text) + 1 for text in block) / len(block)
    assert mean == pytest.approx(found.mean_document_bytes, rel=0.05)


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_document_is_json_in_one_line_with_mapped_fields_only(name: str) -> None:
    found = catalog.load_workload(name)
    for text in made(name)[:500]:
        assert b"\n" not in text
        assert set(json.loads(text)) <= set(found.mapping["mappings"]["properties"])


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_names_its_source_and_keeps_its_published_figures(name: str) -> None:
    found = catalog.load_workload(name)
    assert files.data_files("workloads")[name].read_text().startswith("# ")
    assert found.published_documents > 500_000
    assert found.users == 8
    assert found.source.startswith("https://")


def test_the_same_seed_gives_the_same_documents_and_another_one_others() -> None:
    fare = {"name": "fare", "kind": "decimal", "minimum": 1, "maximum": 99, "median": 9}
    spot = {"name": "spot", "kind": "point", "places": [{"latitude": 40, "longitude": -73, "spread": 1}]}
    taxis = workload({"name": "n", "kind": "phrase", "minimum": 1, "maximum": 3}, fare, spot)
    first, again, other = DocumentGenerator(taxis, 7), DocumentGenerator(taxis, 7), DocumentGenerator(taxis, 8)
    assert first.block(3) == again.block(3)
    assert first.block(3) != other.block(3)
    assert first.block(3) != first.block(4)


def test_processes_make_each_block_once() -> None:
    whole = DocumentGenerator(workload({"name": "n", "kind": "id"}), 1)
    halves = [whole.blocks(0, 2), whole.blocks(1, 2)]
    numbers = [json.loads(text)["n"] for half in halves for _ in range(2) for text in next(half)]
    assert sorted(numbers) == list(range(4 * BLOCK_DOCUMENTS))


def test_a_choice_comes_as_often_as_its_weight_says() -> None:
    found = [one["n"] for one in documents({"name": "n", "kind": "choice", "choices": ["a", "b"], "weights": [9, 1]})]
    assert found.count("b") / len(found) == pytest.approx(0.1, abs=0.03)


def test_a_field_is_in_the_given_share_of_the_documents() -> None:
    first = {"name": "n", "kind": "id"}
    found = documents(first, {"name": "m", "kind": "constant", "value": None, "present": 0.25})
    assert sum("m" in one for one in found) / len(found) == pytest.approx(0.25, abs=0.04)


def test_fields_of_one_row_belong_together() -> None:
    a = {"name": "a", "kind": "decimal", "minimum": 1, "maximum": 9, "row": "r"}
    b = {"name": "b", "kind": "decimal", "minimum": 1, "maximum": 9, "row": "r"}
    total = {"name": "c", "kind": "sum", "of": ["a", "b"], "row": "r"}
    for one in documents(a, b, total):
        assert one["c"] == pytest.approx(one["a"] + one["b"], abs=0.011)


def test_a_ride_ends_after_it_began_and_costs_the_sum_of_its_parts() -> None:
    parts = ("fare_amount", "extra", "mta_tax", "tip_amount", "tolls_amount", "improvement_surcharge")
    for text in made("nyc_taxis"):
        ride = json.loads(text)
        assert ride["pickup_datetime"] <= ride["dropoff_datetime"]
        assert ride["total_amount"] == pytest.approx(sum(ride[part] for part in parts), abs=0.011)
        longitude, latitude = ride["pickup_location"]
        assert -180 <= longitude <= 180
        assert -90 <= latitude <= 90


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/New_York"])
def _zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine's time zone."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_zone")
def test_dates_are_the_same_in_every_time_zone() -> None:
    def second(start: str, end: str) -> str:
        return str(documents({"name": "n", "kind": "date", "start": start, "end": end})[0]["n"])

    assert second("2015-03-08", "2015-03-08T00:00:01") == "2015-03-08 00:00:00"
    assert second("2015-03-08T02:30:00", "2015-03-08T02:30:01") == "2015-03-08 02:30:00"
    assert second("0001-01-01", "0001-01-01T00:00:01").endswith("1-01-01 00:00:00")
    assert second("9999-12-31T23:59:58", "9999-12-31T23:59:59") == "9999-12-31 23:59:58"


def test_words_follow_zipfs_law() -> None:
    text = {"name": "n", "kind": "text", "mean": 20000, "vocabulary": 5000}
    found: dict[str, int] = {}
    for one in documents(text)[:40]:
        for word in one["n"].lower().replace(".", "").replace(",", "").split():
            found[word] = found.get(word, 0) + 1
    counts = sorted(found.values(), reverse=True)
    assert max(found, key=found.__getitem__) == "the"
    # Mandelbrot: rank 1 against rank 100 is ((100 + 2.7) / (1 + 2.7)) ** 1.07 = 35.
    assert 20 < counts[0] / counts[99] < 60


def test_text_lengths_have_the_exact_mean_and_are_cut_between_words() -> None:
    sizes = [len(one["n"]) for one in documents({"name": "n", "kind": "text", "mean": 3000})]
    assert sum(sizes) / len(sizes) == pytest.approx(3000, rel=0.01)
    assert min(sizes) < 1500
    assert max(sizes) > 6000


def test_an_object_holds_fields_and_a_list_holds_values() -> None:
    inner = {"name": "tags", "kind": "list", "minimum": 1, "maximum": 3, "items": {"kind": "code", "pattern": "A9"}}
    for one in documents({"name": "o", "kind": "object", "fields": [inner, {"name": "i", "kind": "id"}]})[:50]:
        assert 1 <= len(one["o"]["tags"]) <= 3
        assert all(len(tag) == 2 and tag[0].isalpha() and tag[1].isdigit() for tag in one["o"]["tags"])
        assert isinstance(one["o"]["i"], int)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({"name": "n", "kind": "integr", "minimum": 0, "maximum": 1}, 'did you mean "integer"?'),
        (
            {"name": "n", "kind": "integer", "minimum": 0, "maximun": 1},
            '"maximun"; did you mean "maximum"?',
        ),
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
def test_a_wrong_field_is_named_with_the_remedy(field: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_workload(workload(field))
    assert said in str(caught.value)


@pytest.mark.parametrize("value", ["x", "nan", None, [1, 2], {"a": 1}])
@pytest.mark.parametrize("kind", [{"kind": "sum", "of": ["m"]}, {"kind": "after", "of": "m", "median": "60s"}])
def test_what_is_no_number_is_neither_added_up_nor_a_moment(kind: dict[str, Any], value: Any) -> None:
    with pytest.raises(SpecError, match='fields: n: "m" is not a number or a date in every row'):
        check_workload(
            workload({"name": "m", "kind": "constant", "value": value, "row": "r"}, {"name": "n", "row": "r", **kind})
        )


@pytest.mark.parametrize("only", [0, 4, 9, 2**53 + 1, 2**63 - 2])
def test_an_integer_of_any_scale_keeps_to_its_range(only: int) -> None:
    for scale in ("even", "log"):
        field = {"name": "n", "kind": "integer", "minimum": only, "maximum": only, "scale": scale}
        assert {one["n"] for one in documents(field)} == {only}


@pytest.mark.parametrize("directive", 'aAbBcCdDeEfFgGhHIjklLmMnNOpPqQrRsStTuUvVwWxXyYzZ%+0123456789_^#-:\\"\n')
def test_a_format_of_a_date_that_is_taken_gives_a_text_of_json_in_one_zone(directive: str) -> None:
    for form in (f"%{directive}", f"%-{directive}", f"%1{directive}", f"%E{directive}", f"%_{directive}"):
        taken = {"name": "n", "kind": "date", "start": "2015-01-31", "end": "2015-02-01", "format": form}
        try:
            check_workload(workload(taken))
        except SpecError:
            continue
        assert directive not in "nst"
        assert documents(taken)[0]["n"].isprintable()


def test_a_text_that_is_longer_than_all_prose_is_refused_before_any_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    long = {"name": "n", "kind": "text", "mean": 2**20, "sigma": 3, "vocabulary": 100}
    with pytest.raises(SpecError, match="bytes is longer than the prose that it is cut from"):
        check_workload(workload(long))
    monkeypatch.setattr(words, "prose", lambda *_: pytest.fail("it was made"))
    check_workload(workload({**long, "mean": 1000, "sigma": 1}))


def test_two_fields_of_one_name_are_refused_in_an_object_too() -> None:
    one, other = {"name": "n", "kind": "id"}, {"name": "n", "kind": "constant", "value": 1}
    with pytest.raises(SpecError, match="fields: n: two fields have this name"):
        check_workload(workload(one, other))
    with pytest.raises(SpecError, match=r"fields: o\.n: two fields have this name"):
        check_workload(workload(one, {"name": "o", "kind": "object", "fields": [one, other]}))


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
def test_a_field_that_is_no_number_in_a_few_rows_alone_is_refused_before_a_load(field: dict[str, Any]) -> None:
    made_of = workload({"name": "m", "row": "r", **field}, {"name": "n", "kind": "sum", "of": ["m"], "row": "r"})
    for act in (check_workload, lambda one: DocumentGenerator(one, 1)):
        with pytest.raises(SpecError, match='"m" is not a number or a date in every row'):
            act(made_of)


def test_a_choice_that_is_never_taken_is_no_reason_to_refuse_a_field() -> None:
    field = {"name": "m", "kind": "choice", "choices": [1, "none"], "weights": [1, 0], "row": "r"}
    check_workload(workload(field, {"name": "n", "kind": "sum", "of": ["m"], "row": "r"}))


def test_fields_of_one_row_with_other_numbers_of_values_are_refused_before_a_load() -> None:
    fields = [{"name": name, "kind": "constant", "value": 1, "row": "r"} for name in "ab"]
    with pytest.raises(SpecError, match='b: distinct is 20000, but row "r" has 16384'):
        check_workload(workload(fields[0], fields[1] | {"distinct": 20000}))


def test_a_point_is_no_number_either() -> None:
    place = {"latitude": 40, "longitude": -73, "spread": 1}
    point = {"name": "m", "kind": "point", "places": [place], "row": "r"}
    with pytest.raises(SpecError, match='"m" is not a number or a date'):
        check_workload(workload(point, {"name": "n", "kind": "sum", "of": ["m"], "row": "r"}))


def test_a_sum_that_json_cannot_say_is_refused() -> None:
    large = {"name": "m", "kind": "constant", "value": 1e308, "row": "r"}
    with pytest.raises(SpecError, match="fields: n: the sum of m, m is too large for a number"):
        check_workload(workload(large, {"name": "n", "kind": "sum", "of": ["m", "m"], "row": "r"}))


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_shipped_workloads_pass_their_check(name: str) -> None:
    check_workload(catalog.load_workload(name))


def test_an_unknown_workload_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(SpecError, match='did you mean "nyc_taxis"'):
        catalog.load_workload("nyc_taxi")


def test_every_kind_is_used_by_a_workload_or_a_test() -> None:
    text = "".join(path.read_text() for path in files.data_files("workloads").values()) + Path(__file__).read_text()
    assert [kind for kind in KINDS if f'kind = "{kind}"' not in text and f'"kind": "{kind}"' not in text] == []


def test_documents_are_written_to_a_device_and_behind_a_link_and_never_take_their_place(tmp_path: Path) -> None:
    one = workload({"name": "n", "kind": "id"})
    device, link, far = tmp_path / "null", tmp_path / "link.ndjson", tmp_path / "far.ndjson"
    device.symlink_to("/dev/null")
    link.symlink_to(far)
    assert export.write_documents(one, 2, device, 1) == export.write_documents(one, 2, link, 1) == far.stat().st_size
    assert (device.readlink(), link.readlink()) == (Path("/dev/null"), far)
    assert Path("/dev/null").is_char_device()
    with pytest.raises(SpecError, match=f"^{tmp_path}: cannot be written: it is a folder$"):
        export.write_documents(one, 2, tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["far.ndjson", "link.ndjson", "null"]


def test_write_packs_by_suffix_and_writes_exactly_as_many_documents(tmp_path: Path) -> None:
    taxis = workload({"name": "n", "kind": "id"}, {"name": "m", "kind": "constant", "value": "." * 40})
    plain = tmp_path / "a.json"
    size = export.write_documents(taxis, BLOCK_DOCUMENTS + 3, plain, 1)
    assert plain.stat().st_size == size
    assert plain.read_bytes().count(b"\n") == BLOCK_DOCUMENTS + 3
    for suffix in (".gz", ".bz2", ".zst"):
        packed = tmp_path / f"a.json{suffix}"
        export.write_documents(taxis, BLOCK_DOCUMENTS + 3, packed, 1)
        assert b"".join(read_chunks(packed)) == plain.read_bytes()
        assert packed.stat().st_size < size / 2
    assert not list(tmp_path.glob("*.part"))


def test_describe_shows_type_and_generator_of_each_field() -> None:
    rows = dict(export.describe_workload(catalog.load_workload("nyc_taxis")))
    assert rows["field pickup_location"].startswith("geo_point: point")
    assert rows["published size"] == "79.80 GB, 482.6 B per document"
    assert json.loads(rows["example"])["vendor_id"] in ("1", "2")


@pytest.mark.parametrize("mapping", [{"mappings": "x"}, {"mappings": {"properties": "x"}}, {}])
def test_a_mapping_that_means_nothing_is_shown_all_the_same(mapping: dict[str, Any]) -> None:
    found = dataclasses.replace(workload({"name": "n", "kind": "id"}), mapping=mapping)
    assert dict(export.describe_workload(found))["field n"] == "unmapped: id"


def test_a_field_whose_mapping_means_nothing_is_shown_all_the_same() -> None:
    properties = {"n": "x", "m": {"type": "text", "fields": "x"}, "o": {"type": "text", "fields": {"raw": 1}}}
    fields = workload(*({"name": name, "kind": "id"} for name in properties))
    rows = dict(export.describe_workload(dataclasses.replace(fields, mapping={"mappings": {"properties": properties}})))
    assert [rows[f"field {name}"] for name in properties] == ["unmapped: id", "text: id", "text +raw None: id"]


def test_papers_pack_as_well_as_the_published_ones() -> None:
    # The published corpus packs from 23,256,051,757 to 5,931,724,449 bytes with bzip2: 3.92.
    block = b"\n".join(made("pmc")[:50])
    assert len(block) / len(bz2.compress(block)) == pytest.approx(3.92, rel=0.1)


def test_every_kind_and_option_is_documented_beside_the_workloads() -> None:
    text = (files.data_folder("workloads") / "README.md").read_text()
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    for kind, record in {**GENERATORS, **SPECIAL}.items():
        assert [key for key in records.fields_by_key(record) if f"`{key}`" not in rows[kind]] == []
    assert [key for key in records.fields_by_key(Workload) if f"`{key}`" not in text and key != "name"] == []
