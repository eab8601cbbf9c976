"""Bulk bodies: what is in them, who gets which, and which ids are new."""

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
from ingest_bench.documents.source import Bodies, BodyPool, IdPool
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
SMALL = 200_000


def pool(*, pool_bytes: int = SMALL, part: int = 0, parts: int = 1, **options: Any) -> BodyPool | IdPool:
    chosen = LoadOptions(**options)
    return source.build_synthetic_pool(
        TAXIS, chosen, Bulk.for_path("/_bulk", TAXIS.index, chosen), pool_bytes=pool_bytes, worker=part, workers=parts
    )


def endless(made: Bodies, user: int = 0, users: int = 1, conflicts: Conflicts = "none") -> Iterator[Body]:
    return made.iterate_forever(user, users, IdSequence(user, users, conflicts, 1))


def once(made: Bodies, user: int, users: int) -> Iterator[Body]:
    return made.iterate_once(user, users, IdSequence(user, users, "none", 1))


def items(body: Body) -> list[bytes]:
    starts = body.item_offsets().tolist()
    return [bytes(body.text[start:end]) for start, end in itertools.pairwise(starts)]


def lines(data: bytes) -> list[dict[str, dict[str, str]]]:
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def test_a_body_has_an_action_line_before_each_document() -> None:
    made = pool(bulk_documents=50)
    body = next(endless(made))
    found = lines(bytes(body.data))
    assert body.documents == body.count_added() == 50
    assert found[0::2] == [{"index": {}}] * 50
    assert all("fare" in document for document in found[1::2])


def test_the_pool_is_as_large_as_asked_and_the_size_defaults_to_the_published_one() -> None:
    made = pool()
    assert isinstance(made, BodyPool)
    assert [body.documents for body in made.bodies] == [TAXIS.bulk_documents]
    smaller = pool(bulk_documents=100)
    assert isinstance(smaller, BodyPool)
    assert SMALL <= sum(len(body.data) for body in smaller.bodies) <= SMALL + 2 * 60_000


def test_a_bulk_in_bytes_is_as_full_as_it_can_be_and_never_larger() -> None:
    made = pool(bulk_bytes=20_000)
    assert isinstance(made, BodyPool)
    assert all(19_000 < len(body.data) <= 20_000 for body in made.bodies)


ACTIONS = {
    "four indices": BulkAction(indices=4),
    "ids": BulkAction(conflicts="sequential"),
    "updates in four indices": BulkAction(
        conflicts="random", on_conflict="update", conflict_probability_ppm=900_000, indices=4
    ),
}


@pytest.mark.parametrize("action", ACTIONS.values(), ids=list(ACTIONS))
def test_a_bulk_in_bytes_is_never_larger_whatever_its_action_lines_say(action: BulkAction) -> None:
    made = pool(bulk_bytes=20_000, action=action)
    bodies = list(itertools.islice(endless(made, conflicts=action.conflicts), 9))
    assert all(18_000 < len(body.data) <= 20_000 for body in bodies)


def test_a_document_larger_than_the_bulk_goes_alone() -> None:
    made = pool(bulk_bytes=10, pool_bytes=5_000)
    assert isinstance(made, BodyPool)
    assert {body.documents for body in made.bodies} == {1}


def test_users_take_disjoint_strides_and_come_round_again() -> None:
    made = pool(bulk_documents=20)
    assert isinstance(made, BodyPool)
    taken = [list(once(made, user, 3)) for user in range(3)]
    assert sorted(id(body) for user in taken for body in user) == sorted(map(id, made.bodies))
    cycled = list(itertools.islice(endless(made, 1, 3), len(taken[1]) + 1))
    assert cycled[0] is cycled[-1]


def test_more_users_than_bodies_share_them() -> None:
    made = pool(bulk_documents=100, pool_bytes=1)
    assert [next(endless(made, user, 5)).documents for user in range(5)] == [100] * 5


def test_processes_send_different_documents() -> None:
    first, second = (pool(bulk_documents=50, part=n, parts=2) for n in range(2))
    assert isinstance(first, BodyPool)
    assert isinstance(second, BodyPool)
    assert not {body.data for body in first.bodies} & {body.data for body in second.bodies}


def test_a_packed_body_is_the_same_body() -> None:
    plain = next(endless(pool(bulk_documents=50, pool_bytes=1)))
    packed = next(endless(pool(bulk_documents=50, pool_bytes=1, gzip=True)))
    assert gzip.decompress(packed.data) == plain.data
    assert packed.gzip
    assert not plain.gzip


@pytest.mark.parametrize("compress", [False, True])
def test_only_the_refused_items_are_sent_again(compress: bool) -> None:
    body = next(endless(pool(bulk_documents=50, pool_bytes=1, gzip=compress)))
    again = body.select_items([3, 7])
    assert again.documents == 2
    assert items(again) == [items(body)[3], items(body)[7]]


READY = (
    b'{ "delete" : { "_id" : "7" } }\n',
    b'{"index":{"_id":"1"}}\n{"text":\r "a"}\n',
    b'\t{"create":{}}\n  {"n": 2}\r\n',
    b'{"update":{"_id":"1"}}\n{"doc":{"n":\r3}}\n',
    b'{"index" : {}}\n{"delete":{"_id":"4"}}\n',
)


def ready_body(parts: Sequence[bytes], compress: bool = False) -> Body:
    made = Bulk(path="/_bulk", action=BulkAction(), gzip=compress, has_action_lines=True).build_body(
        [part.removesuffix(b"\n") for part in parts], 1
    )
    assert isinstance(made, Body)
    return made


@pytest.mark.parametrize("compress", [False, True])
def test_items_are_told_by_their_place_whatever_stands_in_them(compress: bool) -> None:
    body = ready_body(READY, compress)
    assert bytes(body.text) == b"".join(READY)
    assert items(body) == list(READY)
    again = body.select_items([0, 2, 4])
    assert items(again) == [READY[0], READY[2], READY[4]]
    assert items(again.select_items([1])) == [READY[2]]
    assert again.gzip == compress


def test_what_is_sent_again_adds_what_those_items_would_have_added() -> None:
    body = ready_body(READY)
    assert (body.count_added(), body.count_added([0, 1])) == (2, 2)
    assert [body.select_items([item]).count_added() for item in range(5)] == [-1, 1, 1, 0, 1]
    assert [body.as_resent().select_items([item]).count_added() for item in range(5)] == [0, 0, 1, 0, 1]
    assert body.select_items([1, 2]).as_resent().count_added() == 1
    made = pool(bulk_documents=100, action=BulkAction(conflicts="random", conflict_probability_ppm=500_000))
    given = next(endless(made, conflicts="random"))
    assert (
        given.select_items(range(40)).count_added() + given.select_items(range(40, 100)).count_added()
        == given.count_added()
        < 100
    )


def test_items_whose_ids_the_server_makes_add_one_each_however_often() -> None:
    body = ready_body([b'{"index":{}}\n{"n":1}\n'] * 3)
    assert body.adds is None
    assert body.as_resent() is body


def test_documents_go_to_several_indices_in_turn() -> None:
    action = BulkAction(indices=3)
    body = next(endless(pool(bulk_documents=6, pool_bytes=1, action=action)))
    targets = [line["index"]["_index"] for line in lines(bytes(body.data))[0::2]]
    assert targets == ["nyc_taxis-0", "nyc_taxis-1", "nyc_taxis-2"] * 2
    assert action.index_names(TAXIS.index) == ("nyc_taxis-0", "nyc_taxis-1", "nyc_taxis-2")


@pytest.mark.parametrize("conflicts", ["random", "sequential"])
def test_ids_are_new_or_were_given_before_as_the_body_says(conflicts: Conflicts) -> None:
    action = BulkAction(conflicts=conflicts, conflict_probability_ppm=250_000)
    made = pool(bulk_documents=200, action=action)
    seen: set[str] = set()
    for user in range(2):
        own: set[str] = set()
        for body in itertools.islice(endless(made, user, 2, conflicts), 8):
            ids = [line["index"]["_id"] for line in lines(bytes(body.data))[0::2]]
            assert len(set(ids) - own) == body.count_added()
            own |= set(ids)
            assert 100 < body.count_added() < 190
        assert not seen & own
        seen |= own


def test_a_conflict_can_be_an_update_of_a_document_that_was_sent() -> None:
    action = BulkAction(conflicts="random", conflict_probability_ppm=500_000, on_conflict="update")
    made = pool(bulk_documents=100, pool_bytes=1, action=action)
    known: set[str] = set()
    for body in itertools.islice(endless(made, conflicts="random"), 3):
        found = lines(bytes(body.data))
        for line, document in zip(found[0::2], found[1::2], strict=True):
            (name, meta), *_ = line.items()
            assert (meta["_id"] in known) == (name == "update")
            assert ("doc" in document) == (name == "update")
            known.add(meta["_id"])


def test_without_conflicts_to_draw_every_id_is_new() -> None:
    action = BulkAction(conflicts="sequential", conflict_probability_ppm=0)
    made = pool(bulk_documents=100, pool_bytes=1, action=action)
    ids = [
        line["index"]["_id"]
        for body in itertools.islice(endless(made, 1, 4, "sequential"), 3)
        for line in lines(bytes(body.data))[0::2]
    ]
    assert ids == [f"{1 + 4 * number:010d}" for number in range(300)]


def test_the_bulk_path_carries_pipeline_and_refresh() -> None:
    action = BulkAction(pipeline="a b", refresh="wait_for")
    assert Bulk(path="/i/_bulk", action=BulkAction()).url_path == "/i/_bulk"
    assert Bulk(path="/i/_bulk", action=action).url_path == "/i/_bulk?pipeline=a+b&refresh=wait_for"
    assert Bulk(path="/i/_bulk?type=doc", action=action).url_path == "/i/_bulk?type=doc&pipeline=a+b&refresh=wait_for"


def test_a_bulk_of_two_sizes_or_of_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="cannot be combined with"):
        pool(bulk_documents=1, bulk_bytes=1)
    with pytest.raises(SpecError, match="at least 1"):
        pool(bulk_documents=0)


@pytest.mark.parametrize("kind", ["array", "lines", "single"])
@pytest.mark.parametrize("gzip", [False, True])
def test_each_document_of_a_run_gets_a_number_of_its_own(kind: str, gzip: bool) -> None:
    wire = ProtocolOptions(protocol="json-array", keys={"path": "/", "format": kind, "sequence": "number"})
    protocol = JsonArray.from_wire(wire, "", LoadOptions(gzip=gzip))
    documents = (b'{"a": 1}', b" {}\n", b'{ "b": {"c": "number"}}')[: protocol.max_documents]
    template = protocol.build_body(documents, 1)
    assert isinstance(template, BodyTemplate)
    seen = []
    ids = IdSequence(1, 3, "none", 1)
    for _ in range(2):
        body = template.fill(ids)
        assert body.documents == len(documents)
        assert not body.is_idempotent, "what is sent twice is there twice"
        text = bytes(body.text)
        found = json.loads(text) if kind == "array" else [json.loads(line) for line in text.splitlines()]
        seen += [int(one.pop("number")) for one in found]
        assert found == [json.loads(document) for document in documents]
        assert len(body.select_items([0]).text) - protocol.overhead_bytes <= len(documents[0])
    assert seen == [1 + 3 * place for place in range(2 * len(documents))]


def test_documents_that_have_the_field_of_their_number_already_are_refused() -> None:
    wire = ProtocolOptions(protocol="json-array", keys={"path": "/", "format": "lines", "sequence": "number"})
    protocol = JsonArray.from_wire(wire, "", LoadOptions())
    protocol.build_body((b'{"a": "number"}', b'{"a": {"number": 5}}', b'{"a": "number}'), 1)
    with pytest.raises(SpecError, match='documents have a field "number" of their own'):
        protocol.build_body((b'{"a": 1}', b'{"a": 1, "number": 5}'), 1)
