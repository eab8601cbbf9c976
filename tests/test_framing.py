"""Framing of HTTP responses, alone and compared with http.client."""

from __future__ import annotations

import http.client
import io
import itertools
import socket
from typing import cast

import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from ingest_bench.protocols.http1 import HttpResponseReader, parse_response_head
from ingest_bench.protocols.response import InvalidResponseError

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"


def read_response(*parts: bytes, ends: bool = False) -> tuple[int, bytes] | None:
    """Return status and body of a response that is received in parts; None while it is incomplete."""
    reader = HttpResponseReader()
    for part in parts:
        space = reader.free_space()
        assert len(space) >= len(part)
        space[: len(part)] = part
        reader.feed(len(part))
    if ends:
        reader.feed_eof()
    if not reader.is_complete:
        return None
    assert reader.head is not None
    return reader.head.status, bytes(reader.buffer[reader.start : reader.end])


@pytest.mark.parametrize(
    ("raw", "length_bytes", "chunked", "close"),
    [
        (OK + b"Content-Type: application/json\r\nContent-LENGTH:  12 \t\r\n", 12, False, False),
        (OK + b"content-length: 0\r\n", 0, False, False),
        (OK + b"connection: close\r\ncontent-length: 0\r\n", 0, False, True),
        (OK + b"Transfer-Encoding: CHUNKED\r\nConnection: Close\r\n", None, True, True),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n", 3, False, True),
        (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 3\r\n", 3, False, False),
    ],
)
def test_head_tells_length_and_end_of_the_connection(
    raw: bytes, length_bytes: int | None, chunked: bool, close: bool
) -> None:
    head = parse_response_head(raw + b"\r\n")
    assert (head.status, head.length_bytes, head.chunked, head.close) == (200, length_bytes, chunked, close)


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_response_without_length_ends_with_its_connection(version: bytes) -> None:
    raw = b"HTTP/%s 200 OK\r\n\r\nall of it" % version
    assert parse_response_head(raw[:-9]).close
    assert read_response(raw) is None
    assert read_response(raw, ends=True) == (200, b"all of it")


@pytest.mark.parametrize("head", [b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n", b""])
@pytest.mark.parametrize("status", [204, 304])
def test_204_and_304_have_no_body(status: int, head: bytes) -> None:
    assert read_response(b"HTTP/1.1 %d Nothing\r\n%s\r\n" % (status, head)) == (status, b"")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not an HTTP/1 response"),
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", "not an HTTP/1 response"),
        (b"HTTP/1.1 OK\r\n\r\n", "invalid HTTP"),
        (b"HTTP/1.1 099 OK\r\ncontent-length: 0\r\n\r\n", "status is 99"),
        (b"HTTP/2.0 200 OK\r\ncontent-length: 0\r\n\r\n", "not an HTTP/1 response"),
        (b"\r\n\r\n", "not an HTTP/1 response"),
        (b"\n" + OK + b"content-length: 0\r\n\r\n", "not an HTTP/1 response"),
        (b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n", "protocol upgrade"),
        (OK + b"nonsense\r\n\r\n", "invalid HTTP"),
        (OK + b": x\r\n\r\n", "invalid HTTP"),
        (OK + b"x: a\0b\r\n\r\n", "header value"),
        (OK + b"x: a\r\n folded\r\n\r\n", "whitespace"),
        (OK + b"content-length : 4\r\n\r\nabcd", "header field"),
        (OK + b"content-length: 4\r\ncontent-length: 4\r\n\r\nabcd", "Content-Length"),
        (OK + b"content-length: 4\r\ncontent-length: 2\r\n\r\nabcd", "Content-Length"),
        (OK + b"content-length: 4, 4\r\n\r\nabcd", "Content-Length"),
        (OK + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n", "Transfer-Encoding"),
        (OK + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n", "Content-Length"),
        (OK + b"transfer-encoding: gzip, chunked\r\n\r\n", "unrequested transfer-encoding"),
        (OK + b"transfer-encoding: chunked, gzip\r\n\r\n", "unrequested transfer-encoding"),
        (OK + b"transfer-encoding: identity\r\n\r\n", "unrequested transfer-encoding"),
        *(
            (OK + b"content-length: %s\r\n\r\nabcd" % length, "Content-Length")
            for length in (b"", b"four", b"+4", b"-4", b"0x4", b"1_0", b"4.0", b"18446744073709551616")
        ),
        (OK + b"content-length: 2\r\n\r\nabcd", "2 bytes more"),
        (OK + b"content-length: 268435457\r\n\r\n", "limit of 268435456 bytes"),
        (OK + b"x: " + b"y" * 70_000, "head is longer than"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 2600, "head is longer than"),
        *(
            (CHUNKED + size + b"\r\nhello\r\n0\r\n\r\n", "chunk")
            for size in (b"-6", b"+5", b"0x5", b"5_", b"zz", b"", b" 5", b"2", b"6", b"f" * 17)
        ),
        (CHUNKED + b"5\r\nhello\r\n0\r\n\r\nmore", "after the last chunk"),
        (CHUNKED + b"5\r\nhello\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n", "after the last chunk"),
    ],
)
def test_ambiguous_or_invalid_response_is_refused(raw: bytes, message: str) -> None:
    with pytest.raises(InvalidResponseError, match=message):
        read_response(raw)


@pytest.mark.parametrize("part", [b"5;" + b"x" * 50_000, b"0\r\nt: " + b"x" * 50_000])
def test_endless_chunk_extension_or_trailer_is_refused(part: bytes) -> None:
    with pytest.raises(InvalidResponseError, match="more than 65536 bytes"):
        read_response(CHUNKED, part, b"x" * 50_000)


def test_endless_response_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest_bench.protocols.http1.RESPONSE_LIMIT_BYTES", 1_000_000)
    chunk = b"%x\r\n%s\r\n" % (50_000, b"x" * 50_000)
    with pytest.raises(InvalidResponseError, match="limit of 1000000 bytes"):
        read_response(CHUNKED, *[chunk] * 30)
    with pytest.raises(InvalidResponseError, match="limit of 1000000 bytes"):
        read_response(OK + b"\r\n", *[b"x" * 50_000] * 30)


def test_interim_responses_are_skipped_wherever_they_are_split() -> None:
    raw = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
        + OK
        + b"content-length: 2\r\n\r\nab"
    )
    for position in range(len(raw)):
        assert read_response(raw[:position]) is None
        assert read_response(raw[:position], raw[position:]) == (200, b"ab")


def test_chunks_are_joined_wherever_they_are_split() -> None:
    raw = CHUNKED + b"5;x=y\r\nhello\r\n7\r\n, world\r\n0\r\ntrailer: 1\r\n\r\n"
    for position in range(len(raw)):
        assert read_response(raw[:position]) is None
        assert read_response(raw[:position], raw[position:]) == (200, b"hello, world")


def test_chunked_response_may_be_larger_than_the_buffer() -> None:
    body = bytes(range(256)) * 8192
    pieces = [body[position : position + 30_000] for position in range(0, len(body), 30_000)]
    parts = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces]
    assert read_response(CHUNKED, *parts, b"0\r\n\r\n") == (200, body)


class _FakeSocket(io.BytesIO):
    """Socket that `http.client` reads a response from; its position can be read afterwards."""

    def makefile(self, _mode: str) -> _FakeSocket:
        return self

    def close(self) -> None:
        return


def standard_library(raw: bytes) -> tuple[int, bytes, int] | None:
    """Return status, body and consumed bytes of `http.client`; None if it refuses the bytes."""
    received = _FakeSocket(raw)
    response = http.client.HTTPResponse(cast("socket.socket", received))
    try:
        response.begin()
        body = response.read()
    except (http.client.HTTPException, ValueError):
        return None
    return response.status, body, received.tell()


BODIES = st.binary(max_size=40)
CHUNK_LISTS = st.lists(st.binary(min_size=1, max_size=20), max_size=4)
INTERIM = st.lists(
    st.sampled_from([b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n"]), max_size=2
)
HEADERS = st.lists(
    st.sampled_from([b"x: y\r\n", b"Server: a b\r\n", b"x:\r\n", b"connection: keep-alive\r\n"]), max_size=3
)


@st.composite
def valid_responses(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Draw the bytes of a response and its body."""
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


@examples(200)
@given(valid_responses(), st.lists(st.integers(0, 400), max_size=6))
def test_valid_response_is_read_as_by_the_standard_library(answer: tuple[bytes, bytes], cuts: list[int]) -> None:
    raw, body = answer
    places = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    parts = [raw[start:end] for start, end in itertools.pairwise(places) if end > start]
    assert read_response(*parts) == (200, body)
    assert read_response(raw[:-1]) is None
    if b" 103 " not in raw:  # http.client takes an early hint for the response
        assert standard_library(raw) == (200, body, len(raw))


MUTATIONS = st.sampled_from(
    [b"", b"\0", b"\r", b"\n", b"\r\n", b" ", b"-", b"+", b"_", b"0", b"7", b"f", b";", b":", b"\xff"]
)


@examples(250)
@given(valid_responses(), st.integers(0, 400), st.integers(0, 2), MUTATIONS)
def test_accepted_mutation_is_read_as_by_the_standard_library(
    answer: tuple[bytes, bytes], position: int, removed: int, inserted: bytes
) -> None:
    raw = answer[0][:position] + inserted + answer[0][position + removed :]
    try:
        result = read_response(raw)
        read_response(raw, ends=True)
    except InvalidResponseError:
        return
    if result is not None and b" 103 " not in raw:
        expected = standard_library(raw)
        assert expected is not None
        assert expected[:2] == result
        assert not raw[expected[2] :].strip(b"\r\n")  # llhttp accepts line ends after a response
