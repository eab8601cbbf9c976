"""What the protocols of Cassandra's rows have in common, CQL and Thrift: each test is one of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cql_server
import gevent
import pytest
import thrift_server
from hypothesis import given, settings
from hypothesis import strategies as st
from test_load_process import loaded, outcomes, plan_for
from test_protocols import DOCUMENTS, Sent, Spoken, replies, sent, whole
from test_users import PLANNED_NS, started

from ingest_bench import idl
from ingest_bench.analysis.run import integrity
from ingest_bench.documents.body import IdSequence
from ingest_bench.errors import SpecError
from ingest_bench.idl import cql
from ingest_bench.model.load import BulkAction, LoadOptions, ProtocolOptions
from ingest_bench.model.results import RunRecord
from ingest_bench.model.target import ServerAddress
from ingest_bench.protocols import create_protocol
from ingest_bench.protocols.cql import insert_statement
from ingest_bench.protocols.way import resolve_upstream

with pytest.MonkeyPatch.context() as patched:
    patched.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")

    from ingest_bench.load import users


@dataclass(frozen=True)
class Kind:
    """A protocol of rows, and a server that speaks it."""

    name: str
    rows: Callable[[bytes], Mapping[bytes, tuple[str, bytes]]]
    server: Any
    done: Callable[[], bytes]
    busy: bytes
    """Nothing was written."""
    timed_out: bytes
    """Nobody knows."""
    bad_keyspace: str
    greeting: bytes
    """All that a connection sends once."""

    @property
    def wire(self) -> ProtocolOptions:
        return ProtocolOptions(protocol=self.name, keys={"keyspace": "k"})

    @property
    def speech(self) -> Spoken:
        return Spoken(self.wire, lambda body: [*self.rows(body).values()], lambda _: self.done(), server=self.server)

    def protocol(self, **options: Any) -> Any:
        return create_protocol(self.wire, "nyc_taxis", LoadOptions(**options))

    def answered(self, *answers: bytes | None, retries: int = 5) -> Sent:
        return sent(self.speech, replies(*answers), retries=retries)


CQL = Kind(
    name="cql",
    rows=cql_server.rows,
    server=cql_server.cql_server,
    done=cql_server.done,
    busy=cql_server.raised(0x1001, ""),
    timed_out=cql_server.raised(0x1100, "Operation timed out", bytes(7)),
    bad_keyspace='a"b',
    greeting=cql.encode_startup() + cql.encode_prepare(insert_statement("k", "i")),
)
THRIFT = Kind(
    name="thrift",
    rows=thrift_server.rows,
    server=thrift_server.thrift_server,
    done=thrift_server.returned,
    busy=thrift_server.returned(ue=thrift_server.THRIFT.UnavailableException()),
    timed_out=thrift_server.returned(te=thrift_server.THRIFT.TimedOutException()),
    bad_keyspace="a-b",
    greeting=idl.encode_call("set_keyspace", keyspace="k"),
)


@pytest.fixture(params=[CQL, THRIFT], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kind:
    monkeypatch.setattr(users, "gevent", SimpleNamespace(sleep=lambda _: None))
    found: Kind = request.param
    return found


def test_rows_go_to_all_tables_in_turn(kind: Kind) -> None:
    body = whole(kind.protocol(action=BulkAction(indices=3)), DOCUMENTS)
    found = kind.rows(bytes(body.data))
    assert [document for _, document in found.values()] == DOCUMENTS
    assert [table for table, _ in found.values()] == [f"nyc_taxis_{number % 3}" for number in range(10)]


def test_no_two_rows_of_any_users_have_one_key(kind: Kind) -> None:
    template = kind.protocol().build_body(DOCUMENTS, 1)
    keys = []
    for user in range(3):
        ids, own = IdSequence(user, 3, "none", 1), template.copy()
        keys += [key for _ in range(4) for key in kind.rows(bytes(own.fill(ids).data))]
    assert len(keys) == len(set(keys)) == 3 * 4 * len(DOCUMENTS)


def test_a_share_of_the_keys_was_given_before_where_that_is_asked_for(kind: Kind) -> None:
    action = BulkAction(conflicts="random", conflict_probability_ppm=500_000)
    body = kind.protocol(action=action).build_body(DOCUMENTS * 20, 1).fill(IdSequence(0, 1, "random", 1))
    assert 50 < body.count_added() == len(kind.rows(bytes(body.data))) < 150


@pytest.mark.parametrize("kind", [CQL, THRIFT], ids=lambda kind: kind.name)
@given(documents=st.lists(st.binary(max_size=300), min_size=1, max_size=20), indices=st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_what_a_server_reads_is_what_was_put_in(kind: Kind, documents: list[bytes], indices: int) -> None:
    body = whole(kind.protocol(action=BulkAction(indices=indices)), documents)
    assert [document for _, document in kind.rows(bytes(body.data)).values()] == documents
    assert int(body.item_offsets()[-1]) == len(body.data)


@pytest.mark.parametrize(
    "action", [BulkAction(pipeline="p"), BulkAction(refresh="true"), BulkAction(operation="create")]
)
def test_what_belongs_to_the_bulk_api_is_refused(kind: Kind, action: BulkAction) -> None:
    with pytest.raises(SpecError, match=rf"load\.action: {kind.name} has no"):
        kind.protocol(action=action)


def test_keys_that_come_again_in_several_tables_are_refused_for_nobody_could_count_them(kind: Kind) -> None:
    with pytest.raises(SpecError, match="take out conflicts or indices"):
        kind.protocol(action=BulkAction(conflicts="random", indices=3))


def test_ready_bulk_bodies_are_refused(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="ready bulk bodies"):
        kind.protocol().for_file(tmp_path, has_action_lines=True, index=None)


@pytest.mark.parametrize("keyspace", ["", "a b", "bad", "x" * 49, "ä"])
def test_a_keyspace_that_cassandra_has_not_is_refused(kind: Kind, keyspace: str) -> None:
    keys = {"keyspace": kind.bad_keyspace if keyspace == "bad" else keyspace}
    with pytest.raises(SpecError, match="keyspace"):
        create_protocol(ProtocolOptions(protocol=kind.name, keys=keys), "i", LoadOptions())


def test_a_timeout_of_the_server_is_tried_again_for_each_row_has_a_key_of_ours(kind: Kind) -> None:
    found = kind.answered(kind.timed_out, kind.done())
    assert (found.outcome, found.documents, found.sample.attempts, found.sample.status) == ("ok", (10, 10, 0), 2, 200)
    # What the first attempt wrote nobody knows.
    assert 0 < found.sample.bytes_unanswered < found.sample.bytes_sent == found.server.bytes_read
    first, second = found.server.bodies
    assert first == second


def test_an_error_is_never_taken_for_the_answer_before_it(kind: Kind) -> None:
    """Two answers of one length: the second is a success, and may begin as the first."""
    found = [kind.answered(*order, retries=3) for order in ((kind.busy, kind.busy, kind.done()), (kind.done(),))]
    assert [(one.outcome, one.sample.attempts) for one in found] == [("ok", 3), ("ok", 1)]


def test_a_connection_that_the_node_ended_while_nothing_was_asked_is_not_used_any_more(kind: Kind) -> None:
    with (
        kind.server(lambda _body, _number: kind.done()) as server,
        kind.server(lambda _body, _number: kind.done()) as other,
    ):
        way = resolve_upstream(ServerAddress(endpoint=server.address), ServerAddress(endpoint=other.address))
        user, kept = started(server.address, protocol=kind.speech.protocol, upstream=way)
        gevent.spawn(user.send, PLANNED_NS, kind.speech.body()).get(timeout=60)
        server.end_connections()
        gevent.spawn(user.send, PLANNED_NS, kind.speech.body()).get(timeout=60)
        user.on_stop()
        user.upstream.deadlines.close()
    assert [(sample.attempts, sample.documents_acked) for sample in kept.samples] == [(1, 10)] * 2
    assert [sample.address for sample in kept.samples] == [0, 1]
    assert [server.connections, other.connections] == [1, 1]
    assert kept.samples[0].bytes_sent == kept.samples[1].bytes_sent


def test_each_connection_greets_once_and_every_byte_is_counted(kind: Kind) -> None:
    with kind.server(lambda _body, number: None if number == 3 else kind.done()) as server:
        user, kept = started(server.address, protocol=kind.speech.protocol)
        for _ in range(4):
            gevent.spawn(user.send, PLANNED_NS, kind.speech.body()).get(timeout=60)
        user.on_stop()
        user.upstream.deadlines.close()
    greeting, batch = len(kind.greeting), len(kind.speech.body().data)
    assert [sample.bytes_sent for sample in kept.samples] == [greeting + batch, batch, greeting + 2 * batch, batch]
    assert sum(sample.bytes_sent for sample in kept.samples) == server.bytes_read == user.upstream.traffic.bytes_written
    assert server.connections == 2


@pytest.mark.processes
def test_a_whole_load_is_stored_once_whatever_the_server_does(kind: Kind, tmp_path: Path) -> None:
    stored: set[bytes] = set()

    def reply(body: bytes, number: int) -> bytes | None:
        if number % 7 == 0:
            return kind.busy
        stored.update(kind.rows(body))
        if number % 11 == 0:
            return None
        return kind.timed_out if number % 13 == 0 else kind.done()

    with kind.server(reply) as server:
        plan = dataclasses.replace(plan_for(server.address, tmp_path), wire=kind.wire)
        report, samples, _ = loaded(plan)
    acked = int(samples["documents_acked"].sum())
    assert report.bytes_written == server.bytes_read == samples["bytes_sent"].sum()
    assert report.documents_resent > 0
    assert "ok" in outcomes(samples)
    unknown = int((samples["documents"] - samples["documents_acked"]).sum())
    assert acked <= len(stored) <= acked + unknown
    values = {"documents_acked": acked, "bytes_sent": report.bytes_written, "documents_counted": len(stored)}
    record = RunRecord(run="x/1", replicate=1, cell="x", levels={}, state="measured")
    assert integrity.find_invalid_reasons(record, samples, report, values) == []
