"""Every protocol by the same rules: what is sent, what an answer means, and the sample of each ticket."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from bulk_server import BulkServer, Reply, answer, bulk_answer, bulk_server
from cql_server import cql_server, done, raised
from cql_server import rows as cql_rows
from running import free_port
from test_load_process import loaded, outcomes, plan_for
from test_users import PLANNED_NS, started
from thrift_server import THRIFT, returned, rows, thrift_server

from ingest_bench.analysis.run import integrity
from ingest_bench.documents import source
from ingest_bench.documents.body import Body, IdSequence
from ingest_bench.documents.corpus import Corpus
from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog
from ingest_bench.load.worker_state import WorkerState
from ingest_bench.model.load import BulkAction, LoadOptions, ProtocolOptions
from ingest_bench.model.results import RunRecord
from ingest_bench.model.samples import OUTCOMES, Sample
from ingest_bench.model.target import Endpoint
from ingest_bench.protocols import PROTOCOLS, Protocol, create_protocol

with pytest.MonkeyPatch.context() as patched:
    # Without it Locust lets gevent patch the whole process: the servers here are threads, and pytest is no load.
    patched.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")

    from ingest_bench.load import users

DOCUMENTS = [b'{"n":%d,"text":"a,\\n]b"}' % number for number in range(10)]


@dataclass(frozen=True)
class Spoken:
    """A protocol as a server understands it."""

    wire: ProtocolOptions
    read: Callable[[bytes], list[Any]]
    """The documents of a request's body."""
    acknowledge: Callable[[int], bytes]
    """The answer to so many documents."""
    method: bytes = b"POST"
    """Empty: it is not HTTP."""
    again: bytes = answer(b"", "429 Too Many Requests")
    """The answer that says that nothing was done."""
    refuse: bytes = answer(b"no", "400 Bad Request")
    server: Callable[[Reply], AbstractContextManager[BulkServer]] = bulk_server
    key: str = "path"
    """One that it has."""
    is_repeatable: bool = False
    """Whether each document has an id of ours."""
    packs: bool = True
    by_a_library: bool = False
    """No answer can be made up: what becomes of a request is in the tests of that protocol."""

    @property
    def protocol(self) -> Protocol:
        return create_protocol(self.wire, "i", LoadOptions())

    @property
    def documents(self) -> list[bytes]:
        """What goes into one request."""
        return DOCUMENTS[: self.protocol.max_documents]

    def body(self) -> Body:
        return whole(self.protocol, self.documents)


def whole(protocol: Protocol, documents: list[bytes]) -> Body:
    made = protocol.build_body(documents, 1)
    return made if isinstance(made, Body) else made.fill(IdSequence(0, 1, "none", 1))


def json_array(**keys: Any) -> ProtocolOptions:
    return ProtocolOptions(protocol="json-array", keys={"path": "/events?source=x", **keys})


def lines(body: bytes) -> list[Any]:
    return [json.loads(line) for line in body.splitlines()]


def one_behind_the_other(body: bytes) -> list[Any]:
    found, text, at = [], body.decode(), 0
    while at < len(text):
        one, at = json.JSONDecoder().raw_decode(text, at)
        found.append(one)
    return found


SPOKEN = {
    "bulk": Spoken(
        ProtocolOptions(keys={"path": "/i/_bulk"}),
        lambda body: lines(body)[1::2],
        lambda documents: answer(bulk_answer([201] * documents)),
    ),
    "json-array": Spoken(json_array(), json.loads, lambda _: answer(b"", "204 No Content")),
    "json-array of lines": Spoken(json_array(format="lines"), lines, lambda _: answer(b"ok", "202 Accepted")),
    "json-array, one a request": Spoken(
        json_array(format="single", method="PUT"),
        lambda body: [json.loads(body)],
        lambda _: answer(b"", "200 OK"),
        b"PUT",
    ),
    "thrift": Spoken(
        ProtocolOptions(protocol="thrift", keys={"keyspace": "k"}),
        lambda body: [json.loads(document) for _, document in rows(body).values()],
        lambda _: returned(),
        b"",
        returned(ue=THRIFT.UnavailableException()),
        returned(ire=THRIFT.InvalidRequestException(why="no")),
        thrift_server,
        "keyspace",
        is_repeatable=True,
        packs=False,
    ),
    "cql": Spoken(
        ProtocolOptions(protocol="cql", keys={"keyspace": "k"}),
        lambda body: [json.loads(document) for _, document in cql_rows(body).values()],
        lambda _: done(),
        b"",
        raised(0x1001, "Request breached global limit"),
        raised(0x2200, "no"),
        cql_server,
        "keyspace",
        is_repeatable=True,
        packs=False,
    ),
    "kafka": Spoken(
        ProtocolOptions(protocol="kafka"),
        one_behind_the_other,
        lambda _: b"",
        b"",
        key="batch_size",
        packs=False,
        by_a_library=True,
    ),
}


@pytest.fixture(params=SPOKEN, ids=lambda name: name.replace(" ", "-"))
def speech(request: pytest.FixtureRequest) -> Spoken:
    return SPOKEN[request.param]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "gevent", SimpleNamespace(sleep=lambda _: None))


@dataclass(frozen=True)
class Sent:
    sample: Sample
    work: WorkerState
    server: BulkServer

    @property
    def outcome(self) -> str:
        return OUTCOMES[self.sample.outcome]

    @property
    def documents(self) -> tuple[int, int, int]:
        return self.sample.documents, self.sample.documents_acked, self.sample.documents_failed


def ticket(speech: Spoken, address: Endpoint, retries: int) -> tuple[Sample, WorkerState]:
    """The sample of one ticket of that protocol, and the account."""
    if speech.by_a_library:
        pytest.skip("a library speaks it")
    user, kept = started(address, protocol=speech.protocol, retries=retries)
    gevent.spawn(user.send, PLANNED_NS, speech.body()).get(timeout=60)
    user.on_stop()
    user.upstream.deadlines.close()
    return kept.only, user.state


def sent(speech: Spoken, reply: Reply, retries: int = 5) -> Sent:
    """What one ticket of that protocol left here and in the server."""
    with speech.server(reply) as server:
        server.keep_bodies = True
        sample, work = ticket(speech, server.address, retries)
    return Sent(sample, work, server)


def replies(*answers: bytes | None) -> Reply:
    """One answer after the other."""
    rest = iter(answers)
    return lambda _body, _number: next(rest)


def test_no_protocol_is_missing_here() -> None:
    assert {one.wire.protocol for one in SPOKEN.values()} == set(PROTOCOLS)


def test_what_is_sent_is_what_the_server_reads(speech: Spoken) -> None:
    found = sent(speech, lambda body, _: speech.acknowledge(len(speech.read(body))))
    documents = speech.documents
    assert found.outcome == "ok"
    assert found.documents == (len(documents), len(documents), 0)
    (body,) = found.server.bodies
    assert speech.read(body) == [json.loads(document) for document in documents]
    assert all(head.startswith(speech.method + b" /") for head in found.server.heads)
    assert len(found.server.heads) == bool(speech.method)
    assert found.sample.bytes_sent == found.server.bytes_read
    assert found.work.acknowledged == len(documents)


def test_items_lie_where_the_body_says(speech: Spoken) -> None:
    body = speech.body()
    starts = body.item_offsets().tolist()
    assert (starts[0], starts[-1], len(starts)) == (0, len(body.data), body.documents + 1)
    for document, start, end in zip(speech.documents, starts, starts[1:], strict=False):
        assert document in bytes(body.data)[start:end]


def test_what_an_item_has_beside_its_document_is_never_more_than_it_says(speech: Spoken) -> None:
    for documents in (DOCUMENTS[:1], speech.documents):
        body = whole(speech.protocol, documents)
        assert len(body.data) <= sum(map(len, documents)) + len(documents) * speech.protocol.overhead_bytes


def test_a_request_of_which_nothing_was_done_is_tried_again_and_stays_one_request(speech: Spoken) -> None:
    count = len(speech.documents)
    found = sent(speech, replies(speech.again, speech.acknowledge(count)))
    assert (found.outcome, found.documents, found.sample.attempts) == ("ok", (count, count, 0), 2)
    assert (found.work.acknowledged, found.work.documents_resent) == (count, count)
    first, second = found.server.bodies
    assert first == second


def test_one_of_which_nothing_is_ever_done_is_a_rejection(speech: Spoken) -> None:
    found = sent(speech, lambda _body, _number: speech.again, retries=2)
    count = len(speech.documents)
    assert (found.outcome, found.documents, found.sample.attempts) == ("rejected", (count, 0, count), 3)
    assert sum(found.work.item_failures.values()) == count


def test_a_503_is_not_tried_again_where_documents_could_be_stored_twice(speech: Spoken) -> None:
    if speech.is_repeatable:
        pytest.skip("they cannot")
    found = sent(speech, lambda _body, _number: answer(b"busy", "503 Service Unavailable"))
    count = len(speech.documents)
    assert (found.outcome, found.documents, found.sample.attempts) == ("http-error", (count, 0, 0), 1)
    assert sum(found.work.item_failures.values()) == count
    assert found.sample.bytes_unanswered == found.sample.bytes_sent
    assert "503: busy" in found.work.errors()[0]


def test_a_refusal_is_for_good(speech: Spoken) -> None:
    found = sent(speech, lambda _body, _number: speech.refuse)
    count = len(speech.documents)
    assert (found.outcome, found.documents, found.sample.status) == ("http-error", (count, 0, count), 400)
    assert found.sample.bytes_unanswered == 0


def test_a_connection_that_is_reset_without_an_answer_is_a_second_try_where_that_is_safe(speech: Spoken) -> None:
    found = sent(speech, replies(None, speech.acknowledge(len(speech.documents))))
    if speech.is_repeatable:
        count = len(speech.documents)
        assert (found.outcome, found.documents, found.sample.attempts) == ("ok", (count, count, 0), 2)
        assert found.sample.bytes_sent == found.server.bytes_read == 2 * found.sample.bytes_unanswered
        return
    assert (found.outcome, found.sample.attempts, found.sample.documents_acked) == ("connection-error", 1, 0)
    assert "stored twice" in found.work.errors()[0]
    assert found.sample.bytes_unanswered == found.sample.bytes_sent == found.server.bytes_read


def test_nobody_who_listens_is_asked_again_for_nothing_was_sent(speech: Spoken) -> None:
    sample, _ = ticket(speech, Endpoint("127.0.0.1", free_port()), retries=3)
    assert (OUTCOMES[sample.outcome], sample.attempts, sample.bytes_sent) == ("connection-error", 4, 0)


def test_a_body_is_packed_when_it_is_asked_for(speech: Spoken) -> None:
    if not speech.packs:
        with pytest.raises(SpecError, match=rf"load\.gzip: {speech.wire.protocol}"):
            create_protocol(speech.wire, "i", LoadOptions(gzip=True))
        return
    protocol = create_protocol(speech.wire, "i", LoadOptions(gzip=True))
    body = protocol.build_body(speech.documents, 1)
    assert isinstance(body, Body)
    assert gzip.decompress(body.data) == speech.body().data
    assert body.text == speech.body().data


def test_an_unknown_key_of_a_protocol_is_named(speech: Spoken) -> None:
    wrong = speech.key.replace("a", "ah")
    with pytest.raises(SpecError, match=rf'mine\.toml: protocol: unknown key "{wrong}"; did you mean "{speech.key}"'):
        create_protocol(
            ProtocolOptions(protocol=speech.wire.protocol, keys={wrong: "/"}, toml_key="mine.toml: protocol"),
            "i",
            LoadOptions(),
        )


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(SpecError, match='protocol: there is no protocol "json-aray"; did you mean "json-array"'):
        create_protocol(ProtocolOptions(protocol="json-aray"), "i", LoadOptions())


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"method": "GET"}, "method: 'GET' is not one of POST, PUT"),
        ({"format": "xml"}, "format: 'xml' is not one of array, lines, single"),
        ({"path": "events"}, "path: 'events' is not a path of a URL"),
        ({"path": "/a b"}, "path: '/a b' is not a path of a URL"),
        ({"path": "/ HTTP/1.1\r\nx: y"}, "is not a path of a URL"),
        ({"headers": {"x": "a\r\ny: b"}}, "is not the value of a header"),
        ({"headers": {"x y": "a"}}, "is not the name of a header"),
        ({"headers": {"Content-Type": "text/plain"}}, "headers: Content-Type: .* write content_type"),
        ({"headers": {"Content-Length": "7"}}, "headers: Content-Length: ingest-bench says it itself"),
        ({"headers": {"Authorization": "Bearer x"}}, "headers: Authorization: .* INGEST_BENCH_API_KEY"),
        ({"acknowledged": ["100"]}, "acknowledged: .*100.* is not a status"),
        ({"acknowledged": []}, "acknowledged: .* has 0 values"),
        ({"retry": ["429", "2xx"]}, "2xx stands there twice; a status means one thing"),
    ],
)
def test_keys_of_json_array_that_cannot_be_are_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        create_protocol(json_array(**keys), "i", LoadOptions())


def test_json_array_has_nothing_of_the_bulk_api(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"load\.action"):
        create_protocol(json_array(), "i", LoadOptions(action=BulkAction(conflicts="random")))
    with pytest.raises(SpecError, match="ready bulk bodies"):
        create_protocol(json_array(), "i", LoadOptions()).for_file(tmp_path, has_action_lines=True, index=None)


@pytest.mark.parametrize(
    ("status", "outcome", "acked", "failed"),
    [
        ("201 Created", "ok", 10, 0),
        ("409 Conflict", "ok", 10, 0),
        ("425 Too Early", "rejected", 0, 10),
        ("507 Full", "http-error", 0, 10),
        # Neither acknowledged nor refused: nobody knows what became of the documents.
        ("408 Request Timeout", "invalid-response", 0, 0),
        ("500 Internal Server Error", "http-error", 0, 0),
    ],
)
def test_a_status_means_what_its_key_says(status: str, outcome: str, acked: int, failed: int) -> None:
    keys = {"acknowledged": ["2xx", 409], "retry": [425], "refused": [400, 507]}
    speech = Spoken(json_array(**keys), json.loads, lambda _: b"")
    found = sent(speech, lambda _body, _number: answer(b"", status), retries=0)
    assert (found.outcome, found.documents) == (outcome, (10, acked, failed))


def test_the_headers_of_json_array_are_its_own() -> None:
    speech = Spoken(
        json_array(headers={"x-source": "bench"}, content_type="text/json"), json.loads, lambda _: answer(b"")
    )
    (head,) = sent(speech, replies(answer(b""))).server.heads
    assert b"\r\nx-source: bench\r\n" in head
    assert b"\r\ncontent-type: text/json\r\n" in head


def bodies(wire: ProtocolOptions, corpus: Corpus | None = None, **options: Any) -> Iterator[Body]:
    chosen = LoadOptions(**options)
    workload = catalog.load_workload("nyc_taxis")
    protocol = create_protocol(wire, workload.index, chosen)
    return source.open_source(workload, chosen, protocol, corpus=corpus, pool_bytes=1).bodies_of(0)


def test_a_workload_goes_by_every_protocol(speech: Spoken) -> None:
    for body in itertools.islice(bodies(speech.wire, bulk_documents=7), 3):
        assert body.documents == len(speech.read(bytes(body.data))) == min(7, speech.protocol.max_documents or 7)
        assert all("trip_distance" in document for document in speech.read(bytes(body.data)))


def test_a_file_goes_by_every_protocol(speech: Spoken, tmp_path: Path) -> None:
    (tmp_path / "d.ndjson").write_bytes(b"\n".join((*DOCUMENTS, b"")))
    body = next(bodies(speech.wire, Corpus(tmp_path / "d.ndjson", has_action_lines=False), bulk_documents=4))
    assert speech.read(bytes(body.data))[0] == json.loads(DOCUMENTS[0])
    assert body.documents == (speech.protocol.max_documents or 4)


@pytest.mark.nightly
@pytest.mark.processes
def test_a_whole_load_is_accounted_for_whatever_the_server_does(speech: Spoken, tmp_path: Path) -> None:
    if speech.is_repeatable or speech.by_a_library:
        pytest.skip("tests of that protocol")
    stored = itertools.count()

    def reply(body: bytes, number: int) -> bytes | None:
        if number % 7 == 0:
            return speech.again
        documents = speech.read(body)
        for _ in documents:
            next(stored)
        if number % 11 == 0:
            return None
        return answer(b"", "503 Service Unavailable") if number % 13 == 0 else speech.acknowledge(len(documents))

    with speech.server(reply) as server:
        plan = dataclasses.replace(plan_for(server.address, tmp_path), wire=speech.wire)
        report, samples, _ = loaded(plan)
    has, acked = next(stored), int(samples["documents_acked"].sum())
    assert report.bytes_written == server.bytes_read == samples["bytes_sent"].sum()
    assert {"ok", "connection-error", "http-error"} <= outcomes(samples)
    assert report.documents_resent > 0
    # What it stored without a word is what nobody knows: it may be there in addition, and it was never sent again.
    unknown = samples[samples["documents_acked"] == 0]["documents"].sum()
    assert acked < has <= acked + unknown
    values = {"documents_acked": acked, "bytes_sent": report.bytes_written}
    record = RunRecord(run="x/1", replicate=1, cell="x", levels={}, state="measured")
    for counted, is_right in ((has, True), (acked - 1, False), (has + int(unknown) + 1, False)):
        reasons = integrity.find_invalid_reasons(record, samples, report, {**values, "documents_counted": counted})
        assert any(reason.kind == "documents" for reason in reasons) != is_right
