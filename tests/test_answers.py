from __future__ import annotations

import json

import pytest
from bulk_server import bulk_answer

from ingest_bench.load.answers import BrokenAnswerError, all_acked, all_found, dechunk, judge, judge_search, parse_head


def test_a_head_says_how_long_its_body_is_in_any_case_of_letters() -> None:
    head = parse_head(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-LENGTH:  12 ")
    assert (head.status, head.length_bytes, head.chunked, head.close) == (200, 12, False, False)


def test_a_chunked_head_has_no_length_and_close_is_noticed() -> None:
    head = parse_head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: Close")
    assert (head.length_bytes, head.chunked, head.close) == (None, True, True)


def test_an_answer_of_http_1_0_ends_with_its_connection() -> None:
    assert parse_head(b"HTTP/1.0 200 OK").close


@pytest.mark.parametrize(
    "raw",
    [b"SSH-2.0-OpenSSH", b"HTTP/1.1 OK", b"HTTP/1.1 200 OK\r\nnonsense", b"HTTP/1.1 200\r\ncontent-length: -4", b""],
)
def test_what_is_not_http_is_called_broken(raw: bytes) -> None:
    with pytest.raises(BrokenAnswerError):
        parse_head(raw)


def test_chunks_come_together_whatever_byte_they_break_at() -> None:
    raw = b"5;x=y\r\nhello\r\n7\r\n, world\r\n0\r\ntrailer: 1\r\n\r\n"
    assert all(dechunk(raw, 0, end) is None for end in range(len(raw)))
    assert dechunk(raw, 0, len(raw)) == (b"hello, world", len(raw))


@pytest.mark.parametrize("raw", [b"zz\r\nhello", b"2\r\nhello\r\n0\r\n\r\n", b"1" * 2000])
def test_broken_chunks_are_called_broken(raw: bytes) -> None:
    with pytest.raises(BrokenAnswerError):
        dechunk(raw, 0, len(raw))


def test_an_answer_without_errors_is_known_by_its_beginning() -> None:
    good = bulk_answer([201, 201])
    assert all_acked(200, good, 0, len(good))
    assert not all_acked(500, good, 0, len(good))
    bad = bulk_answer([201, 400])
    assert not all_acked(200, bad, 0, len(bad))


def test_the_word_errors_false_inside_a_document_id_is_not_taken_for_success() -> None:
    body = json.dumps({"took": 1, "errors": True, "items": [{"index": {"_id": "x" * 300 + '"errors":false'}}]}).encode()
    assert not all_acked(200, body, 0, len(body))


def test_failed_items_of_a_200_answer_are_counted_by_status_and_type() -> None:
    verdict = judge(200, bulk_answer([201, 429, 400, 200, 429]), 5)
    assert (verdict.outcome, verdict.acked, verdict.failed, verdict.rejected) == ("partial", 2, 1, (1, 4))
    assert (verdict.failures, verdict.rejections) == ({"400 kind_400": 1}, {"429 kind_429": 2})


def test_rejected_items_have_failed_once_nothing_is_sent_again() -> None:
    verdict = judge(200, bulk_answer([201, 429, 400, 429]), 4).final()
    assert (verdict.outcome, verdict.acked, verdict.failed, verdict.rejected) == ("partial", 1, 3, ())
    assert verdict.failures == {"429 kind_429": 2, "400 kind_400": 1}


def test_an_answer_without_errors_in_another_order_acknowledges_all() -> None:
    assert judge(200, b'{"items":[],  "errors" : false}', 7).acked == 7


def test_an_answer_with_another_number_of_items_is_broken() -> None:
    assert judge(200, bulk_answer([201, 400]), 3).outcome == "broken-answer"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"errors":true}', b'{"errors":true,"items":[{}]}', b"\xff"])
def test_a_200_answer_that_is_not_a_bulk_answer_is_broken(body: bytes) -> None:
    assert judge(200, body, 1).outcome == "broken-answer"


def test_a_whole_bulk_rejected_may_be_sent_again() -> None:
    verdict = judge(429, b'{"error":{"type":"es_rejected_execution_exception"},"status":429}', 3)
    assert (verdict.outcome, verdict.failed, verdict.rejected) == ("rejected", 0, (0, 1, 2))
    assert (verdict.final().failed, verdict.final().rejected) == (3, ())
    assert verdict.final().failures == {"429 es_rejected_execution_exception": 3}


def test_413_is_explained() -> None:
    verdict = judge(413, b"", 10)
    assert verdict.outcome == "http-error"
    assert "http.max_content_length" in verdict.said


SEARCHED = b'{"took":3,"timed_out":%s,"_shards":{"total":2,"successful":2,"skipped":0,"failed":%d},"hits":{"hits":[]}}'


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, SEARCHED % (b"false", 0), "ok"),
        (200, b'{"' + b"x" * 300 + b'":1,' + (SEARCHED % (b"false", 0))[1:], "ok"),
        (200, SEARCHED % (b"false", 1), "partial"),
        (200, SEARCHED % (b"true", 0), "partial"),
        (200, b"hello", "broken-answer"),
        (200, b"[]", "broken-answer"),
        (404, b'{"error":{"type":"index_not_found_exception"}}', "http-error"),
        (429, b"{}", "rejected"),
    ],
)
def test_a_query_is_ok_when_every_shard_answered_in_time(status: int, body: bytes, outcome: str) -> None:
    verdict = judge_search(status, body)
    assert verdict.outcome == outcome
    assert bool(verdict.said) == (outcome != "ok")


@pytest.mark.parametrize(
    ("status", "body", "found"),
    [
        (200, SEARCHED % (b"false", 0), True),
        (200, SEARCHED % (b"false", 1), False),
        (200, SEARCHED % (b"true", 0), False),
        (500, SEARCHED % (b"false", 0), False),
        (200, b"", False),
    ],
)
def test_the_beginning_of_an_answer_tells_that_a_query_was_answered(status: int, body: bytes, found: bool) -> None:
    raw = bytearray(b"head" + body + (SEARCHED % (b"false", 0)))
    assert all_found(status, raw, 4, 4 + len(body)) is found
