from __future__ import annotations

import json

import numpy as np
import pytest
from bulk_server import bulk_answer

from ingest_bench.documents.body import Body
from ingest_bench.model.load import BulkAction
from ingest_bench.protocols.bulk import Bulk, count_added
from ingest_bench.protocols.queries import Search
from ingest_bench.protocols.verdict import Response, Verdict

BULK, SEARCH = Bulk(path="/i/_bulk", action=BulkAction()), Search("/i/_search")
AROUND = b'"errors":false "timed_out":false "failed":0 "result":"created"'


def answered(status: int, body: bytes) -> Response:
    """In the middle of a buffer that holds something else."""
    return Response(status, bytearray(AROUND + body + AROUND), len(AROUND), len(AROUND) + len(body))


def judge(status: int, body: bytes, documents: int, adds: list[int] | None = None) -> Verdict:
    sent = Body(b"", documents, adds=None if adds is None else np.array(adds, dtype=np.int8))
    return BULK.judge(answered(status, body), sent)


def test_an_answer_without_errors_is_known_by_its_beginning() -> None:
    beginning = b'{"took":1,"errors":false,"items":['
    assert (judge(200, beginning, 2).outcome, judge(200, beginning, 2).acked) == ("ok", 2)
    assert judge(500, bulk_answer([201, 201]), 2).acked == 0
    assert judge(200, bulk_answer([201, 400]), 2).acked == 1


def test_the_word_errors_false_inside_a_document_id_is_not_taken_for_success() -> None:
    body = json.dumps({"took": 1, "errors": True, "items": [{"index": {"_id": "x" * 300 + '"errors":false'}}]}).encode()
    assert judge(200, body, 1).acked == 0


def test_failed_items_of_a_200_answer_are_counted_by_status_and_type() -> None:
    verdict = judge(200, bulk_answer([201, 429, 400, 200, 429]), 5)
    assert (verdict.outcome, verdict.acked, verdict.failed, verdict.rejected_items) == ("partial", 2, 1, (1, 4))
    assert (verdict.failures, verdict.rejections) == ({"400 kind_400": 1}, {"429 kind_429": 2})


def told(*results: tuple[str, int, str]) -> bytes:
    """The answer of a server that says what it did: action, status, result (or the type of the error)."""
    items = [
        {action: {"status": status} | ({"result": said} if status in (200, 201, 404) else {"error": {"type": said}})}
        for action, status, said in results
    ]
    return json.dumps({"errors": any("error" in str(item) for item in items), "items": items}).replace(" ", "").encode()


DONE = (("index", 201, "created"), ("index", 200, "updated"), ("delete", 200, "deleted"), ("delete", 404, "not_found"))


def test_what_the_index_has_more_is_what_the_server_says() -> None:
    said = told(*DONE, ("update", 201, "created"), ("update", 200, "noop"))
    assert judge(200, said, 6, [1] * 6).added == 1
    assert count_added(answered(200, said), 6) == 1
    assert count_added(answered(200, said), 5) is None
    assert judge(200, bulk_answer([201, 201]), 2, [1, 0]).added is None


def test_items_that_failed_beside_others_add_nothing_and_are_named() -> None:
    verdict = judge(200, told(("index", 429, "full"), *DONE, ("index", 400, "bad"), ("create", 201, "created")), 7)
    assert (verdict.acked, verdict.added) == (5, 1)
    assert (verdict.rejected_items, verdict.failed_items, verdict.unacknowledged_items) == ((0,), (5,), (5, 0))
    assert verdict.without_retries().failed_items == (5, 0)
    assert judge(200, bulk_answer([201, 429]), 2).added is None


def test_a_deletion_that_finds_nothing_has_not_failed() -> None:
    verdict = judge(200, told(("delete", 404, "not_found"), ("index", 400, "bad")), 2)
    assert (verdict.acked, verdict.failed, verdict.added) == (1, 1, 0)


def test_rejected_items_have_failed_once_nothing_is_sent_again() -> None:
    verdict = judge(200, bulk_answer([201, 429, 400, 429]), 4).without_retries()
    assert (verdict.outcome, verdict.acked, verdict.failed, verdict.rejected_items) == ("partial", 1, 3, ())
    assert verdict.failures == {"429 kind_429": 2, "400 kind_400": 1}


def test_an_answer_without_errors_in_another_order_acknowledges_all() -> None:
    assert judge(200, b'{"items":[],  "errors" : false}', 7).acked == 7


def test_an_answer_with_another_number_of_items_is_broken() -> None:
    assert judge(200, bulk_answer([201, 400]), 3).outcome == "invalid-response"


DEEP = b"[" * 200_000


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"<html>", b"[]", b'{"errors":true}', b'{"errors":true,"items":[{}]}', b"\xff", DEEP),
        *(
            b'{"errors":true,"items":[{"index":{"status":%s}}]}' % status
            for status in (b"1e999", b"NaN", b'"x"', b"[]")
        ),
    ],
)
def test_a_200_answer_that_is_not_a_bulk_answer_is_broken(body: bytes) -> None:
    assert judge(200, body, 1).outcome == "invalid-response"


def test_a_whole_bulk_rejected_may_be_sent_again() -> None:
    verdict = judge(429, b'{"error":{"type":"es_rejected_execution_exception"},"status":429}', 3)
    assert (verdict.outcome, verdict.failed, verdict.rejected_items) == ("rejected", 0, (0, 1, 2))
    assert (verdict.without_retries().failed, verdict.without_retries().rejected_items) == (3, ())
    assert verdict.without_retries().failures == {"429 es_rejected_execution_exception": 3}


@pytest.mark.parametrize(("status", "outcome"), [(429, "rejected"), (503, "http-error"), (400, "http-error")])
def test_a_refusal_whose_words_are_no_json_is_one_without_a_kind(status: int, outcome: str) -> None:
    verdict = judge(status, DEEP, 2).without_retries()
    assert (verdict.outcome, verdict.failed, verdict.failures) == (outcome, 2, {f"{status} ": 2})


def test_413_is_explained() -> None:
    verdict = judge(413, b"", 10)
    assert verdict.outcome == "http-error"
    assert "http.max_content_length" in verdict.message


QUERY = Body(b"{}", 0)
SEARCHED = b'{"took":3,"timed_out":%s,"_shards":{"total":2,"successful":2,"skipped":0,"failed":%d},"hits":{"hits":[]}}'


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, SEARCHED % (b"false", 0), "ok"),
        (200, b'{"' + b"x" * 300 + b'":1,' + (SEARCHED % (b"false", 0))[1:], "ok"),
        (200, SEARCHED % (b"false", 1), "partial"),
        (200, SEARCHED % (b"true", 0), "partial"),
        (200, b"hello", "invalid-response"),
        (200, b"[]", "invalid-response"),
        (200, DEEP, "invalid-response"),
        (404, b'{"error":{"type":"index_not_found_exception"}}', "http-error"),
        (429, b"{}", "rejected"),
    ],
)
def test_a_query_is_ok_when_every_shard_answered_in_time(status: int, body: bytes, outcome: str) -> None:
    verdict = SEARCH.judge(answered(status, body), QUERY)
    assert verdict.outcome == outcome
    assert bool(verdict.message) == (outcome != "ok")
