"""A load that looks up its server for each new connection, and a name server that fails."""

from __future__ import annotations

import dataclasses
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bulk_server import BulkServer, bulk_server
from test_connection import BODY, LONG_NS, exchanged, expired, head, opened
from test_faults_of_processes import LOAD, happened, seen

from ingest_bench.faults import checks, timeline
from ingest_bench.faults.clients import name_server
from ingest_bench.faults.clients.names import Names, names
from ingest_bench.faults.stage import Stage
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.target import Endpoint, Place, TargetOptions
from ingest_bench.protocols.connection import Connection
from ingest_bench.protocols.deadlines import Deadlines
from ingest_bench.protocols.verdict import ConnectionBrokenError
from ingest_bench.protocols.way import Traffic, way_to

S = 10**9


def failing(how: Any = "servfail") -> Fault:
    return Fault(kind="dns-failure", at_ns=0, for_ns=S, resolver=how)


@pytest.fixture(name="server")
def started_server() -> Iterator[BulkServer]:
    with bulk_server() as started:
        yield started


@pytest.fixture
def known(server: BulkServer) -> Iterator[Names]:
    """The server has a name, known to a name server of this machine."""
    here: Any = SimpleNamespace(command=tuple)
    with names(here, [server.address]) as made:
        yield made


def connection_to(known: Names) -> Connection:
    return opened(way_to(*known.places, traffic=Traffic()))


def broken(connection: Connection) -> str:
    with pytest.raises(ConnectionBrokenError) as raised:
        connection.exchange(head(BODY), BODY, LONG_NS)
    assert raised.value.outcome == "connection-error"
    return str(raised.value)


def test_an_open_connection_goes_on_and_a_new_one_fails_until_the_last_failure_ends(
    server: BulkServer, known: Names
) -> None:
    stage = Stage(names=known)
    connection, later = connection_to(known), connection_to(known)
    assert exchanged(connection)[0] == 200
    first, second = timeline.begin(failing(), stage), timeline.begin(failing(), stage)
    for _ in range(3):
        assert exchanged(connection)[0] == 200
    assert "look up node-1.ingest-bench.test" in broken(later)
    assert int(first.end().removesuffix(" lookups failed")) >= 1
    connection.close()
    assert "look up node-1.ingest-bench.test" in broken(connection)
    second.end()
    # Nobody remembers an answer, or that there was none.
    for one in (connection, later):
        assert exchanged(one)[0] == 200
        one.close()
    assert server.connections == 3
    assert timeline.begin(failing(), stage).end() == "nobody looked the name up"


def test_a_name_server_that_is_silent_keeps_a_request_until_its_time_is_over(known: Names) -> None:
    stage, connection = Stage(names=known), connection_to(known)
    silent = timeline.begin(failing("silent"), stage)
    began = time.monotonic()
    # Of 50 ms: a lookup alone would take 5 s at least.
    assert expired(Deadlines(), connection) == "timeout"
    assert time.monotonic() - began < 4
    assert connection.sent_ns == 0
    loud = timeline.begin(failing("servfail"), stage)
    assert "look up" in broken(connection)
    loud.end()
    assert int(silent.end().removesuffix(" lookups failed")) >= 2
    assert exchanged(connection)[0] == 200
    connection.close()


def test_after_a_lookup_that_failed_the_next_address_is_tried(server: BulkServer, known: Names) -> None:
    nameless = Place(endpoint=Endpoint("nobody.ingest-bench.test", 9), resolver=known.places[0].resolver)
    connection = opened(way_to(nameless, *known.places, traffic=Traffic()))
    assert "look up nobody.ingest-bench.test" in broken(connection)
    assert exchanged(connection)[0] == 200
    assert server.requests == 1
    connection.close()


def question(name: str, kind: int) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", 77, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


def test_the_name_server_says_what_a_resolver_reads() -> None:
    own = {"a.test": "192.0.2.7"}
    said = name_server.answer(question("A.test", 1), own, fails=False)
    assert struct.unpack_from(">HHHHHH", said) == (77, 0x8180, 1, 1, 0, 0)
    assert said.endswith(struct.pack(">HHHIH", 0xC00C, 1, 1, 0, 4) + socket.inet_aton("192.0.2.7"))
    nothing = name_server.answer(question("a.test", 28), own, fails=False)
    assert struct.unpack_from(">HHHH", nothing) == (77, 0x8180, 1, 0)
    assert struct.unpack_from(">HH", name_server.answer(question("a.test", 1), own, fails=True))[1] == 0x8182
    assert struct.unpack_from(">HH", name_server.answer(question("b.test", 1), own, fails=False))[1] == 0x8183
    for bad in (b"", bytes(12), question("a.test", 1)[:-3], b"\xff" * 40):
        with pytest.raises((struct.error, IndexError)):
            name_server.answer(bad, own, fails=False)


def test_a_load_has_names_only_where_a_fault_needs_them_and_kafka_has_none() -> None:
    load = LoadOptions(measure_ns=9 * S)
    cell = Cell(name="c", levels={}, network=None, target=TargetOptions(), load=load)
    assert not checks.needs_names(cell)
    with_fault = dataclasses.replace(cell, faults=(failing(),))
    checks.check(with_fault)
    assert checks.needs_names(with_fault)
    of_files = {"keeps_files": True, "can_flush": True}
    assert checks.inapplicable(with_fault, {"cql"}, **of_files) == ""
    assert "looks its brokers up by itself" in checks.inapplicable(with_fault, {"kafka"}, **of_files)


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_a_load_notices_once_its_connections_break(tmp_path: Path) -> None:
    text = LOAD.format(name="sink", seconds=11)
    text += '[[fault]]\nkind = "dns-failure"\nat = "1s"\nfor = "2s"\n'
    text += '[[fault]]\nkind = "dns-failure"\nat = "4s"\nfor = "4s"\n[[fault]]\nkind = "reset"\nat = "4500ms"\n'
    record, values = happened(tmp_path, text)
    found = [fault.seen for fault in record.faults if fault.kind == "dns-failure"]
    # The first one met open connections alone.
    assert found[0] == "nobody looked the name up"
    assert int(found[1].removesuffix(" lookups failed")) >= 2
    assert int(seen(record)["reset"].seen.split()[0]) >= 2
    silent_s = values["silent_s"]
    assert isinstance(silent_s, int | float)
    # Whole seconds between the reset and the end of the failure.
    assert 1 <= silent_s <= 4
    assert isinstance(values["recovery_s"], float)
    counted, acked = values["documents_counted"], values["documents_acked"]
    assert isinstance(counted, int)
    assert isinstance(acked, int)
    assert counted >= acked > 0
