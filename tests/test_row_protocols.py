"""Rules that hold for both protocols of rows, CQL and Thrift."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cql_server
import pytest
import thrift_server
from hypothesis import given, settings
from hypothesis import strategies as st
from test_load_process import loaded, outcomes, plan_for
from test_protocols import DOCUMENTS, ProtocolCase, SentArrival, fill_body, replies, send_bodies, send_to
from test_users import started

from ingest_bench.analysis.run import integrity
from ingest_bench.documents.body import IdSequence
from ingest_bench.errors import SpecError
from ingest_bench.model.load import BulkAction, LoadOptions, ProtocolOptions, TrackFile
from ingest_bench.model.results import RunRecord
from ingest_bench.model.target import ServerAddress
from ingest_bench.protocols import cql_wire, thrift_wire
from ingest_bench.protocols.cql import insert_statement
from ingest_bench.protocols.protocol import create_protocol
from ingest_bench.protocols.upstream import resolve_upstream


@dataclass(frozen=True)
class Kind:
    """A protocol of rows and a server that speaks it."""

    name: str
    rows: Callable[[bytes], Mapping[bytes, tuple[str, bytes]]]
    server: Any
    done: Callable[[], bytes]
    busy: bytes
    """Error after which no row was written."""
    timed_out: bytes
    """Error after which rows may be written."""
    bad_keyspace: str
    handshake: bytes
    """Bytes that a connection sends once."""

    @property
    def protocol_options(self) -> ProtocolOptions:
        return ProtocolOptions(protocol=self.name, keys={"keyspace": "k"})

    @property
    def case(self) -> ProtocolCase:
        return ProtocolCase(
            self.protocol_options, lambda body: [*self.rows(body).values()], lambda _: self.done(), server=self.server
        )

    def protocol(self, **options: Any) -> Any:
        return create_protocol(self.protocol_options, "nyc_taxis", LoadOptions(**options))

    def send_with_replies(self, *answers: bytes | None, retries: int = 5) -> SentArrival:
        return send_to(self.case, replies(*answers), retries=retries)


CQL = Kind(
    name="cql",
    rows=cql_server.parse_batch,
    server=cql_server.cql_server,
    done=cql_server.encode_success,
    busy=cql_server.encode_error(0x1001, ""),
    timed_out=cql_server.encode_error(0x1100, "Operation timed out", bytes(7)),
    bad_keyspace='a"b',
    handshake=cql_wire.encode_startup() + cql_wire.encode_prepare(insert_statement("k", "i")),
)
THRIFT = Kind(
    name="thrift",
    rows=thrift_server.parse_call,
    server=thrift_server.thrift_server,
    done=thrift_server.encode_result,
    busy=thrift_server.encode_result(ue=thrift_server.THRIFT.UnavailableException()),
    timed_out=thrift_server.encode_result(te=thrift_server.THRIFT.TimedOutException()),
    bad_keyspace="a-b",
    handshake=thrift_wire.encode_call("set_keyspace", keyspace="k"),
)


@pytest.fixture(params=[CQL, THRIFT], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


def test_rows_go_to_all_tables_in_turn(kind: Kind) -> None:
    body = fill_body(kind.protocol(action=BulkAction(indices=3)), DOCUMENTS)
    rows = kind.rows(bytes(body.data))
    assert [document for _, document in rows.values()] == DOCUMENTS
    assert [table for table, _ in rows.values()] == [f"nyc_taxis_{number % 3}" for number in range(10)]


def test_keys_are_unique_across_users(kind: Kind) -> None:
    template = kind.protocol().build_body(DOCUMENTS, 1)
    keys = []
    for user in range(3):
        ids, copy = IdSequence(user, 3, "none", 1), template.copy()
        keys += [key for _ in range(4) for key in kind.rows(bytes(copy.fill(ids).data))]
    assert len(keys) == len(set(keys)) == 3 * 4 * len(DOCUMENTS)


def test_conflicts_reuse_a_share_of_the_keys(kind: Kind) -> None:
    action = BulkAction(conflicts="random", conflict_probability_ppm=500_000)
    body = kind.protocol(action=action).build_body(DOCUMENTS * 20, 1).fill(IdSequence(0, 1, "random", 1))
    assert 50 < body.count_added() == len(kind.rows(bytes(body.data))) < 150


@pytest.mark.parametrize("kind", [CQL, THRIFT], ids=lambda kind: kind.name)
@given(documents=st.lists(st.binary(max_size=300), min_size=1, max_size=20), indices=st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_server_reads_any_documents_unchanged(kind: Kind, documents: list[bytes], indices: int) -> None:
    body = fill_body(kind.protocol(action=BulkAction(indices=indices)), documents)
    assert [document for _, document in kind.rows(bytes(body.data)).values()] == documents
    assert int(body.item_offsets()[-1]) == len(body.data)


@pytest.mark.parametrize(
    "action", [BulkAction(pipeline="p"), BulkAction(refresh="true"), BulkAction(operation="create")]
)
def test_options_of_the_bulk_api_are_refused(kind: Kind, action: BulkAction) -> None:
    with pytest.raises(SpecError, match=rf"load\.action: {kind.name} has no"):
        kind.protocol(action=action)


def test_conflicts_in_several_tables_are_refused(kind: Kind) -> None:
    with pytest.raises(SpecError, match="conflicts cannot be combined with indices"):
        kind.protocol(action=BulkAction(conflicts="random", indices=3))


def test_bulk_bodies_are_refused(kind: Kind) -> None:
    with pytest.raises(SpecError, match="a file of bulk bodies cannot be sent"):
        kind.protocol().for_file(TrackFile(path="bulk.json", index="", has_action_lines=True))


@pytest.mark.parametrize("keyspace", ["", "a b", "bad", "x" * 49, "ä"])
def test_invalid_keyspace_is_refused(kind: Kind, keyspace: str) -> None:
    keys = {"keyspace": kind.bad_keyspace if keyspace == "bad" else keyspace}
    with pytest.raises(SpecError, match="keyspace"):
        create_protocol(ProtocolOptions(protocol=kind.name, keys=keys), "i", LoadOptions())


def test_repeated_timeouts_fail_with_documents_in_doubt(kind: Kind) -> None:
    result = kind.send_with_replies(*[kind.timed_out] * 3, retries=2)
    assert (result.outcome, result.documents, result.sample.status) == ("http-error", (10, 0, 0), 504)
    assert sum(result.state.item_failures.values()) == 10


def test_server_timeout_is_retried(kind: Kind) -> None:
    result = kind.send_with_replies(kind.timed_out, kind.done())
    assert (result.outcome, result.documents, result.sample.attempts, result.sample.status) == (
        "ok",
        (10, 10, 0),
        2,
        200,
    )
    assert 0 < result.sample.bytes_unanswered < result.sample.bytes_sent == result.server.bytes_read
    first, second = result.server.bodies
    assert first == second


def test_error_is_never_mistaken_for_the_previous_response(kind: Kind) -> None:
    """Check two responses of one length: the second is a success, and may begin as the first."""
    results = [
        kind.send_with_replies(*order, retries=3) for order in ((kind.busy, kind.busy, kind.done()), (kind.done(),))
    ]
    assert [(result.outcome, result.sample.attempts) for result in results] == [("ok", 3), ("ok", 1)]


def test_connection_that_the_node_ended_while_idle_is_replaced(kind: Kind) -> None:
    with (
        kind.server(lambda _body, _number: kind.done()) as server,
        kind.server(lambda _body, _number: kind.done()) as other,
    ):
        upstream = resolve_upstream(ServerAddress(endpoint=server.address), ServerAddress(endpoint=other.address))
        user, sink = started(server.address, protocol=kind.case.protocol, upstream=upstream)
        send_bodies(user, kind.case.body())
        server.end_connections()
        send_bodies(user, kind.case.body())
        user.on_stop()
        user.upstream.deadlines.close()
    assert [(sample.attempts, sample.documents_acked) for sample in sink.samples] == [(1, 10)] * 2
    assert [sample.address for sample in sink.samples] == [0, 1]
    assert [server.connections, other.connections] == [1, 1]
    assert sink.samples[0].bytes_sent == sink.samples[1].bytes_sent


def test_each_connection_has_one_handshake_and_all_bytes_are_counted(kind: Kind) -> None:
    with kind.server(lambda _body, number: None if number == 3 else kind.done()) as server:
        user, sink = started(server.address, protocol=kind.case.protocol)
        for _ in range(4):
            send_bodies(user, kind.case.body())
        user.on_stop()
        user.upstream.deadlines.close()
    handshake, batch = len(kind.handshake), len(kind.case.body().data)
    assert [sample.bytes_sent for sample in sink.samples] == [handshake + batch, batch, handshake + 2 * batch, batch]
    assert sum(sample.bytes_sent for sample in sink.samples) == server.bytes_read == user.upstream.traffic.bytes_written
    assert server.connections == 2


@pytest.mark.processes
def test_load_is_stored_once_with_a_failing_server(kind: Kind, tmp_path: Path) -> None:
    stored: set[bytes] = set()

    def reply(body: bytes, number: int) -> bytes | None:
        if number % 7 == 0:
            return kind.busy
        stored.update(kind.rows(body))
        if number % 11 == 0:
            return None
        return kind.timed_out if number % 13 == 0 else kind.done()

    with kind.server(reply) as server:
        plan = dataclasses.replace(plan_for(server.address, tmp_path), wire=kind.protocol_options)
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
