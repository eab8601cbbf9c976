"""Protocol `kafka` against librdkafka's mock broker, settings of the target `kafka`, and runs of it."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from running import free_port
from test_load_process import loaded, plan_for
from test_run import carried_out, number
from test_users import PLANNED_NS, documents, outcome, started

from ingest_bench import targets
from ingest_bench.documents.body import Body
from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog
from ingest_bench.jvm import artifacts
from ingest_bench.jvm.java import Java
from ingest_bench.model.load import LoadOptions, ProtocolOptions
from ingest_bench.model.target import Endpoint, ServerAddress, TargetOptions
from ingest_bench.network.act.sandbox import sandbox
from ingest_bench.protocols.kafka import Kafka, combine_errors
from ingest_bench.protocols.protocol import create_protocol
from ingest_bench.protocols.response import Response
from ingest_bench.protocols.upstream import resolve_upstream
from ingest_bench.targets import rpc_child
from ingest_bench.targets.base import NodeStart

# Count the bytes of a connection: open, and after either end has closed it.
COUNT_PROGRAM = """
import socket, struct, sys, threading, time
from ingest_bench.protocols.kafka import LibraryConnections, _LibraryConnection
from ingest_bench.protocols.upstream import Traffic

def end_and_wait(connection, end=_LibraryConnection.end):
    end(connection)
    time.sleep(0.1)  # The peer answers meanwhile.

_LibraryConnection.end = end_and_wait

def serve(listener, whole):
    with listener.accept()[0] as accepted:
        while whole:
            whole -= len(accepted.recv(whole))
        accepted.sendall(b"x")
        if ends == "reset":
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            accepted.recv(1)

size, ends = int(sys.argv[1]), sys.argv[2]
listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=serve, args=(listener, size), daemon=True).start()
traffic = Traffic()
held = LibraryConnections([listener.getsockname()], traffic)
with socket.create_connection(listener.getsockname()) as sock:
    held.discover()
    sock.sendall(bytes(size))
    sock.recv(1)
    print(held.count_sent_bytes())
    if ends == "ends":
        sock.shutdown(socket.SHUT_WR)
        sock.recv(1)
    if ends != "stays":
        time.sleep(0.1)
held.close()
print(traffic.bytes_written, traffic.bytes_unread)
"""
DOCUMENTS = [b'{"n":%d,"text":"a,\\n]b"}' % number for number in range(10)]


def protocol(options: LoadOptions | None = None, **keys: Any) -> Kafka:
    kafka = create_protocol(ProtocolOptions(protocol="kafka", keys=keys), "tiny", options or LoadOptions())
    assert isinstance(kafka, Kafka)
    return kafka


@contextmanager
def mock_brokers(brokers: int) -> Iterator[list[Endpoint]]:
    """Start librdkafka's mock of that many brokers, which accept everything."""
    argv = (sys.executable, str(Path(__file__).with_name("kafka_broker.py")), str(brokers))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline().split() for _ in range(brokers)]
        yield [Endpoint(host, int(port)) for host, port in lines]


@pytest.fixture(scope="module")
def broker() -> Iterator[Endpoint]:
    with mock_brokers(1) as (address,):
        yield address


def count_stored(broker: Endpoint, topic: str = "tiny") -> int:
    consumer = Consumer({"bootstrap.servers": str(broker), "group.id": "x", "log_level": 0})
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    edges = [consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10) for partition in partitions]
    consumer.close()
    return sum(last - first for first, last in edges)


def send_once(user: Any, body: Any) -> None:
    gevent.spawn(user.send, PLANNED_NS, body).get(timeout=60)
    user.on_stop()
    user.upstream.deadlines.close()


@pytest.mark.processes
def test_request_is_done_once_each_record_is(broker: Endpoint) -> None:
    user, sink = started(broker, protocol=protocol(linger="1ms"))
    body = protocol().build_body(DOCUMENTS, 1)
    gevent.spawn(user.send, PLANNED_NS, body).get(timeout=60)
    sample, traffic = sink.only, user.upstream.traffic
    assert (outcome(sample), documents(sample), sample.attempts) == ("ok", (10, 10, 0), 1)
    assert 0 < sample.local_port in traffic.local_ports
    # In addition to the records there is only the overhead of a batch.
    assert len(body.data) < sample.bytes_sent < 3 * len(body.data) + 1000
    assert 0 < sample.sent_ns <= sample.first_byte_ns <= sample.done_ns
    before = traffic.bytes_written
    user.on_stop()
    user.upstream.deadlines.close()
    assert traffic.bytes_written >= before >= sample.bytes_sent
    assert count_stored(broker) == 10


@pytest.mark.netns
@pytest.mark.parametrize(
    ("queue", "end"),
    [("pfifo", "ends"), *(("tbf rate 400mbit burst 70k limit 80k", end) for end in ("stays", "ends", "reset"))],
)
def test_bytes_refused_by_a_full_qdisc_do_not_count_as_sent(queue: str, end: str) -> None:
    size = 10 * 2**20
    with sandbox() as opened:
        place = opened.add_namespace()
        place.run(("ip", "link", "set", "lo", "up"))
        place.run(("tc", "qdisc", "add", "dev", "lo", "root", *queue.split()))
        output = place.run((sys.executable, "-c", COUNT_PROGRAM, str(size), end))
        counted, written, unread = map(int, output.split())
        dropped = "dropped 0," not in place.run(("tc", "-s", "qdisc", "show", "dev", "lo"))
    assert dropped == queue.startswith("tbf")
    assert counted == size
    # For a connection whose FIN was not observed, the kernel does not tell whether a byte of it was the FIN.
    assert written - unread <= size <= written <= size + (dropped and end != "stays")


@pytest.mark.processes
def test_bytes_of_a_request_are_those_to_all_brokers_by_one_user() -> None:
    with mock_brokers(3) as brokers:
        upstream = resolve_upstream(*(ServerAddress(endpoint=address) for address in brokers))
        users = [started(brokers[0], protocol=protocol(linger="1ms"), upstream=upstream) for _ in range(3)]
        body = protocol().build_body(DOCUMENTS * 20, 1)
        for _ in range(3):
            greenlets = [gevent.spawn(user.send, PLANNED_NS, body) for user, _ in users]
            gevent.joinall(greenlets, timeout=60, raise_error=True)
        for user, _ in users:
            user.on_stop()
        upstream.deadlines.close()
    samples = [sample for _, sink in users for sample in sink.samples]
    assert [outcome(sample) for sample in samples] == ["ok"] * 9
    assert all(len(body.data) < sample.bytes_sent < 2 * len(body.data) for sample in samples)
    assert sum(sample.bytes_sent for sample in samples) == upstream.traffic.bytes_written
    # A request to several brokers has no address; each user has connections of its own.
    assert {sample.address for sample in samples} == {-1}
    ports = [{sample.local_port for sample in sink.samples} for _, sink in users]
    assert sum(map(len, ports)) == len(set.union(*ports))


def test_records_that_may_be_stored_are_not_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ingest_bench.protocols import kafka_user as users  # noqa: PLC0415 - imports Locust

    monkeypatch.setattr(users, "_CONNECT_S", 0.1)
    user, sink = started(Endpoint("127.0.0.1", free_port()), protocol=protocol(), retries=3)

    def exchange(_topic: str, values: list[bytes], _timeout_ns: int) -> Response:
        errors = dict.fromkeys(range(len(values)), "_TRANSPORT")
        return user.connection._build_response(errors, len(values))  # type: ignore[no-any-return]

    monkeypatch.setattr(user.connection, "exchange", exchange)
    send_once(user, protocol().build_body(DOCUMENTS, 1))
    sample = sink.only
    assert (outcome(sample), documents(sample), sample.bytes_sent) == ("connection-error", (10, 0, 0), 0)
    assert sample.attempts == 1
    assert "stored twice" in user.state.errors()[0]


def test_missing_broker_is_a_timeout_without_sent_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    from ingest_bench.protocols import kafka_user as users  # noqa: PLC0415 - imports Locust

    monkeypatch.setattr(users, "_CONNECT_S", 0.1)
    options = LoadOptions(timeout_ns=300_000_000)
    user, sink = started(Endpoint("127.0.0.1", free_port()), protocol=protocol(options), timeout_ns=300_000_000)
    send_once(user, protocol().build_body(DOCUMENTS, 1))
    sample = sink.only
    assert (outcome(sample), documents(sample), sample.attempts) == ("timeout", (10, 0, 0), 1)
    assert (sample.bytes_sent, sample.local_port, sample.status) == (0, 0, 0)


@pytest.mark.processes
def test_broker_stores_every_acknowledged_record(broker: Endpoint, tmp_path: Path) -> None:
    wire = ProtocolOptions(protocol="kafka", keys={"linger": "1ms"})
    plan = dataclasses.replace(plan_for(broker, tmp_path, users=2, bulk_documents=50), wire=wire)
    before = count_stored(broker, plan.workload.index) if plan.workload.index == "tiny" else 0
    report, samples, _ = loaded(plan)
    acked = int(samples["documents_acked"].sum())
    assert count_stored(broker, plan.workload.index) - before == acked > 0
    assert report.bytes_written >= int(samples["bytes_sent"].sum()) > 0
    assert set(samples["local_port"].tolist()) <= set(report.local_ports)
    assert len(report.local_ports) >= 2


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ({}, (200, "ok", 10, 0, ())),
        ({3: "NOT_ENOUGH_REPLICAS", 5: "LEADER_NOT_AVAILABLE"}, (429, "rejected", 8, 0, (3, 5))),
        ({3: "MSG_SIZE_TOO_LARGE"}, (400, "partial", 9, 1, ())),
        (dict.fromkeys(range(10), "INVALID_RECORD"), (400, "http-error", 0, 10, ())),
        ({3: "_MSG_TIMED_OUT", 4: "NOT_ENOUGH_REPLICAS"}, (503, "http-error", 8, 2, ())),
    ],
    ids=["all", "some-retriable", "some-refused", "all-refused", "some-in-doubt"],
)
def test_verdict_follows_from_the_errors_of_records(errors: dict[int, str], expected: tuple[Any, ...]) -> None:
    body, content = protocol().build_body(DOCUMENTS, 1), json.dumps(errors).encode()
    assert isinstance(body, Body)
    response = Response(combine_errors(errors), content, 0, len(content))
    verdict = protocol().judge(response, body)
    assert (response.status, verdict.outcome, verdict.acked, verdict.failed, verdict.rejected_items) == expected


@pytest.mark.parametrize(
    ("keys", "options", "message"),
    [
        ({"ack": "1"}, {}, 'unknown key "ack"'),
        ({"acks": "2"}, {}, "acks"),
        ({"linger": "1h"}, {}, "linger"),
        ({"batch_size": "8GiB"}, {}, "batch_size"),
        ({"compression": "brotli"}, {}, "compression"),
        ({}, {"gzip": True}, 'Use compression = "gzip"'),
        ({}, {"nodes": 2}, 'must be "all", not 2'),
    ],
)
def test_unsupported_options_of_the_protocol_are_refused(
    keys: dict[str, str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError) as refused:
        protocol(LoadOptions(**options), **keys)
    assert message in str(refused.value)


def test_producer_settings_go_to_the_protocol_others_to_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "fetch", lambda artifact: Path("/jars", artifact.file_name))
    options = TargetOptions(name="kafka", setting={"producer.acks": "1", "num.io.threads": "3", "x": "a\\b"})
    target = targets.resolve(options)
    nodes = [Endpoint("10.0.0.1", 9092), Endpoint("10.0.0.2", 9092)]
    java = Java(home=Path("/java"), version=17, source="test")
    plan = target.launch_plan(NodeStart(options, java, tmp_path, 1, nodes))
    lines = (tmp_path / "server.properties").read_text().splitlines()
    assert {"num.io.threads=3", "x=a\\u005cb", "node.id=2", "default.replication.factor=2"} <= set(lines)
    assert "controller.quorum.voters=1@10.0.0.1:9093,2@10.0.0.2:9093" in lines
    assert not any(line.startswith("producer") for line in lines)
    assert target.wire(options, catalog.load_workload("pmc")).keys == {"acks": "1"}
    assert plan.argv[-1] == str(tmp_path / "server.properties")


def test_java_reads_settings_and_folders_of_any_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "fetch", lambda artifact: Path("/jars", artifact.file_name))
    text = " ü=\\:#!日🚌 "
    options = TargetOptions(name="kafka", setting={"x": text})
    home = tmp_path / "Größe"
    targets.resolve(options).launch_plan(
        NodeStart(options, Java(home=Path("/j"), version=17, source=""), home, 0, [Endpoint("h", 1)])
    )
    lines = (home / "server.properties").read_bytes().splitlines()
    # Java reads Latin-1, skips blanks before a value, and decodes each escape to a 16-bit character.
    values = dict(line.decode("latin-1").split("=", 1) for line in lines)
    java = {key: re.sub(r"(?:\\u[0-9a-f]{4})+", _java, text.lstrip()) for key, text in values.items()}
    assert java["x"] == text
    assert java["log.dirs"] == str(home / "data")


def _java(escapes: re.Match[str]) -> str:
    return bytes.fromhex(escapes[0].replace("\\u", "")).decode("utf-16-be")


@pytest.mark.parametrize("error", [None, KafkaError(KafkaError.LEADER_NOT_AVAILABLE)])
def test_topic_with_unknown_partitions_has_no_count(error: KafkaError | None) -> None:
    metadata = SimpleNamespace(topics={"t": SimpleNamespace(error=error, partitions={})})
    admin = SimpleNamespace(list_topics=lambda *_, **__: metadata)
    broker = rpc_child.KafkaBroker("127.0.0.1", 1, limit_s=1.0)
    broker.client = admin
    result = broker.count({"topics": ["t"]})
    assert result.keys() == {"error"}
    assert result["error"].startswith("topic t: its partitions are unknown (")


BROKER = """
probes = ["reads"]
[target]
name = "kafka"
heap = "256m"
[target.setting]
"num.network.threads" = "2"
"num.partitions" = "3"
"producer.linger" = "2ms"
"producer.compression" = "lz4"
[load]
workload = "nyc_taxis"
users = 2
bulk_documents = 200
think_time = "10ms"
timeout = "5s"
warm_up = "1s"
"""
FAULTS = """
measure = "5s"
[network]
profile = "ethernet"
[[fault]]
kind = "reset"
at = "1s"
[[fault]]
kind = "pause"
at = "2s"
for = "1s"
"""


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_records_and_bytes_are_equal_at_both_ends(tmp_path: Path) -> None:
    _, (run,) = carried_out(tmp_path, BROKER + 'measure = "2s"\n[network]\nprofile = "ethernet"\n')
    assert run.state == "measured", run.reason
    assert number(run, "documents_counted") == number(run, "documents_acked") > 1000
    assert number(run, "bytes_read") == number(run, "bytes_sent")
    # Kafka reads the length of a request separately.
    assert min(run.histograms["read_bytes"]) == 4


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_broken_connections_lose_no_acknowledged_record(tmp_path: Path) -> None:
    results, (run,) = carried_out(tmp_path, BROKER + FAULTS)
    assert run.state == "measured", run.reason
    assert number(run, "documents_counted") >= number(run, "documents_acked") > 1000
    report = results.run_folder(results.plan.runs[0]).read_load_report()
    assert report is not None
    assert len(report.local_ports) >= 4, "each of the two connections was made again"
