"""Bulk bodies: what is in them, who gets which, and which ids are new."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json

import pytest

from ingest_bench import catalog
from ingest_bench.documents import body as bodies
from ingest_bench.documents.body import BodyPool, pool
from ingest_bench.errors import SpecError
from ingest_bench.model.workload import BulkAction, DocumentField

FIELDS = (
    DocumentField(name="n", kind="id"),
    DocumentField(name="fare", kind="decimal", distinct=64, options={"minimum": 1, "maximum": 99}),
    DocumentField(name="rest", kind="constant", distinct=1, options={"value": "." * 440}),
)
TAXIS = dataclasses.replace(catalog.workload("nyc_taxis"), fields=FIELDS)
SMALL = 200_000


def lines(data: bytes) -> list[dict[str, dict[str, str]]]:
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def test_a_body_has_an_action_line_before_each_document() -> None:
    made = pool(TAXIS, bulk_documents=50, seed=1, pool_bytes=SMALL)
    body = next(made.cycle(0, 1))
    found = lines(bytes(body.data))
    assert body.documents == body.documents_new == 50
    assert found[0::2] == [{"index": {}}] * 50
    assert all("fare" in document for document in found[1::2])


def test_the_pool_is_as_large_as_asked_and_the_size_defaults_to_the_published_one() -> None:
    made = pool(TAXIS, seed=1, pool_bytes=SMALL)
    assert isinstance(made, BodyPool)
    assert [body.documents for body in made.bodies] == [TAXIS.bulk_documents]
    smaller = pool(TAXIS, bulk_documents=100, seed=1, pool_bytes=SMALL)
    assert isinstance(smaller, BodyPool)
    assert SMALL <= sum(len(body.data) for body in smaller.bodies) <= SMALL + 2 * 60_000


def test_a_bulk_in_bytes_is_as_full_as_it_can_be_and_never_larger() -> None:
    made = pool(TAXIS, bulk_bytes=20_000, seed=1, pool_bytes=SMALL)
    assert isinstance(made, BodyPool)
    assert all(19_000 < len(body.data) <= 20_000 for body in made.bodies)


def test_a_document_larger_than_the_bulk_goes_alone() -> None:
    made = pool(TAXIS, bulk_bytes=10, seed=1, pool_bytes=5_000)
    assert isinstance(made, BodyPool)
    assert {body.documents for body in made.bodies} == {1}


def test_users_take_disjoint_strides_and_come_round_again() -> None:
    made = pool(TAXIS, bulk_documents=20, seed=1, pool_bytes=SMALL)
    assert isinstance(made, BodyPool)
    taken = [list(made.cycle(user, 3, once=True)) for user in range(3)]
    assert sorted(id(body) for user in taken for body in user) == sorted(map(id, made.bodies))
    cycled = list(itertools.islice(made.cycle(1, 3), len(taken[1]) + 1))
    assert cycled[0] is cycled[-1]


def test_more_users_than_bodies_share_them() -> None:
    made = pool(TAXIS, bulk_documents=100, seed=1, pool_bytes=1)
    assert [next(made.cycle(user, 5)).documents for user in range(5)] == [100] * 5


def test_processes_send_different_documents() -> None:
    first, second = (pool(TAXIS, seed=1, bulk_documents=50, pool_bytes=SMALL, part=n, parts=2) for n in range(2))
    assert isinstance(first, BodyPool)
    assert isinstance(second, BodyPool)
    assert not {body.data for body in first.bodies} & {body.data for body in second.bodies}


def test_a_packed_body_is_the_same_body() -> None:
    plain = next(pool(TAXIS, bulk_documents=50, seed=1, pool_bytes=1).cycle(0, 1))
    packed = next(pool(TAXIS, bulk_documents=50, seed=1, pool_bytes=1, compress=True).cycle(0, 1))
    assert gzip.decompress(packed.data) == plain.data
    assert packed.gzip
    assert not plain.gzip


@pytest.mark.parametrize("compress", [False, True])
def test_only_the_refused_items_are_sent_again(compress: bool) -> None:
    body = next(pool(TAXIS, bulk_documents=50, seed=1, pool_bytes=1, compress=compress).cycle(0, 1))
    again = bodies.only(body, [3, 7])
    assert again.documents == 2
    assert bodies.items(again) == [bodies.items(body)[3], bodies.items(body)[7]]


def test_documents_go_to_several_indices_in_turn() -> None:
    action = BulkAction(indices=3)
    body = next(pool(TAXIS, bulk_documents=6, seed=1, pool_bytes=1, action=action).cycle(0, 1))
    targets = [line["index"]["_index"] for line in lines(bytes(body.data))[0::2]]
    assert targets == ["nyc_taxis-0", "nyc_taxis-1", "nyc_taxis-2"] * 2
    assert bodies.index_names(TAXIS, action) == ("nyc_taxis-0", "nyc_taxis-1", "nyc_taxis-2")


@pytest.mark.parametrize("conflicts", ["random", "sequential"])
def test_ids_are_new_or_were_given_before_as_the_body_says(conflicts: str) -> None:
    action = BulkAction(conflicts=conflicts, conflict_probability_ppm=250_000)  # type: ignore[arg-type]
    made = pool(TAXIS, bulk_documents=200, seed=1, pool_bytes=SMALL, action=action)
    seen: set[str] = set()
    for user in range(2):
        own: set[str] = set()
        for body in itertools.islice(made.cycle(user, 2), 8):
            ids = [line["index"]["_id"] for line in lines(bytes(body.data))[0::2]]
            assert len(set(ids) - own) == body.documents_new
            own |= set(ids)
            assert 100 < body.documents_new < 190
        assert not seen & own
        seen |= own


def test_a_conflict_can_be_an_update_of_a_document_that_was_sent() -> None:
    action = BulkAction(conflicts="random", conflict_probability_ppm=500_000, on_conflict="update")
    made = pool(TAXIS, bulk_documents=100, seed=1, pool_bytes=1, action=action)
    known: set[str] = set()
    for body in itertools.islice(made.cycle(0, 1), 3):
        found = lines(bytes(body.data))
        for line, document in zip(found[0::2], found[1::2], strict=True):
            (name, meta), *_ = line.items()
            assert (meta["_id"] in known) == (name == "update")
            assert ("doc" in document) == (name == "update")
            known.add(meta["_id"])


def test_without_conflicts_to_draw_every_id_is_new() -> None:
    action = BulkAction(conflicts="sequential", conflict_probability_ppm=0)
    made = pool(TAXIS, bulk_documents=100, seed=1, pool_bytes=1, action=action)
    ids = [
        line["index"]["_id"] for body in itertools.islice(made.cycle(1, 4), 3) for line in lines(bytes(body.data))[0::2]
    ]
    assert ids == [f"{1 + 4 * number:010d}" for number in range(300)]


def test_the_bulk_path_carries_pipeline_and_refresh() -> None:
    assert bodies.bulk_query(BulkAction()) == ""
    assert bodies.bulk_query(BulkAction(pipeline="a b", refresh="wait_for")) == "?pipeline=a+b&refresh=wait_for"


def test_a_bulk_of_two_sizes_or_of_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="not both"):
        pool(TAXIS, bulk_documents=1, bulk_bytes=1, seed=1)
    with pytest.raises(SpecError, match="at least 1"):
        pool(TAXIS, bulk_documents=0, seed=1)
