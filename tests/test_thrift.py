"""The protocol of Cassandra 0.7: calls, what their answers mean, and what a broken server cannot do to a load."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_load_process import loaded, outcomes, plan_for
from test_protocols import DOCUMENTS, Sent, Spoken, replies, sent, ticket, whole
from test_users import PLANNED_NS, started
from thrift_server import THRIFT, refused, returned, rows, thrift_server

from ingest_bench import idl
from ingest_bench.analysis import integrity
from ingest_bench.documents.ids import Ids
from ingest_bench.errors import SpecError
from ingest_bench.model.load import LoadOptions, Wire
from ingest_bench.model.results import RunRecord
from ingest_bench.model.workload import BulkAction
from ingest_bench.protocols import connection, spoken
from ingest_bench.protocols.thrift.frames import Frames
from ingest_bench.protocols.verdict import BrokenAnswerError

with pytest.MonkeyPatch.context() as patched:
    patched.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")

    from ingest_bench.load.users import sender

WIRE = Wire(protocol="thrift", keys={"keyspace": "k"})
SPEECH = Spoken(WIRE, lambda body: [*rows(body).values()], lambda _: returned(), server=thrift_server)
TIMED_OUT = returned(te=THRIFT.TimedOutException())


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "gevent", SimpleNamespace(sleep=lambda _: None))


def framed(message: bytes) -> bytes:
    return idl.LENGTH.pack(len(message)) + message


def answered(*answers: bytes | None, retries: int = 5) -> Sent:
    return sent(SPEECH, replies(*answers), retries=retries)


def protocol(**options: Any) -> Any:
    return spoken(WIRE, "nyc_taxis", LoadOptions(**options))


def test_rows_go_to_all_column_families_in_turn() -> None:
    body = whole(protocol(action=BulkAction(indices=3)), DOCUMENTS)
    found = rows(bytes(body.data))
    assert [document for _, document in found.values()] == DOCUMENTS
    assert [family for family, _ in found.values()] == [f"nyc_taxis_{number % 3}" for number in range(10)]


def test_no_two_rows_of_any_users_have_one_key() -> None:
    template = protocol().body(DOCUMENTS, 1)
    keys = []
    for user in range(3):
        ids, own = Ids(user, 3, "none", 1), template.copy()
        keys += [key for _ in range(4) for key in rows(bytes(own.filled(ids).data))]
    assert len(keys) == len(set(keys)) == 3 * 4 * len(DOCUMENTS)


def test_a_share_of_the_keys_was_given_before_where_that_is_asked_for() -> None:
    template = protocol(action=BulkAction(conflicts="random", conflict_probability_ppm=500_000)).body(DOCUMENTS * 20, 1)
    body = template.filled(Ids(0, 1, "random", 1))
    assert 50 < body.added() == len(rows(bytes(body.data))) < 150


@given(documents=st.lists(st.binary(max_size=300), min_size=1, max_size=20), indices=st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_what_thriftpy2_reads_is_what_was_put_in(documents: list[bytes], indices: int) -> None:
    body = whole(protocol(action=BulkAction(indices=indices)), documents)
    assert [document for _, document in rows(bytes(body.data)).values()] == documents
    assert int(body.starts()[-1]) == len(body.data)


@pytest.mark.parametrize(
    "action", [BulkAction(pipeline="p"), BulkAction(refresh="true"), BulkAction(operation="create")]
)
def test_what_belongs_to_the_bulk_api_is_refused(action: BulkAction) -> None:
    with pytest.raises(SpecError, match=r"load\.action: thrift has no"):
        protocol(action=action)


def test_keys_that_come_again_in_several_column_families_are_refused_for_nobody_could_count_them() -> None:
    with pytest.raises(SpecError, match="take out conflicts or indices"):
        protocol(action=BulkAction(conflicts="random", indices=3))


def test_ready_bulk_bodies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="ready bulk bodies"):
        protocol().of_file(tmp_path, ready=True, index=None)


@pytest.mark.parametrize("keyspace", ["", "a b", "a-b", "x" * 49, "ä"])
def test_a_keyspace_that_cassandra_has_not_is_refused(keyspace: str) -> None:
    with pytest.raises(SpecError, match="keyspace"):
        spoken(Wire(protocol="thrift", keys={"keyspace": keyspace}), "i", LoadOptions())


def test_a_timeout_of_the_server_is_tried_again_for_each_row_has_a_key_of_ours() -> None:
    found = answered(TIMED_OUT, returned())
    assert (found.outcome, found.documents, found.sample.attempts, found.sample.status) == ("ok", (10, 10, 0), 2, 200)
    # What the first attempt wrote nobody knows.
    assert 0 < found.sample.bytes_unanswered < found.sample.bytes_sent == found.server.bytes_read
    first, second = found.server.bodies
    assert first == second


def test_timeouts_without_an_end_fail_and_leave_open_what_is_there() -> None:
    found = answered(*[TIMED_OUT] * 3, retries=2)
    assert (found.outcome, found.documents, found.sample.status) == ("http-error", (10, 0, 0), 504)
    assert dict(found.work.item_failures) == {"504 TimedOutException": 10}


def test_what_an_attempt_before_may_have_written_is_open_although_the_last_one_wrote_nothing() -> None:
    unavailable = returned(ue=THRIFT.UnavailableException())
    for first in (TIMED_OUT, None):
        found = answered(first, unavailable, unavailable, retries=2)
        assert (found.outcome, found.documents, found.sample.status) == ("rejected", (10, 0, 0), 503)
    found = answered(*[unavailable] * 3, retries=2)
    assert (found.outcome, found.documents) == ("rejected", (10, 0, 10))


def test_the_words_of_a_refusal_are_told() -> None:
    found = answered(returned(ire=THRIFT.InvalidRequestException(why="No such column family ä")))
    assert found.work.errors() == ("1 x InvalidRequestException: No such column family ä",)
    assert dict(found.work.item_failures) == {"400 InvalidRequestException": 10}


def test_a_server_that_does_not_know_the_call_has_an_error_of_its_own() -> None:
    found = answered(refused("Invalid method name"))
    assert (found.outcome, found.documents, found.sample.status) == ("http-error", (10, 0, 0), 500)
    assert found.work.errors() == ("1 x TApplicationException: Invalid method name",)


def test_a_keyspace_that_is_not_there_is_told_and_the_call_behind_it_answered() -> None:
    gone = returned("set_keyspace", ire=THRIFT.InvalidRequestException(why="Keyspace k does not exist"))
    with thrift_server(lambda _body, _number: returned(), gone) as server:
        sample, work = ticket(SPEECH, server.address, 0)
    assert sample.status == 400
    assert work.errors() == ("1 x InvalidRequestException: Keyspace k does not exist",)


def test_a_keyspace_that_is_there_later_is_named_again() -> None:
    gone = returned("set_keyspace", ire=THRIFT.InvalidRequestException(why="Keyspace k does not exist"))
    with thrift_server(lambda _body, _number: returned(), gone) as server:
        user, kept = started(server.address, protocol=SPEECH.protocol)
        for _ in range(2):
            gevent.spawn(user.send, PLANNED_NS, SPEECH.body()).get(timeout=60)
            server.greeting = returned("set_keyspace")
        user.on_stop()
        user.way.deadlines.close()
    assert [sample.status for sample in kept.samples] == [400, 200]
    assert kept.samples[0].bytes_sent == kept.samples[1].bytes_sent
    assert server.connections == 2


def test_what_a_connection_was_answered_at_its_beginning_is_no_answer_to_a_later_request() -> None:
    both = returned("set_keyspace") + returned()
    with thrift_server(lambda _body, number: both if number == 2 else returned()) as server:
        user, kept = started(server.address, protocol=SPEECH.protocol)
        for _ in range(2):
            gevent.spawn(user.send, PLANNED_NS, SPEECH.body()).get(timeout=60)
        user.on_stop()
        user.way.deadlines.close()
    assert [sample.documents_acked for sample in kept.samples] == [10, 0]


@pytest.mark.parametrize(
    "broken",
    [
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00\x00\x00\x05hello",
        returned() + b"\x00",
        returned() + returned(),
        returned("set_keyspace"),
        b"\x00\x00\x00\x08" + returned()[4:12],
        # Maps and lists of two thousand million things, in messages of some bytes.
        *(
            framed(returned()[4:-1] + field)
            for field in (b"\x0d\0\x09\x0b\x0b\x7f\xff\xff\xff", b"\x0f\0\x09\0\x7f\xff\xff\xff")
        ),
        framed(returned()[4:-1] + b"\x0c\0\x01" * 100_000),
        # An exception that the interface does not have, a result of a call that has none, bytes behind the message,
        # and the answer to the call number 7.
        framed(returned()[4:-1] + b"\x0c\0\x04\x0b\0\x01\0\0\0\x04gone\0\0"),
        framed(returned()[4:-1] + b"\x08\0\0\0\0\0\x05\0"),
        framed(returned()[4:] + b"behind"),
        framed(returned()[4:-2] + b"\x07\0"),
    ],
)
def test_what_is_no_answer_is_a_broken_one(broken: bytes) -> None:
    found = answered(broken)
    assert (found.outcome, found.sample.documents_acked, found.sample.attempts) == ("broken-answer", 0, 1)


@given(data=st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_no_bytes_of_a_server_do_more_than_break_its_answer(data: bytes) -> None:
    frames = Frames()
    frames.calls = ("batch_mutate",)
    for answer in (
        data,
        struct.pack(">I", len(data)) + data,
        struct.pack(">I", 40 + len(data)) + returned()[4:] + data,
    ):
        frames.begin()
        frames.room()[: len(answer)] = answer
        try:
            frames.came(len(answer))
        except BrokenAnswerError:
            continue
        assert not frames.is_whole or frames.head is not None


def test_an_answer_that_comes_byte_by_byte_is_whole_at_its_last_one() -> None:
    frames = Frames()
    frames.calls = ("set_keyspace", "batch_mutate")
    answer = returned("set_keyspace") + TIMED_OUT
    for place, byte in enumerate(answer):
        assert not frames.is_whole
        frames.room()[0] = byte
        frames.came(1)
        assert frames.is_whole == (place == len(answer) - 1)
    assert frames.head is not None
    assert (frames.head.status, bytes(frames.view[frames.start : frames.end])) == (504, b"TimedOutException")


def test_an_error_is_never_taken_for_the_answer_before_it() -> None:
    """Two answers of one length: the second is a success, and begins as the first."""
    ok = returned()
    failed = returned(ue=THRIFT.UnavailableException())
    found = [answered(*order, retries=3) for order in ((failed, failed, ok), (ok,))]
    assert [(one.outcome, one.sample.attempts) for one in found] == [("ok", 3), ("ok", 1)]


def test_a_connection_that_the_node_ended_while_nothing_was_asked_is_not_used_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with thrift_server(lambda _body, _number: returned()) as server:
        user, kept = started(server.address, protocol=SPEECH.protocol)
        gevent.spawn(user.send, PLANNED_NS, SPEECH.body()).get(timeout=60)
        server.end_connections()
        monkeypatch.setattr(connection, "_IDLE_NS", 0)
        gevent.spawn(user.send, PLANNED_NS, SPEECH.body()).get(timeout=60)
        user.on_stop()
        user.way.deadlines.close()
    assert [(sample.attempts, sample.documents_acked) for sample in kept.samples] == [(1, 10)] * 2
    assert kept.samples[0].bytes_sent == kept.samples[1].bytes_sent


def test_each_connection_names_its_keyspace_once_and_every_byte_is_counted() -> None:
    with thrift_server(lambda _body, number: None if number == 3 else returned()) as server:
        user, kept = started(server.address, protocol=SPEECH.protocol)
        for _ in range(4):
            gevent.spawn(user.send, PLANNED_NS, SPEECH.body()).get(timeout=60)
        user.on_stop()
        user.way.deadlines.close()
    greeting = len(idl.call("set_keyspace", keyspace="k"))
    call = len(SPEECH.body().data)
    assert [sample.bytes_sent for sample in kept.samples] == [greeting + call, call, greeting + 2 * call, call]
    assert sum(sample.bytes_sent for sample in kept.samples) == server.bytes_read == user.way.traffic.bytes_written
    assert server.connections == 2


@pytest.mark.processes
def test_a_whole_load_is_stored_once_whatever_the_server_does(tmp_path: Path) -> None:
    stored: set[bytes] = set()

    def reply(body: bytes, number: int) -> bytes | None:
        if number % 7 == 0:
            return returned(ue=THRIFT.UnavailableException())
        stored.update(rows(body))
        if number % 11 == 0:
            return None
        return TIMED_OUT if number % 13 == 0 else returned()

    with thrift_server(reply) as server:
        plan = dataclasses.replace(plan_for(server.address, tmp_path), wire=WIRE)
        report, samples, _ = loaded(plan)
    acked = int(samples["documents_acked"].sum())
    assert report.bytes_written == server.bytes_read == samples["bytes_sent"].sum()
    assert report.documents_resent > 0
    assert "ok" in outcomes(samples)
    unknown = int((samples["documents"] - samples["documents_acked"]).sum())
    assert acked <= len(stored) <= acked + unknown
    values = {"documents_acked": acked, "bytes_sent": report.bytes_written, "documents_counted": len(stored)}
    record = RunRecord(run="x/1", replicate=1, cell="x", levels={}, state="measured")
    assert integrity.verdict(record, samples, report, values) == []
