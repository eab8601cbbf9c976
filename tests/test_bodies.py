"""Bulk bodies: their content, their distribution to users, and their ids."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ingest_bench.documents import source
from ingest_bench.documents.body import Body, BodyTemplate, IdSequence
from ingest_bench.documents.source import BodyPool
from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog
from ingest_bench.model.load import BulkAction, Conflicts, DocumentField, LoadOptions, ProtocolOptions
from ingest_bench.protocols.bulk import Bulk
from ingest_bench.protocols.json_array import JsonArray

FIELDS = (
    DocumentField(name="n", kind="id"),
    DocumentField(name="fare", kind="decimal", distinct=64, options={"minimum": 1, "maximum": 99}),
    DocumentField(name="rest", kind="constant", distinct=1, options={"value": "." * 440}),
)
TAXIS = dataclasses.replace(catalog.load_workload("nyc_taxis"), fields=FIELDS)
POOL_BYTES = 200_000


def pool(*, pool_bytes: int = POOL_BYTES, worker: int = 0, workers: int = 1, **options: Any) -> BodyPool:
    chosen = LoadOptions(**options)
    return source.build_synthetic_pool(
        TAXIS,
        chosen,
        Bulk.for_path("/_bulk", TAXIS.index, chosen),
        pool_bytes=pool_bytes,
        worker=worker,
        workers=workers,
    )


def iterate_forever(pooled: BodyPool, user: int = 0, users: int = 1, conflicts: Conflicts = "none") -> Iterator[Body]:
    return pooled.iterate_forever(user, users, IdSequence(user, users, conflicts, 1))


def iterate_once(pooled: BodyPool, user: int = 0, users: int = 1) -> Iterator[Body]:
    return pooled.iterate_once(user, users, IdSequence(user, users, "none", 1))


def items(body: Body) -> list[bytes]:
    starts = body.item_offsets().tolist()
    return [bytes(body.text[start:end]) for start, end in itertools.pairwise(starts)]


def lines(data: bytes) -> list[dict[str, dict[str, str]]]:
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def test_body_has_an_action_line_before_each_document() -> None:
    pooled = pool(bulk_documents=50)
    body = next(iterate_forever(pooled))
    parsed = lines(bytes(body.data))
    assert body.documents == body.count_added() == 50
    assert parsed[0::2] == [{"index": {}}] * 50
    assert all("fare" in document for document in parsed[1::2])


def test_pool_has_the_requested_size_and_published_bulk_size() -> None:
    assert [body.documents for body in iterate_once(pool())] == [TAXIS.bulk_documents]
    smaller = pool(bulk_documents=100)
    assert POOL_BYTES <= sum(len(body.data) for body in iterate_once(smaller)) <= POOL_BYTES + 2 * 60_000


ACTIONS = {
    "four indices": BulkAction(indices=4),
    "no ids": BulkAction(),
    "ids": BulkAction(conflicts="sequential"),
    "updates in four indices": BulkAction(
        conflicts="random", on_conflict="update", conflict_probability_ppm=900_000, indices=4
    ),
}


@pytest.mark.parametrize("action", ACTIONS.values(), ids=list(ACTIONS))
def test_bulk_in_bytes_is_as_full_as_possible_for_any_action(action: BulkAction) -> None:
    pooled = pool(bulk_bytes=20_000, action=action)
    bodies = list(itertools.islice(iterate_forever(pooled, conflicts=action.conflicts), 9))
    smallest = 19_000 if action == BulkAction() else 18_000
    assert all(smallest < len(body.data) <= 20_000 for body in bodies)


def test_bulk_in_bytes_is_as_full_as_possible_in_an_envelope_with_escaped_documents() -> None:
    keys = {"path": "/", "before": "x" * 1000, "each": '{"event":{document}}', "as_text": True, "sequence": "number"}
    options = LoadOptions(bulk_bytes=20_000)
    protocol = JsonArray.from_options(ProtocolOptions(protocol="json-array", keys=keys), "", options)
    quotes = DocumentField(name="text", kind="constant", options={"value": '"' * 100})
    workload = dataclasses.replace(TAXIS, fields=(*FIELDS, quotes))
    pooled = source.build_synthetic_pool(workload, options, protocol, pool_bytes=POOL_BYTES)
    assert all(19_000 < len(body.data) <= 20_000 for body in itertools.islice(iterate_forever(pooled), 9))


def test_bytes_that_are_not_utf_8_stay_in_an_escaped_document() -> None:
    options_of_protocol = ProtocolOptions(protocol="json-array", keys={"path": "/", "as_text": True})
    body = JsonArray.from_options(options_of_protocol, "", LoadOptions()).build_body((b'\xff "\t',), 1)
    assert bytes(body.data) == b'["\xff \\"\\t"]'


def test_document_larger_than_the_bulk_is_sent_alone() -> None:
    assert {body.documents for body in iterate_once(pool(bulk_bytes=10, pool_bytes=5_000))} == {1}


def test_users_get_disjoint_bodies_and_repeat_them() -> None:
    pooled = pool(bulk_documents=20)
    taken = [list(iterate_once(pooled, user, 3)) for user in range(3)]
    assert sorted(id(body) for user in taken for body in user) == sorted(map(id, pooled.bodies))
    cycled = list(itertools.islice(iterate_forever(pooled, 1, 3), len(taken[1]) + 1))
    assert cycled[0] is cycled[-1]


def test_more_users_than_bodies_share_bodies() -> None:
    pooled = pool(bulk_documents=100, pool_bytes=1)
    assert [next(iterate_forever(pooled, user, 5)).documents for user in range(5)] == [100] * 5


def test_workers_send_different_documents() -> None:
    first, second = (pool(bulk_documents=50, worker=worker, workers=2) for worker in range(2))
    assert not {body.data for body in iterate_once(first)} & {body.data for body in iterate_once(second)}


def test_compressed_body_has_the_same_content() -> None:
    plain = next(iterate_forever(pool(bulk_documents=50, pool_bytes=1)))
    compressed = next(iterate_forever(pool(bulk_documents=50, pool_bytes=1, gzip=True)))
    assert gzip.decompress(compressed.data) == plain.data
    assert compressed.gzip
    assert not plain.gzip


ITEMS = (
    b'{ "delete" : { "_id" : "7" } }\n',
    b'{"index":{"_id":"1"}}\n{"text":\r "a"}\n',
    b'\t{"create":{}}\n  {"n": 2}\r\n',
    b'{"update":{"_id":"1"}}\n{"doc":{"n":\r3}}\n',
    b'{"index" : {}}\n{"delete":{"_id":"4"}}\n',
)


def build_items_body(bulk_items: Sequence[bytes], compress: bool = False) -> Body:
    body = Bulk(path="/_bulk", action=BulkAction(), gzip=compress, has_action_lines=True).build_body(
        [part.removesuffix(b"\n") for part in bulk_items], 1
    )
    assert isinstance(body, Body)
    return body


@pytest.mark.parametrize("compress", [False, True])
def test_items_of_any_content_are_selected_by_position(compress: bool) -> None:
    body = build_items_body(ITEMS, compress)
    assert bytes(body.text) == b"".join(ITEMS)
    assert items(body) == list(ITEMS)
    selected = body.select_items([0, 2, 4])
    assert items(selected) == [ITEMS[0], ITEMS[2], ITEMS[4]]
    assert items(selected.select_items([1])) == [ITEMS[2]]
    assert selected.gzip == compress


def test_selected_items_add_what_they_would_have_added() -> None:
    body = build_items_body(ITEMS)
    assert (body.count_added(), body.count_added([0, 1])) == (2, 2)
    assert [body.select_items([item]).count_added() for item in range(5)] == [-1, 1, 1, 0, 1]
    assert [body.as_resent().select_items([item]).count_added() for item in range(5)] == [0, 0, 1, 0, 1]
    assert body.select_items([1, 2]).as_resent().count_added() == 1
    pooled = pool(bulk_documents=100, action=BulkAction(conflicts="random", conflict_probability_ppm=500_000))
    body = next(iterate_forever(pooled, conflicts="random"))
    assert (
        body.select_items(range(40)).count_added() + body.select_items(range(40, 100)).count_added()
        == body.count_added()
        < 100
    )


def test_items_with_server_assigned_ids_always_add_one() -> None:
    body = build_items_body([b'{"index":{}}\n{"n":1}\n'] * 3)
    assert body.adds is None
    assert body.as_resent() is body
    selected = body.select_items([1])
    assert (selected.adds, items(selected)) == (None, items(body)[1:2])


def test_documents_go_to_several_indices_in_turn() -> None:
    action = BulkAction(indices=3)
    body = next(iterate_forever(pool(bulk_documents=6, pool_bytes=1, action=action)))
    targets = [line["index"]["_index"] for line in lines(bytes(body.data))[0::2]]
    assert targets == ["nyc_taxis-0", "nyc_taxis-1", "nyc_taxis-2"] * 2
    assert action.index_names(TAXIS.index) == ("nyc_taxis-0", "nyc_taxis-1", "nyc_taxis-2")


@pytest.mark.parametrize("conflicts", ["random", "sequential"])
def test_ids_are_new_or_reused_as_the_body_says(conflicts: Conflicts) -> None:
    action = BulkAction(conflicts=conflicts, conflict_probability_ppm=250_000)
    pooled = pool(bulk_documents=200, action=action)
    all_ids: set[str] = set()
    for user in range(2):
        own: set[str] = set()
        for body in itertools.islice(iterate_forever(pooled, user, 2, conflicts), 8):
            ids = [line["index"]["_id"] for line in lines(bytes(body.data))[0::2]]
            assert len(set(ids) - own) == body.count_added()
            own |= set(ids)
            assert 100 < body.count_added() < 190
        assert not all_ids & own
        all_ids |= own


def test_conflict_can_be_an_update_of_a_sent_document() -> None:
    action = BulkAction(conflicts="random", conflict_probability_ppm=500_000, on_conflict="update")
    pooled = pool(bulk_documents=100, pool_bytes=1, action=action)
    sent_ids: set[str] = set()
    for body in itertools.islice(iterate_forever(pooled, conflicts="random"), 3):
        parsed = lines(bytes(body.data))
        for line, document in zip(parsed[0::2], parsed[1::2], strict=True):
            (name, meta), *_ = line.items()
            assert (meta["_id"] in sent_ids) == (name == "update")
            assert ("doc" in document) == (name == "update")
            sent_ids.add(meta["_id"])


def test_every_id_is_new_with_a_conflict_probability_of_0() -> None:
    action = BulkAction(conflicts="sequential", conflict_probability_ppm=0)
    pooled = pool(bulk_documents=100, pool_bytes=1, action=action)
    ids = [
        line["index"]["_id"]
        for body in itertools.islice(iterate_forever(pooled, 1, 4, "sequential"), 3)
        for line in lines(bytes(body.data))[0::2]
    ]
    assert ids == [f"{1 + 4 * number:010d}" for number in range(300)]


def test_bulk_path_has_pipeline_and_refresh() -> None:
    action = BulkAction(pipeline="a b", refresh="wait_for")
    assert Bulk(path="/i/_bulk", action=BulkAction()).url_path == "/i/_bulk"
    assert Bulk(path="/i/_bulk", action=action).url_path == "/i/_bulk?pipeline=a+b&refresh=wait_for"
    assert Bulk(path="/i/_bulk?type=doc", action=action).url_path == "/i/_bulk?type=doc&pipeline=a+b&refresh=wait_for"


def test_two_bulk_sizes_or_a_size_of_0_are_refused() -> None:
    with pytest.raises(SpecError, match="cannot be combined with"):
        pool(bulk_documents=1, bulk_bytes=1)
    with pytest.raises(SpecError, match="at least 1"):
        pool(bulk_documents=0)


# Text that looks like the gap of a number.
ENVELOPE = {"before": "ä0000000000", "each": '["ä0000000000",{document},"0000000000"]', "after": '"0000000000'}


@pytest.mark.parametrize("kind", ["array", "lines", "single"])
@pytest.mark.parametrize("gzip", [False, True])
@pytest.mark.parametrize("envelope", [{}, ENVELOPE, {**ENVELOPE, "as_text": True}], ids=["plain", "object", "text"])
def test_each_document_of_a_run_gets_a_unique_number(kind: str, gzip: bool, envelope: dict[str, Any]) -> None:
    options_of_protocol = ProtocolOptions(
        protocol="json-array", keys={"path": "/", "format": kind, "sequence": "number", **envelope}
    )
    protocol = JsonArray.from_options(options_of_protocol, "", LoadOptions(gzip=gzip))
    documents = (b'{"a": 1}', b" {}\n", b'{ "b": {"c": "number"}}')[: protocol.max_documents]
    template = protocol.build_body(documents, 1)
    assert isinstance(template, BodyTemplate)
    numbers = []
    ids = IdSequence(1, 3, "none", 1)
    for _ in range(2):
        body = template.fill(ids)
        assert body.documents == len(documents)
        assert not body.is_idempotent, "a duplicate is stored twice"
        text = bytes(body.text).decode().removeprefix(envelope.get("before", ""))
        text = text.removesuffix(envelope.get("after", ""))
        parsed = json.loads(text) if kind == "array" else [json.loads(line) for line in text.splitlines()]
        if envelope:
            parsed = [json.loads(item[1]) if "as_text" in envelope else item[1] for item in parsed]
        numbers += [int(document.pop("number")) for document in parsed]
        assert parsed == [json.loads(document) for document in documents]
        around_bytes = protocol.overhead_bytes + protocol.envelope_bytes
        assert len(body.select_items([0]).text) - around_bytes <= protocol.measure(documents[0])
    assert numbers == [1 + 3 * place for place in range(2 * len(documents))]


def test_documents_that_already_have_the_sequence_field_are_refused() -> None:
    options_of_protocol = ProtocolOptions(
        protocol="json-array", keys={"path": "/", "format": "lines", "sequence": "number"}
    )
    protocol = JsonArray.from_options(options_of_protocol, "", LoadOptions())
    protocol.build_body((b'{"a": "number"}', b'{"a": {"number": 5}}', b'{"a": "number}'), 1)
    with pytest.raises(SpecError, match='documents already have a field "number"'):
        protocol.build_body((b'{"a": 1}', b'{"a": 1, "number": 5}'), 1)
