"""Rules that hold for every protocol: sent bodies, meaning of responses, and the sample of each arrival."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import grpc_server as grpc
import pytest
import unpatched_locust  # noqa: F401 - before Locust
from bulk_server import BulkServer, Reply, answer, bulk_answer, bulk_server
from cql_server import cql_server, encode_error, encode_success, parse_batch
from frames_server import frames_server, parse_frames
from http2_server import http2_server
from running import free_port
from test_users import PLANNED_NS, started
from thrift_server import THRIFT, encode_result, parse_call, thrift_server

from ingest_bench.documents import source
from ingest_bench.documents.body import Body, IdSequence
from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog
from ingest_bench.load import users
from ingest_bench.load.worker_state import WorkerState
from ingest_bench.model.load import BulkAction, DocumentField, LoadOptions, ProtocolOptions, TrackFile
from ingest_bench.model.samples import OUTCOMES, Sample
from ingest_bench.model.target import Endpoint
from ingest_bench.protocols.protocol import PROTOCOLS, Protocol, create_protocol

DOCUMENTS = [b'{"n":%d,"text":"a,\\n]b"}' % number for number in range(10)]


@dataclass(frozen=True)
class ProtocolCase:
    """A protocol and a server that speaks it."""

    wire: ProtocolOptions
    read: Callable[[bytes], list[Any]]
    """Parse the documents of a request's body."""
    acknowledge: Callable[[int], bytes]
    """Response that acknowledges that many documents."""
    method: bytes = b"POST"
    """Empty: not HTTP."""
    reject: bytes | None = answer(b"", "429 Too Many Requests")
    """Response that means that nothing was stored; None: the protocol has none."""
    refuse: bytes | None = answer(b"no", "400 Bad Request")
    """Response that means that nothing will be stored; None: the protocol has none."""
    fail: bytes | None = answer(b"busy", "503 Service Unavailable")
    """Response after which it is unknown if documents are stored, with the text "busy".
    None: the protocol has none, or its documents cannot be stored twice."""
    server: Callable[[Reply], AbstractContextManager[BulkServer]] = bulk_server
    key: str = "path"
    """A valid key; empty: it has none."""
    is_idempotent: bool = False
    """True if each document has a generated id."""
    compresses: bool = True
    options: LoadOptions = field(default_factory=LoadOptions)
    uses_library: bool = False
    """Responses cannot be faked: the results of requests are in the tests of that protocol."""

    @property
    def protocol(self) -> Protocol:
        return create_protocol(self.wire, "i", self.options)

    @property
    def documents(self) -> list[bytes]:
        """Documents of one request."""
        return DOCUMENTS[: self.protocol.max_documents]

    def body(self) -> Body:
        return fill_body(self.protocol, self.documents)


def fill_body(protocol: Protocol, documents: list[bytes]) -> Body:
    body = protocol.build_body(documents, 1)
    return body if isinstance(body, Body) else body.fill(IdSequence(0, 1, "none", 1))


def json_array(**keys: Any) -> ProtocolOptions:
    return ProtocolOptions(protocol="json-array", keys={"path": "/events?source=x", **keys})


def lines(body: bytes) -> list[Any]:
    return [json.loads(line) for line in body.splitlines()]


def parse_concatenated(body: bytes) -> list[Any]:
    values, text, offset = [], body.decode(), 0
    while offset < len(text):
        value, offset = json.JSONDecoder().raw_decode(text, offset)
        values.append(value)
    return values


CASES = {
    "bulk": ProtocolCase(
        ProtocolOptions(keys={"path": "/i/_bulk"}),
        lambda body: lines(body)[1::2],
        lambda documents: answer(bulk_answer([201] * documents)),
    ),
    "bulk over HTTP/2": ProtocolCase(
        ProtocolOptions(keys={"path": "/i/_bulk"}),
        lambda body: lines(body)[1::2],
        lambda documents: answer(bulk_answer([201] * documents)),
        server=http2_server,
        options=LoadOptions(http_version="2"),
    ),
    "json-array over HTTP/2": ProtocolCase(
        json_array(method="PUT", headers={"X-Source": "bench"}),
        json.loads,
        lambda _: answer(b"", "204 No Content"),
        b"PUT",
        server=http2_server,
        options=LoadOptions(http_version="2"),
    ),
    "json-array": ProtocolCase(json_array(), json.loads, lambda _: answer(b"", "204 No Content")),
    "json-array of lines": ProtocolCase(json_array(format="lines"), lines, lambda _: answer(b"ok", "202 Accepted")),
    "json-array, one a request": ProtocolCase(
        json_array(format="single", method="PUT"),
        lambda body: [json.loads(body)],
        lambda _: answer(b"", "200 OK"),
        b"PUT",
    ),
    "json-array in an envelope": ProtocolCase(
        json_array(before='{"records":', each='{"value":{document}}', after="}", as_text=True),
        lambda body: [json.loads(record["value"]) for record in json.loads(body)["records"]],
        lambda _: answer(b"", "200 OK"),
    ),
    "frames": ProtocolCase(
        ProtocolOptions(protocol="frames", keys={"acknowledgement_size": 2}),
        lambda body: [json.loads(document) for document in parse_frames(body)],
        lambda documents: b"ok" * documents,
        b"",
        None,
        None,
        None,
        partial(frames_server, frames=len(DOCUMENTS)),
        "acknowledgement_size",
        compresses=False,
    ),
    "opensearch-grpc": ProtocolCase(
        ProtocolOptions(protocol="opensearch-grpc"),
        grpc.parse_documents,
        lambda documents: grpc.encode_items([grpc.OK] * documents),
        b"",
        grpc.encode_error(grpc.RESOURCE_EXHAUSTED, "rejected execution"),
        grpc.encode_error(grpc.INVALID_ARGUMENT, "no"),
        grpc.encode_error(grpc.UNAVAILABLE, "busy"),
        grpc.grpc_server,
        "",
        compresses=False,
    ),
    "thrift": ProtocolCase(
        ProtocolOptions(protocol="thrift", keys={"keyspace": "k"}),
        lambda body: [json.loads(document) for _, document in parse_call(body).values()],
        lambda _: encode_result(),
        b"",
        encode_result(ue=THRIFT.UnavailableException()),
        encode_result(ire=THRIFT.InvalidRequestException(why="no")),
        None,
        thrift_server,
        "keyspace",
        is_idempotent=True,
        compresses=False,
    ),
    "cql": ProtocolCase(
        ProtocolOptions(protocol="cql", keys={"keyspace": "k"}),
        lambda body: [json.loads(document) for _, document in parse_batch(body).values()],
        lambda _: encode_success(),
        b"",
        encode_error(0x1001, "Request breached global limit"),
        encode_error(0x2200, "no"),
        None,
        cql_server,
        "keyspace",
        is_idempotent=True,
        compresses=False,
    ),
    "kafka": ProtocolCase(
        ProtocolOptions(protocol="kafka"),
        parse_concatenated,
        lambda _: b"",
        b"",
        key="batch_size",
        compresses=False,
        uses_library=True,
    ),
}


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "-"))
def case(request: pytest.FixtureRequest) -> ProtocolCase:
    return CASES[request.param]


@dataclass(frozen=True)
class SentArrival:
    sample: Sample
    state: WorkerState
    server: BulkServer

    @property
    def outcome(self) -> str:
        return OUTCOMES[self.sample.outcome]

    @property
    def documents(self) -> tuple[int, int, int]:
        return self.sample.documents, self.sample.documents_acked, self.sample.documents_failed


def send_bodies(user: Any, *bodies: Body) -> None:
    for body in bodies:
        gevent.spawn(user.send, PLANNED_NS, body).get(timeout=60)


def send_arrival(case: ProtocolCase, address: Endpoint, retries: int) -> tuple[Sample, WorkerState]:
    """Send one arrival and return its sample and the worker state."""
    if case.uses_library:
        pytest.skip("a library implements it")
    user, sink = started(address, protocol=case.protocol, retries=retries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(users, "gevent", SimpleNamespace(sleep=lambda _: None))
        send_bodies(user, case.body())
    user.on_stop()
    user.upstream.deadlines.close()
    return sink.only, user.state


def send_to(case: ProtocolCase, reply: Reply, retries: int = 5) -> SentArrival:
    """Send one arrival to a server with these replies."""
    with case.server(reply) as server:
        server.keep_bodies = True
        sample, state = send_arrival(case, server.address, retries)
    return SentArrival(sample, state, server)


def replies(*answers: bytes | None) -> Reply:
    """Reply with one response after the other."""
    remaining = iter(answers)
    return lambda _body, _number: next(remaining)


def available(response: bytes | None) -> bytes:
    """Return a response of the protocol; the test is skipped if the protocol has no such response."""
    if response is None:
        pytest.skip("the protocol has no such response")
    return response


def test_every_protocol_has_a_case() -> None:
    assert {case.wire.protocol for case in CASES.values()} == set(PROTOCOLS)


def test_server_reads_the_sent_documents(case: ProtocolCase) -> None:
    result = send_to(case, lambda body, _: case.acknowledge(len(case.read(body))))
    documents = case.documents
    assert result.outcome == "ok"
    assert result.documents == (len(documents), len(documents), 0)
    (body,) = result.server.bodies
    assert case.read(body) == [json.loads(document) for document in documents]
    assert all(head.startswith(case.method + b" /") for head in result.server.heads)
    assert len(result.server.heads) == bool(case.method)
    assert result.sample.bytes_sent == result.server.bytes_read
    assert result.state.acknowledged == len(documents)


def test_item_offsets_enclose_each_document(case: ProtocolCase) -> None:
    body = case.body()
    starts = body.item_offsets().tolist()
    assert (starts[0], starts[-1], len(starts)) == (0, len(body.data), body.documents + 1)
    for document, start, end in zip(case.documents, starts, starts[1:], strict=False):
        item, text = bytes(body.data)[start:end], json.dumps(document.decode()).encode()
        assert document in item or text in item


def test_overhead_of_items_is_never_larger_than_announced(case: ProtocolCase) -> None:
    protocol = case.protocol
    for documents in (DOCUMENTS[:1], case.documents):
        body = fill_body(protocol, documents)
        items_bytes = sum(map(protocol.measure, documents)) + len(documents) * protocol.overhead_bytes
        assert len(body.data) <= items_bytes + protocol.envelope_bytes


def test_rejected_request_is_retried_and_remains_one_arrival(case: ProtocolCase) -> None:
    count = len(case.documents)
    result = send_to(case, replies(available(case.reject), case.acknowledge(count)))
    assert (result.outcome, result.documents, result.sample.attempts) == ("ok", (count, count, 0), 2)
    assert (result.state.acknowledged, result.state.documents_resent) == (count, count)
    first, second = result.server.bodies
    assert first == second


def test_request_that_is_always_rejected_is_a_rejection(case: ProtocolCase) -> None:
    rejection = available(case.reject)
    result = send_to(case, lambda _body, _number: rejection, retries=2)
    count = len(case.documents)
    assert (result.outcome, result.documents, result.sample.attempts) == ("rejected", (count, 0, count), 3)
    assert sum(result.state.item_failures.values()) == count


def test_failed_request_is_not_retried_if_documents_could_be_stored_twice(case: ProtocolCase) -> None:
    failure = available(case.fail)
    result = send_to(case, lambda _body, _number: failure)
    count = len(case.documents)
    assert (result.outcome, result.documents, result.sample.attempts) == ("http-error", (count, 0, 0), 1)
    assert sum(result.state.item_failures.values()) == count
    assert result.sample.bytes_unanswered == result.sample.bytes_sent
    assert "busy" in result.state.errors()[0]


def test_refused_request_is_not_retried(case: ProtocolCase) -> None:
    refusal = available(case.refuse)
    result = send_to(case, lambda _body, _number: refusal)
    count = len(case.documents)
    assert (result.outcome, result.documents, result.sample.status) == ("http-error", (count, 0, count), 400)
    assert result.sample.bytes_unanswered == 0


def test_request_without_response_is_retried_only_if_idempotent(case: ProtocolCase) -> None:
    result = send_to(case, replies(None, case.acknowledge(len(case.documents))))
    if case.is_idempotent:
        count = len(case.documents)
        assert (result.outcome, result.documents, result.sample.attempts) == ("ok", (count, count, 0), 2)
        assert result.sample.bytes_sent == result.server.bytes_read == 2 * result.sample.bytes_unanswered
        return
    assert (result.outcome, result.sample.attempts, result.sample.documents_acked) == ("connection-error", 1, 0)
    assert "stored twice" in result.state.errors()[0]
    assert result.sample.bytes_unanswered == result.sample.bytes_sent == result.server.bytes_read


def test_refused_connection_is_retried(case: ProtocolCase) -> None:
    sample, _ = send_arrival(case, Endpoint("127.0.0.1", free_port()), retries=3)
    assert (OUTCOMES[sample.outcome], sample.attempts, sample.bytes_sent) == ("connection-error", 4, 0)


def test_body_is_compressed_on_request(case: ProtocolCase) -> None:
    if not case.compresses:
        with pytest.raises(SpecError, match=rf"load\.gzip: {case.wire.protocol}"):
            create_protocol(case.wire, "i", LoadOptions(gzip=True))
        return
    protocol = create_protocol(case.wire, "i", LoadOptions(gzip=True))
    body = protocol.build_body(case.documents, 1)
    assert isinstance(body, Body)
    assert gzip.decompress(body.data) == case.body().data
    assert body.text == case.body().data


def test_unknown_key_of_a_protocol_is_named(case: ProtocolCase) -> None:
    wrong = case.key.replace("a", "ah") or "path"
    remedy = f'did you mean "{case.key}"' if case.key else f"{case.wire.protocol} has none"
    with pytest.raises(SpecError, match=rf'mine\.toml: protocol: unknown key "{wrong}"; {remedy}'):
        create_protocol(
            ProtocolOptions(protocol=case.wire.protocol, keys={wrong: "/"}, toml_key="mine.toml: protocol"),
            "i",
            LoadOptions(),
        )


def test_unknown_protocol_is_named() -> None:
    with pytest.raises(SpecError, match='protocol: unknown protocol "json-aray"; did you mean "json-array"'):
        create_protocol(ProtocolOptions(protocol="json-aray"), "i", LoadOptions())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"method": "GET"}, "method: 'GET' is not one of POST, PUT"),
        ({"format": "xml"}, "format: 'xml' is not one of array, lines, single"),
        ({"path": "events"}, "path: 'events' is not a path of a URL"),
        ({"path": "/a b"}, "path: '/a b' is not a path of a URL"),
        ({"path": "/ HTTP/1.1\r\nx: y"}, "is not a path of a URL"),
        ({"headers": {"x": "a\r\ny: b"}}, "is not the value of a header"),
        ({"headers": {"x y": "a"}}, "is not the name of a header"),
        ({"headers": {"Content-Type": "text/plain"}}, "headers: Content-Type: .* use content_type"),
        ({"headers": {"Content-Length": "7"}}, "headers: Content-Length: is set by ingest-bench"),
        ({"headers": {"Authorization": "Bearer x"}}, "headers: Authorization: .* INGEST_BENCH_API_KEY"),
        ({"acknowledged": ["100"]}, "acknowledged: .*100.* is not a status"),
        ({"acknowledged": []}, "acknowledged: .* has 0 values"),
        ({"retry": ["429", "2xx"]}, "2xx occurs twice; a status has one meaning"),
    ],
)
def test_invalid_keys_of_json_array_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        create_protocol(json_array(**keys), "i", LoadOptions())


@pytest.mark.parametrize(
    "action", [BulkAction(pipeline="p"), BulkAction(refresh="true"), BulkAction(operation="create")]
)
def test_options_of_the_bulk_api_are_refused(case: ProtocolCase, action: BulkAction) -> None:
    name = case.wire.protocol
    if name == "bulk":
        pytest.skip("it is the bulk API")
    if name != "opensearch-grpc":
        with pytest.raises(SpecError, match=rf"load\.action: {name} has no"):
            create_protocol(case.wire, "i", LoadOptions(action=action))
    with pytest.raises(SpecError, match=f"a file of bulk bodies cannot be sent with {name}"):
        case.protocol.for_file(TrackFile(path="bulk.json", index="", has_action_lines=True))


@pytest.mark.parametrize(
    ("status", "outcome", "acked", "failed"),
    [
        ("201 Created", "ok", 10, 0),
        ("409 Conflict", "ok", 10, 0),
        ("425 Too Early", "rejected", 0, 10),
        ("507 Full", "http-error", 0, 10),
        # Neither acknowledged nor refused: the documents may be stored.
        ("408 Request Timeout", "invalid-response", 0, 0),
        ("500 Internal Server Error", "http-error", 0, 0),
    ],
)
def test_status_has_the_meaning_of_its_key(status: str, outcome: str, acked: int, failed: int) -> None:
    keys = {"acknowledged": ["2xx", 409], "retry": [425], "refused": [400, 507]}
    case = ProtocolCase(json_array(**keys), json.loads, lambda _: b"")
    result = send_to(case, lambda _body, _number: answer(b"", status), retries=0)
    assert (result.outcome, result.documents) == (outcome, (10, acked, failed))


def test_json_array_sends_its_configured_headers() -> None:
    case = ProtocolCase(
        json_array(headers={"x-source": "bench"}, content_type="text/json"), json.loads, lambda _: answer(b"")
    )
    (head,) = send_to(case, replies(answer(b""))).server.heads
    assert b"\r\nx-source: bench\r\n" in head
    assert b"\r\ncontent-type: text/json\r\n" in head


def open_bodies(wire: ProtocolOptions, *files: TrackFile, **options: Any) -> Iterator[Body]:
    load_options = LoadOptions(**options)
    fields = (DocumentField(name="n", kind="id"), DocumentField(name="text", kind="constant", options={"value": "x"}))
    workload = dataclasses.replace(catalog.load_workload("nyc_taxis"), fields=fields)
    protocol = create_protocol(wire, workload.index, load_options)
    return source.open_source(workload, load_options, protocol, files=files, pool_bytes=1).bodies_of(0)


def test_workload_can_be_sent_with_every_protocol(case: ProtocolCase) -> None:
    for body in itertools.islice(open_bodies(case.wire, bulk_documents=7), 3):
        assert body.documents == len(case.read(bytes(body.data))) == min(7, case.protocol.max_documents or 7)
        assert all("text" in document for document in case.read(bytes(body.data)))


def test_file_can_be_sent_with_every_protocol(case: ProtocolCase, tmp_path: Path) -> None:
    (tmp_path / "d.ndjson").write_bytes(b"\n".join((*DOCUMENTS, b"")))
    body = next(open_bodies(case.wire, TrackFile(path=str(tmp_path / "d.ndjson"), index=""), bulk_documents=4))
    assert case.read(bytes(body.data))[0] == json.loads(DOCUMENTS[0])
    assert body.documents == (case.protocol.max_documents or 4)
