"""Fault `dns-failure`: a load that resolves its server for each new connection, and a name server that fails."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from bulk_server import BulkServer, bulk_server
from fault_lab import build_query, make_cell, make_fault
from test_connection import BODY, LONG_NS, exchange, head, new_connection, wait_for_expiry

from ingest_bench.faults import checks, name_server, timeline
from ingest_bench.faults.kind import Stage
from ingest_bench.faults.new_connections import NodeNames, serve_names
from ingest_bench.model.target import Endpoint, ServerAddress
from ingest_bench.protocols.connection import Connection
from ingest_bench.protocols.response import ConnectionBrokenError
from ingest_bench.protocols.upstream import Deadlines, Traffic, resolve_upstream

SERVFAIL = make_fault("dns-failure")
LOST = "look up node-1.ingest-bench.test"


@pytest.fixture(name="server")
def started_server() -> Iterator[BulkServer]:
    with bulk_server() as started:
        yield started


@pytest.fixture
def names(server: BulkServer) -> Iterator[NodeNames]:
    namespace: Any = SimpleNamespace(command=tuple)
    with serve_names(namespace, [server.address]) as serving:
        yield serving


def connect(names: NodeNames) -> Connection:
    return new_connection(resolve_upstream(*names.addresses, traffic=Traffic()))


def get_connection_error(connection: Connection) -> str:
    with pytest.raises(ConnectionBrokenError) as raised:
        connection.exchange(head(BODY), BODY, LONG_NS)
    assert raised.value.outcome == "connection-error"
    return str(raised.value)


def test_open_connections_stay_and_new_ones_fail_until_the_last_fault_ends(
    server: BulkServer, names: NodeNames
) -> None:
    stage = Stage(names=names)
    connection, later = connect(names), connect(names)
    assert exchange(connection)[0] == 200
    first, second = timeline.begin_fault(SERVFAIL, stage), timeline.begin_fault(SERVFAIL, stage)
    for _ in range(3):
        assert exchange(connection)[0] == 200
    assert LOST in get_connection_error(later)
    assert int(first.end().removesuffix(" lookups failed")) >= 1
    connection.close()
    assert LOST in get_connection_error(connection)
    second.end()
    # Neither an answer nor a failure is cached.
    for reopened in (connection, later):
        assert exchange(reopened)[0] == 200
        reopened.close()
    assert server.connections == 3
    assert timeline.begin_fault(SERVFAIL, stage).end() == "no client resolved the name"


def test_silent_name_server_makes_a_request_time_out(names: NodeNames) -> None:
    stage, connection = Stage(names=names), connect(names)
    silent = timeline.begin_fault(make_fault("dns-failure", resolver="silent"), stage)
    start_s = time.monotonic()
    # The request's timeout is 50 ms; a lookup alone takes at least 5 s.
    assert wait_for_expiry(Deadlines(), connection) == "timeout"
    assert time.monotonic() - start_s < 4
    assert connection.sent_ns == 0
    servfail = timeline.begin_fault(SERVFAIL, stage)
    assert "look up" in get_connection_error(connection)
    servfail.end()
    assert int(silent.end().removesuffix(" lookups failed")) >= 2
    assert exchange(connection)[0] == 200
    connection.close()


def test_next_address_is_tried_after_a_failed_lookup(server: BulkServer, names: NodeNames) -> None:
    unknown = ServerAddress(endpoint=Endpoint("unknown.ingest-bench.test", 9), resolver=names.addresses[0].resolver)
    connection = new_connection(resolve_upstream(unknown, *names.addresses, traffic=Traffic()))
    assert "look up unknown.ingest-bench.test" in get_connection_error(connection)
    assert exchange(connection)[0] == 200
    assert server.requests == 1
    connection.close()


def test_name_server_answers_in_dns_format() -> None:
    addresses = {"a.test": "192.0.2.7"}

    def flags(query: bytes, *, fails: bool) -> int:
        answer = name_server.build_answer(query, addresses, fails=fails)
        return int(struct.unpack_from(">HH", answer)[1])

    answer = name_server.build_answer(build_query("A.test", 1), addresses, fails=False)
    assert struct.unpack_from(">HHHHHH", answer) == (77, 0x8180, 1, 1, 0, 0)
    assert answer.endswith(struct.pack(">HHHIH", 0xC00C, 1, 1, 0, 4) + socket.inet_aton("192.0.2.7"))
    without_record = name_server.build_answer(build_query("a.test", 28), addresses, fails=False)
    assert struct.unpack_from(">HHHH", without_record) == (77, 0x8180, 1, 0)
    assert flags(build_query("a.test", 1), fails=True) == 0x8182
    assert flags(build_query("b.test", 1), fails=False) == 0x8183
    for malformed in (b"", bytes(12), build_query("a.test", 1)[:-3], b"\xff" * 40):
        with pytest.raises((struct.error, IndexError)):
            name_server.build_answer(malformed, addresses, fails=False)


def test_load_resolves_names_only_for_this_fault_and_never_with_kafka() -> None:
    assert not checks.needs_names(make_cell())
    cell = make_cell(SERVFAIL)
    checks.check_faults(cell)
    assert checks.needs_names(cell)
    assert checks.find_unsupported_fault(cell, {"cql"}, is_persistent=True, can_flush=True) == ""
    error = checks.find_unsupported_fault(cell, {"kafka"}, is_persistent=True, can_flush=True)
    assert "the Kafka library resolves brokers itself" in error
