"""How answers are framed: pure, and beside another parser."""

from __future__ import annotations

import http.client
import io
import itertools
import socket
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest_bench.protocols.http1.framing import HttpResponseReader, parse_response_head
from ingest_bench.protocols.verdict import BrokenResponseError

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"


def heard(*parts: bytes, closed: bool = False) -> tuple[int, bytes] | None:
    """Status and body of an answer that comes in these parts; None while something is missing."""
    answer = HttpResponseReader()
    for part in parts:
        room = answer.free_space()
        assert len(room) >= len(part)
        room[: len(part)] = part
        answer.feed(len(part))
    if closed:
        answer.feed_eof()
    if not answer.is_complete:
        return None
    assert answer.head is not None
    return answer.head.status, bytes(answer.buffer[answer.start : answer.end])


def test_a_head_says_how_long_its_body_is_in_any_case_of_letters() -> None:
    head = parse_response_head(OK + b"Content-Type: application/json\r\nContent-LENGTH:  12 \t\r\n\r\n")
    assert (head.status, head.length_bytes, head.chunked, head.close) == (200, 12, False, False)


def test_an_empty_answer_leaves_its_connection_open() -> None:
    assert [
        parse_response_head(OK + head + b"content-length: 0\r\n\r\n").close for head in (b"", b"connection: close\r\n")
    ] == [
        False,
        True,
    ]


def test_a_chunked_head_has_no_length_and_close_is_noticed() -> None:
    head = parse_response_head(OK + b"Transfer-Encoding: CHUNKED\r\nConnection: Close\r\n\r\n")
    assert (head.length_bytes, head.chunked, head.close) == (None, True, True)


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_an_answer_without_a_length_ends_with_its_connection(version: bytes) -> None:
    raw = b"HTTP/%s 200 OK\r\n\r\nall of it" % version
    assert parse_response_head(raw[:-9]).close
    assert heard(raw) is None
    assert heard(raw, closed=True) == (200, b"all of it")


def test_an_answer_of_http_1_0_with_a_length_closes_unless_it_says_otherwise() -> None:
    assert parse_response_head(b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\n").close
    assert not parse_response_head(b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 3\r\n\r\n").close


@pytest.mark.parametrize("head", [b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n", b""])
@pytest.mark.parametrize("status", [204, 304])
def test_204_and_304_have_no_body_whatever_their_head_says(status: int, head: bytes) -> None:
    assert heard(b"HTTP/1.1 %d Nothing\r\n%s\r\n" % (status, head)) == (status, b"")


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not an HTTP answer"),
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", "not an HTTP answer"),
        (b"HTTP/1.1 OK\r\n\r\n", "broken HTTP"),
        (b"HTTP/1.1 099 OK\r\ncontent-length: 0\r\n\r\n", "status is 99"),
        (b"HTTP/2.0 200 OK\r\ncontent-length: 0\r\n\r\n", "not an HTTP answer of version 1"),
        (b"\r\n\r\n", "not an HTTP answer"),
        (b"\n" + OK + b"content-length: 0\r\n\r\n", "not an HTTP answer"),
        (b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n", "changes the protocol"),
        (OK + b"nonsense\r\n\r\n", "broken HTTP"),
        (OK + b": x\r\n\r\n", "broken HTTP"),
        (OK + b"x: a\0b\r\n\r\n", "header value"),
        (OK + b"x: a\r\n folded\r\n\r\n", "whitespace"),
        (OK + b"content-length : 4\r\n\r\nabcd", "header field"),
        (OK + b"content-length: 4\r\ncontent-length: 4\r\n\r\nabcd", "Content-Length"),
        (OK + b"content-length: 4\r\ncontent-length: 2\r\n\r\nabcd", "Content-Length"),
        (OK + b"content-length: 4, 4\r\n\r\nabcd", "Content-Length"),
        (OK + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n", "Transfer-Encoding"),
        (OK + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n", "Content-Length"),
        (OK + b"transfer-encoding: gzip, chunked\r\n\r\n", "nobody asked for"),
        (OK + b"transfer-encoding: chunked, gzip\r\n\r\n", "nobody asked for"),
        (OK + b"transfer-encoding: identity\r\n\r\n", "nobody asked for"),
        *(
            (OK + b"content-length: %s\r\n\r\nabcd" % length, "Content-Length")
            for length in (b"", b"four", b"+4", b"-4", b"0x4", b"1_0", b"4.0", b"18446744073709551616")
        ),
        (OK + b"content-length: 2\r\n\r\nabcd", "2 bytes more"),
        (OK + b"content-length: 268435457\r\n\r\n", "more than 268435456 bytes"),
        (OK + b"x: " + b"y" * 70_000, "has no end"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 2600, "has no end"),
        *(
            (CHUNKED + size + b"\r\nhello\r\n0\r\n\r\n", "chunk")
            for size in (b"-6", b"+5", b"0x5", b"5_", b"zz", b"", b" 5", b"2", b"6", b"f" * 17)
        ),
        (CHUNKED + b"5\r\nhello\r\n0\r\n\r\nmore", "after the last chunk"),
        (CHUNKED + b"5\r\nhello\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n", "after the last chunk"),
    ],
)
def test_what_can_be_read_in_two_ways_or_not_at_all_is_refused(raw: bytes, said: str) -> None:
    with pytest.raises(BrokenResponseError, match=said):
        heard(raw)


@pytest.mark.parametrize("part", [b"5;" + b"x" * 50_000, b"0\r\nt: " + b"x" * 50_000])
def test_a_chunk_extension_or_a_trailer_without_end_is_refused(part: bytes) -> None:
    with pytest.raises(BrokenResponseError, match="more than 65536 bytes"):
        heard(CHUNKED, part, b"x" * 50_000)


def test_an_answer_that_grows_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest_bench.protocols.http1.framing._ANSWER_LIMIT_BYTES", 1_000_000)
    chunk = b"%x\r\n%s\r\n" % (50_000, b"x" * 50_000)
    with pytest.raises(BrokenResponseError, match="more than 1000000 bytes"):
        heard(CHUNKED, *[chunk] * 30)
    with pytest.raises(BrokenResponseError, match="more than 1000000 bytes"):
        heard(OK + b"\r\n", *[b"x" * 50_000] * 30)


def test_interim_answers_are_skipped_wherever_they_break() -> None:
    raw = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
        + OK
        + b"content-length: 2\r\n\r\nab"
    )
    for place in range(len(raw)):
        assert heard(raw[:place]) is None
        assert heard(raw[:place], raw[place:]) == (200, b"ab")


def test_chunks_come_together_wherever_they_break() -> None:
    raw = CHUNKED + b"5;x=y\r\nhello\r\n7\r\n, world\r\n0\r\ntrailer: 1\r\n\r\n"
    for place in range(len(raw)):
        assert heard(raw[:place]) is None
        assert heard(raw[:place], raw[place:]) == (200, b"hello, world")


def test_an_answer_of_many_chunks_is_larger_than_the_buffer() -> None:
    body = bytes(range(256)) * 8192
    pieces = [body[place : place + 30_000] for place in range(0, len(body), 30_000)]
    parts = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces]
    assert heard(CHUNKED, *parts, b"0\r\n\r\n") == (200, body)


class _Received(io.BytesIO):
    """What `http.client` reads an answer from, as if it were a socket; afterwards it can still be asked."""

    def makefile(self, _mode: str) -> _Received:
        return self

    def close(self) -> None:
        return


def standard_library(raw: bytes) -> tuple[int, bytes, int] | None:
    """What Python's own client makes of the same bytes and how many it took; None: it refuses them."""
    received = _Received(raw)
    answer = http.client.HTTPResponse(cast("socket.socket", received))
    try:
        answer.begin()
        body = answer.read()
    except (http.client.HTTPException, ValueError):
        return None
    return answer.status, body, received.tell()


BODIES = st.binary(max_size=40)
CHUNK_LISTS = st.lists(st.binary(min_size=1, max_size=20), max_size=4)
INTERIM = st.lists(
    st.sampled_from([b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n"]), max_size=2
)
HEADERS = st.lists(
    st.sampled_from([b"x: y\r\n", b"Server: a b\r\n", b"x:\r\n", b"connection: keep-alive\r\n"]), max_size=3
)


@st.composite
def good_answers(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """The bytes of an answer, and its body."""
    before = b"".join(draw(INTERIM)) + OK + b"".join(draw(HEADERS))
    if draw(st.booleans()):
        body = draw(BODIES)
        return before + b"Content-Length: %d\r\n\r\n%s" % (len(body), body), body
    chunks = draw(CHUNK_LISTS)
    ending = draw(st.sampled_from([b"", b";a=b", b';a="b"']))
    parts = [b"%x%s\r\n%s\r\n" % (len(chunk), ending, chunk) for chunk in chunks]
    trailer = draw(st.sampled_from([b"", b"t: 1\r\n"]))
    coded = b"".join(parts) + b"0\r\n" + trailer + b"\r\n"
    return before + b"Transfer-Encoding: chunked\r\n\r\n" + coded, b"".join(chunks)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(good_answers(), st.lists(st.integers(0, 400), max_size=6))
def test_a_good_answer_is_read_alike_however_it_is_cut_and_by_the_standard_library(
    answer: tuple[bytes, bytes], cuts: list[int]
) -> None:
    raw, body = answer
    places = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    parts = [raw[start:end] for start, end in itertools.pairwise(places) if end > start]
    assert heard(*parts) == (200, body)
    assert heard(raw[:-1]) is None
    if b" 103 " not in raw:  # http.client takes an early hint for the answer
        assert standard_library(raw) == (200, body, len(raw))


MUTATIONS = st.sampled_from(
    [b"", b"\0", b"\r", b"\n", b"\r\n", b" ", b"-", b"+", b"_", b"0", b"7", b"f", b";", b":", b"\xff"]
)


@settings(derandomize=True, max_examples=500, deadline=None)
@given(good_answers(), st.integers(0, 400), st.integers(0, 2), MUTATIONS)
def test_what_is_accepted_of_a_damaged_answer_is_what_the_standard_library_reads(
    answer: tuple[bytes, bytes], place: int, removed: int, put: bytes
) -> None:
    raw = answer[0][:place] + put + answer[0][place + removed :]
    try:
        ours = heard(raw)
    except BrokenResponseError:
        return
    if ours is not None and b" 103 " not in raw:
        theirs = standard_library(raw)
        assert theirs is not None
        assert theirs[:2] == ours
        assert not raw[theirs[2] :].strip(b"\r\n")  # llhttp lets line ends stand after an answer


@settings(derandomize=True, max_examples=500, deadline=None)
@given(
    st.lists(st.sampled_from([OK, CHUNKED, b"content-length: 3\r\n", b"\r\n", b"-6", b"3", b"abc", b"0", b"\0", b" "]))
)
def test_any_bytes_are_an_answer_or_a_part_of_one_or_refused(parts: list[bytes]) -> None:
    try:
        heard(*parts, closed=True)
    except BrokenResponseError:
        return
