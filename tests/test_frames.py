"""Protocol `frames`: lengths, acknowledgements of any pace, requests without a response, and a real Netty server."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import commands
import gevent
import pytest
from frames_server import FramesServer, frames_server
from test_load_process import loaded, outcomes, plan_for
from test_users import outcome, send, started

from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.inputs.load_values import parse_arrivals
from ingest_bench.model.load import LoadOptions, ProtocolOptions
from ingest_bench.model.target import Endpoint, ServerAddress, Tls
from ingest_bench.protocols.frames import AcknowledgementReader, Frames
from ingest_bench.protocols.response import InvalidResponseError
from ingest_bench.protocols.upstream import resolve_upstream

EXAMPLE = Path(__file__).parent.parent / "docs" / "custom-targets" / "frames.toml"
ACKNOWLEDGE = b"\x06"


def wire(**keys: Any) -> ProtocolOptions:
    return ProtocolOptions(protocol="frames", keys=keys)


def frames(**keys: Any) -> Frames:
    return Frames.from_options(wire(**keys), "", LoadOptions())


@pytest.mark.parametrize(
    ("keys", "heads"),
    [
        ({}, ("00000003", "00000000")),
        ({"length_size": "1"}, ("03", "00")),
        ({"length_size": 2, "length_includes_itself": True}, ("0005", "0002")),
        ({"length_size": 8, "byte_order": "little"}, ("0300000000000000", "0000000000000000")),
    ],
)
def test_length_precedes_each_document(keys: dict[str, Any], heads: tuple[str, str]) -> None:
    first, second = map(bytes.fromhex, heads)
    body = frames(**keys).build_body((b"abc", b""), 1)
    assert bytes(body.data) == first + b"abc" + second
    assert body.item_offsets().tolist() == [0, len(first) + 3, len(body.data)]


def test_document_that_is_longer_than_its_length_can_say_is_refused() -> None:
    frames(length_size=1).build_body((b"x" * 255,), 1)
    with pytest.raises(SpecError, match="a frame of 256 bytes does not fit a length of 1 bytes, which is at most 255"):
        frames(length_size=1, length_includes_itself=True).build_body((b"x" * 255,), 1)


def read_acknowledgements(expected_bytes: int, *received: int) -> AcknowledgementReader:
    reader = AcknowledgementReader()
    reader.expected_bytes = expected_bytes
    reader.reset()
    for size_bytes in received:
        assert not reader.is_complete
        reader.feed(size_bytes)
    return reader


def test_acknowledgements_may_come_in_pieces_and_more_are_an_error() -> None:
    assert not read_acknowledgements(10, 1, 8).is_complete
    reader = read_acknowledgements(10, 1, 8, 1)
    assert reader.is_complete
    reader.reset()
    assert not reader.is_complete
    with pytest.raises(InvalidResponseError, match="11 bytes instead of 10 acknowledge the frames"):
        read_acknowledgements(10, 9, 2)
    with pytest.raises(InvalidResponseError, match=r"begin with b'\\x00\\x00'\. Set"):
        read_acknowledgements(1, 2)


def test_request_without_response_is_lost_if_the_server_closes_meanwhile() -> None:
    reader = read_acknowledgements(0)
    assert reader.is_complete
    reader.feed_eof()
    assert not reader.is_complete


def test_each_frame_is_acknowledged_while_more_are_sent() -> None:
    # More than the kernel buffers at both ends.
    body = frames().build_body([b"x" * 1000] * 20_000, 1)
    with frames_server(lambda _body, _number: ACKNOWLEDGE) as server:
        user, kept = started(server.address, protocol=frames(acknowledgement_size=1))
        send(user, body)
    assert (outcome(kept.only), kept.only.documents_acked, server.requests) == ("ok", 20_000, 20_000)
    # The first acknowledgement, which comes early, proves nothing about the rest of the request.
    assert kept.only.first_byte_ns == kept.only.done_ns
    assert kept.only.bytes_sent == server.bytes_read == len(body.data)


@pytest.mark.parametrize("acknowledgements", [b"", ACKNOWLEDGE * 3, ACKNOWLEDGE * 11])
def test_missing_or_surplus_acknowledgements_are_no_success(acknowledgements: bytes) -> None:
    body = frames().build_body([b"x"] * 10, 1)
    with frames_server(lambda _body, _number: acknowledgements, frames=10) as server:
        user, kept = started(server.address, protocol=frames(acknowledgement_size=1), timeout_ns=2 * 10**8)
        send(user, body)
    user.upstream.deadlines.close()
    assert outcome(kept.only) == ("invalid-response" if len(acknowledgements) > 10 else "timeout")
    assert kept.only.documents_acked == 0


def wait_for(server: FramesServer, size_bytes: int) -> None:
    until_s = time.monotonic() + 10
    while server.bytes_read < size_bytes and time.monotonic() < until_s:
        gevent.sleep(0.01)


@pytest.mark.parametrize("documents", [1, 20_000])
def test_request_without_response_ends_when_the_kernel_has_it(documents: int) -> None:
    body = frames().build_body([b"x" * 1000] * documents, 1)
    with frames_server(lambda _body, _number: b"") as server:
        user, kept = started(server.address, protocol=frames())
        send(user, body, body)
        wait_for(server, 2 * len(body.data))
    assert {(outcome(sample), sample.status) for sample in kept.samples} == {("ok", 0)}
    assert sum(sample.bytes_sent for sample in kept.samples) == server.bytes_read == 2 * len(body.data)
    assert server.requests == sum(sample.documents_acked for sample in kept.samples) == 2 * documents


def test_server_that_responds_or_closes_unexpectedly_is_noticed() -> None:
    body = frames().build_body([b"x" * 1000] * 20_000, 1)
    with frames_server(lambda _body, _number: ACKNOWLEDGE) as server:
        user, kept = started(server.address, protocol=frames(), retries=0)
        send(user, body)
    with frames_server(lambda _body, _number: None) as server:
        other, closed = started(server.address, protocol=frames(), retries=0)
        send(other, body)
    for ended in (user, other):
        ended.upstream.deadlines.close()
    assert (outcome(kept.only), outcome(closed.only)) == ("invalid-response", "connection-error")
    assert "bytes instead of 0 acknowledge the frames" in user.state.errors()[0]


@pytest.mark.parametrize(
    ("reply", "expected", "message"),
    [
        (ACKNOWLEDGE, "invalid-response", "Set acknowledgement_size in the protocol"),
        (None, "connection-error", "frames that it had not read are lost"),
    ],
)
def test_end_of_a_connection_between_requests_without_response_is_a_failure(
    reply: bytes | None, expected: str, message: str
) -> None:
    body = frames().build_body([b"x"], 1)
    with frames_server(lambda _body, _number: reply) as server:
        user, kept = started(server.address, protocol=frames())
        user.exchange(body)
        user.connection._poll_readable(10_000)
        send(user, body)
    assert (outcome(kept.only), kept.only.bytes_sent, kept.only.documents_acked) == (expected, 0, 0)
    assert message in user.state.errors()[0]


def test_tls_is_refused() -> None:
    address = ServerAddress(endpoint=Endpoint("127.0.0.1", 1), tls=Tls(name="localhost"))
    user, _ = started(Endpoint("127.0.0.1", 1), protocol=frames())
    user.upstream = resolve_upstream(address)
    with pytest.raises(RunFailed, match=r"frames: TLS is not supported\. Use a URL with http://, or remove start\.tls"):
        user.on_start()


@pytest.mark.processes
@pytest.mark.parametrize("acknowledgement_size", [0, 1])
def test_load_of_frames_is_counted_by_the_server(tmp_path: Path, acknowledgement_size: int) -> None:
    with frames_server(lambda _body, _number: ACKNOWLEDGE * acknowledgement_size) as server:
        plan = plan_for(server.address, tmp_path, arrivals=parse_arrivals("200/s"))
        report, samples, _ = loaded(dataclasses.replace(plan, wire=wire(acknowledgement_size=acknowledgement_size)))
        wait_for(server, report.bytes_written)
    # On a busy machine the end of the load cuts off the last requests.
    assert {"ok"} <= outcomes(samples) <= {"ok", "cut-off"}
    assert report.bytes_written == server.bytes_read == samples["bytes_sent"].sum()
    assert samples["documents"][samples["bytes_sent"] > 0].sum() == server.requests
    assert 0 < samples["documents_acked"].sum() <= server.requests


@pytest.mark.jvm
@pytest.mark.netns
@pytest.mark.processes
def test_netty_reads_every_frame() -> None:
    commands.fill_cache()
    with commands.place() as here:
        options = ("--warm-up", "500ms", "--measure", "1s", "--set", "bulk=500KB", "--out", "out")
        here.run("--target", str(EXAMPLE), "--set", "network=ethernet-100m", *options)
        values = here.read_row()
    assert (values["state"], values["documents_check"]) == ("measured", "counted")
    assert values["documents_counted"] == values["documents_acked"] != "0"
    assert values["bytes_read"] == values["bytes_sent"] != "0"
