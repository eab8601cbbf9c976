"""Verdicts about responses of the bulk and search APIs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from bulk_server import bulk_answer

from ingest_bench.documents.body import Body
from ingest_bench.model.load import BulkAction
from ingest_bench.protocols.bulk import Bulk, Search, count_added
from ingest_bench.protocols.response import Response, Verdict

BULK, SEARCH = Bulk(path="/i/_bulk", action=BulkAction()), Search("/i/_search")
SURROUNDING = b'"errors":false "timed_out":false "failed":0 "result":"created"'


def response(status: int, body: bytes) -> Response:
    """Return a response inside a buffer with other bytes."""
    return Response(status, bytearray(SURROUNDING + body + SURROUNDING), len(SURROUNDING), len(SURROUNDING) + len(body))


def judge(status: int, body: bytes, documents: int, adds: list[int] | None = None) -> Verdict:
    sent = Body(b"", documents, adds=None if adds is None else np.array(adds, dtype=np.int8))
    return BULK.judge(response(status, body), sent)


def test_response_without_errors_is_recognized_by_its_beginning() -> None:
    beginning = b'{"took":1,"errors":false,"items":['
    assert (judge(200, beginning, 2).outcome, judge(200, beginning, 2).acked) == ("ok", 2)
    assert judge(500, bulk_answer([201, 201]), 2).acked == 0
    assert judge(200, bulk_answer([201, 400]), 2).acked == 1


def test_errors_false_inside_a_document_id_is_not_a_success() -> None:
    body = json.dumps({"took": 1, "errors": True, "items": [{"index": {"_id": "x" * 300 + '"errors":false'}}]}).encode()
    assert judge(200, body, 1).acked == 0


def test_failed_items_are_counted_by_status_and_type() -> None:
    verdict = judge(200, bulk_answer([201, 429, 400, 200, 429]), 5)
    assert (verdict.outcome, verdict.acked, verdict.failed, verdict.rejected_items) == ("partial", 2, 1, (1, 4))
    assert (verdict.failures, verdict.rejections) == ({"400 kind_400": 1}, {"429 kind_429": 2})


def result_items(*results: tuple[str, int, str]) -> bytes:
    """Return a bulk response with items of action, status, and result or error type."""
    items = [
        {
            action: {"status": status}
            | ({"result": result} if status in (200, 201, 404) else {"error": {"type": result}})
        }
        for action, status, result in results
    ]
    return json.dumps({"errors": any("error" in str(item) for item in items), "items": items}).replace(" ", "").encode()


SUCCESSES = (
    ("index", 201, "created"),
    ("index", 200, "updated"),
    ("delete", 200, "deleted"),
    ("delete", 404, "not_found"),
)


def test_added_documents_are_those_that_the_server_reports() -> None:
    body = result_items(*SUCCESSES, ("update", 201, "created"), ("update", 200, "noop"))
    assert judge(200, body, 6, [1] * 6).added == 1
    assert count_added(response(200, body), 6) == 1
    assert count_added(response(200, body), 5) is None
    assert judge(200, bulk_answer([201, 201]), 2, [1, 0]).added is None


def test_failed_items_add_nothing_and_are_listed() -> None:
    verdict = judge(
        200, result_items(("index", 429, "full"), *SUCCESSES, ("index", 400, "bad"), ("create", 201, "created")), 7
    )
    assert (verdict.acked, verdict.added) == (5, 1)
    assert (verdict.rejected_items, verdict.failed_items, verdict.unacknowledged_items) == ((0,), (5,), (5, 0))
    assert verdict.without_retries().failed_items == (5, 0)
    assert judge(200, bulk_answer([201, 429]), 2).added is None


def test_rejected_items_count_as_failed_without_retries() -> None:
    verdict = judge(200, bulk_answer([201, 429, 400, 429]), 4).without_retries()
    assert (verdict.outcome, verdict.acked, verdict.failed, verdict.rejected_items) == ("partial", 1, 3, ())
    assert verdict.failures == {"429 kind_429": 2, "400 kind_400": 1}


def test_errors_false_after_the_items_acknowledges_all() -> None:
    assert judge(200, b'{"items":[],  "errors" : false}', 7).acked == 7


def test_wrong_number_of_items_is_an_invalid_response() -> None:
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
def test_other_content_with_status_200_is_an_invalid_response(body: bytes) -> None:
    assert judge(200, body, 1).outcome == "invalid-response"


def test_reason_of_the_first_failure_of_a_kind_is_kept_with_its_cause() -> None:
    cause = {"reason": "x", "caused_by": {"type": "number_format_exception", "reason": 'For input string: "n/a"'}}
    errors = [{"type": "parsing", "reason": "failed to parse field [price]", "caused_by": cause}, {"type": "parsing"}]
    errors += [{"type": "full", "reason": "y" * 1000}, {"type": "none"}]
    statuses = (400, 400, 429, 400)
    items = [{"index": {"status": status, "error": error}} for status, error in zip(statuses, errors, strict=True)]
    assert judge(200, json.dumps({"errors": True, "items": items}).encode(), 4).reasons == {
        "400 parsing": 'failed to parse field [price]: For input string: "n/a"',
        "429 full": "y" * 300,
        "400 none": "",
    }


def test_bulk_rejected_as_a_whole_may_be_retried() -> None:
    verdict = judge(429, b'{"error":{"type":"es_rejected_execution_exception"},"status":429}', 3)
    assert (verdict.outcome, verdict.failed, verdict.rejected_items) == ("rejected", 0, (0, 1, 2))
    assert (verdict.without_retries().failed, verdict.without_retries().rejected_items) == (3, ())
    assert verdict.without_retries().failures == {"429 es_rejected_execution_exception": 3}


@pytest.mark.parametrize(("status", "outcome"), [(429, "rejected"), (503, "http-error"), (400, "http-error")])
def test_error_response_without_json_has_no_error_type(status: int, outcome: str) -> None:
    verdict = judge(status, DEEP, 2).without_retries()
    assert (verdict.outcome, verdict.failed, verdict.failures) == (outcome, 2, {f"{status} ": 2})


def test_413_message_names_the_limit() -> None:
    verdict = judge(413, b"", 10)
    assert verdict.outcome == "http-error"
    assert "http.max_content_length" in verdict.message


QUERY = Body(b"{}", 0)
SEARCH_RESULT = (
    b'{"took":3,"timed_out":%s,"_shards":{"total":2,"successful":2,"skipped":0,"failed":%d},"hits":{"hits":[]}}'
)


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, SEARCH_RESULT % (b"false", 0), "ok"),
        (200, b'{"' + b"x" * 300 + b'":1,' + (SEARCH_RESULT % (b"false", 0))[1:], "ok"),
        (200, SEARCH_RESULT % (b"false", 1), "partial"),
        (200, SEARCH_RESULT % (b"true", 0), "partial"),
        (200, b"hello", "invalid-response"),
        (200, b"[]", "invalid-response"),
        (200, DEEP, "invalid-response"),
        (404, b'{"error":{"type":"index_not_found_exception"}}', "http-error"),
        (429, b"{}", "rejected"),
    ],
)
def test_query_is_ok_if_every_shard_responded_in_time(status: int, body: bytes, outcome: str) -> None:
    verdict = SEARCH.judge(response(status, body), QUERY)
    assert verdict.outcome == outcome
    assert bool(verdict.message) == (outcome != "ok")
