"""A forwarder between nodes: what it cannot have, its account on real JVMs, its cap, and what it loses."""

from __future__ import annotations

import json
import socketserver
import struct
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from running import free_port
from test_run import carried_out

from ingest_bench import targets
from ingest_bench.analysis.compare.comparable import Results
from ingest_bench.analysis.run import delivery
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.experiment import spec
from ingest_bench.jvm.process import Launch, serve
from ingest_bench.model.results import Summary
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.report import gate
from ingest_bench.targets.http import ask
from ingest_bench.targets.small.forwarder import Forwarder

FORWARDER = Forwarder()

TWO = """
probes = []
[target]
name = "forwarder"
nodes = 2
heap = "64m"
[target.setting]
{settings}
[load]
workload = "geonames"
users = 2
bulk_documents = 100
warm_up = "1s"
{load}
"""
# A round lasts 200 ms: of two nodes that forward to each other 10 a second together.
CAPPED = """
batch_delay = "200ms"
batch_size = "80"
buffer_size = "1000"
forwarding_batch_timeout = "0ms"
waiting = "asynchronous"
"bounded_blocking.buffer_size" = "300"
"bounded_blocking.batch_size" = "100"
"""
# A round sends about a hundred documents and reads ten: what a peer does not take finds no room where it was.
NARROW = """
batch_delay = "100ms"
batch_size = "10"
buffer_size = "150"
forwarding_batch_timeout = "0ms"
client_timeout = "300ms"
waiting = "asynchronous"
"bounded_blocking.buffer_size" = "400"
"""
BREAKS = """
nodes = 1
measure = "5s"
[[fault]]
kind = "partition"
link = "peers"
at = "500ms"
for = "2s"
[[fault]]
kind = "pause"
node = 2
at = "3500ms"
for = "1s"
"""


def run(folder: Path, settings: str, load: str) -> list[Summary]:
    _, found = carried_out(folder, TWO.format(settings=settings, load=load))
    for one in found:
        assert one.state == "measured", one.reason
    return found


def number(found: Summary, name: str) -> float:
    value = found.values[name]
    assert isinstance(value, (int, float)), (name, value)
    return value


def accounted(found: Summary) -> float:
    names = ("delivered_documents", "inside_documents", "lost_documents")
    assert number(found, "documents_counted") == number(found, "documents_acked") > 1000
    assert sum(number(found, name) for name in names) == number(found, "documents_acked")
    return number(found, "lost_documents")


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_its_batch_delay_is_a_cap_unless_it_is_skipped_and_each_document_is_accounted_for(tmp_path: Path) -> None:
    factor = 'measure = "3s"\n[factors]\n"setting.receive_delay" = ["fixed", "adaptive"]\n'
    fixed, adaptive = run(tmp_path, CAPPED, factor)
    for found in (fixed, adaptive):
        assert accounted(found) == 0
        assert number(found, "forwards_cap_per_s") == 10
        for column in ("dropped_documents", "delivered_twice", "delivered_unacknowledged", "forwards_failed"):
            assert number(found, column) == 0
        assert number(found, "forwarded_documents") > 0
        assert number(found, "delivery_ms_p99") >= number(found, "delivery_ms_p50") > 0
    assert 0 < number(fixed, "forwards_per_s") <= 11
    assert number(adaptive, "forwards_per_s") > 2 * number(fixed, "forwards_per_s")


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_with_its_defaults_it_loses_each_full_batch_and_a_gate_fails_on_it(tmp_path: Path) -> None:
    (found,) = run(tmp_path, 'batch_delay = "10ms"', 'measure = "2s"')
    lost = accounted(found)
    # A batch of 1,500 finds no room in a peer's buffer of 512, nor does one that was not full after its time.
    assert lost >= 1500
    assert number(found, "dropped_documents") == lost
    (said,) = [remark.text for remark in found.remarks if "acknowledged documents are lost" in remark.text]
    assert said.startswith(f"{lost:,} of {found.values['documents_acked']:,} acknowledged documents are lost")
    wanted = gate.thresholds({"threshold": [{"column": "lost_documents", "at_most": 0}]}, "gate.toml")
    assert gate.judge(Results(summaries=[found]), wanted).outcome == "fail"


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_what_a_peer_that_is_gone_does_not_take_is_lost_or_there_twice(tmp_path: Path) -> None:
    (found,) = run(tmp_path, NARROW, BREAKS)
    assert accounted(found) > 0
    assert number(found, "dropped_documents") >= number(found, "lost_documents")
    # The peer stood still with a batch in its socket, and took it when it went on.
    assert number(found, "delivered_twice") > 0
    assert number(found, "forwards_failed") > 0


class Peer(socketserver.StreamRequestHandler):
    """Takes each batch, and answers what its server says."""

    def handle(self) -> None:
        while self.rfile.readline():
            size = 0
            while head := self.rfile.readline().strip():
                name, _, value = head.partition(b":")
                size = int(value) if name.lower() == b"content-length" else size
            body, at = self.rfile.read(size), 0
            while at < len(body):
                number, _, length = struct.unpack_from(">qqi", body, at)
                at += 20 + length
                self.server.taken.append(number)  # type: ignore[attr-defined]
            self.wfile.write(self.server.answer)  # type: ignore[attr-defined]


@pytest.mark.jvm
@pytest.mark.parametrize(
    "nonsense", [b"this is not HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n"], ids=["text", "length"]
)
def test_a_peer_that_answers_nonsense_may_have_taken_its_batch(tmp_path: Path, nonsense: bytes) -> None:
    settings = {"batch_delay": "20ms", "batch_size": "100", "buffer_size": "5000", "forwarding_batch_timeout": "0ms"}
    asked = TargetOptions(name="forwarder", nodes=2, heap_bytes=64 << 20, setting=settings)
    with ExitStack() as stack:
        peer = stack.enter_context(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Peer))
        peer.daemon_threads, peer.taken, peer.answer = True, [], nonsense  # type: ignore[attr-defined]
        threading.Thread(target=peer.serve_forever, daemon=True).start()
        stack.callback(peer.shutdown)
        nodes = (Endpoint("127.0.0.1", free_port()), Endpoint("127.0.0.1", peer.server_address[1]))
        java = targets.fetch(FORWARDER.requirements(asked), None)
        plan = FORWARDER.launch_plan(asked, java, tmp_path, 0, nodes, ())
        http = stack.enter_context(ask(tuple, nodes[0]))
        launch = Launch(
            plan=plan,
            enter=tuple,
            log=tmp_path / "server.log",
            listen=nodes[0],
            ready=lambda _: FORWARDER.is_ready(0, (http,)),
        )
        stack.enter_context(serve(launch, timeout_s=30))
        for first in range(0, 2000, 100):
            documents = [{"sequence": f"{first + number:010}"} for number in range(100)]
            assert http.request("POST", "/records", json.dumps(documents).encode()).status == 200
        found = FORWARDER.counters((http,))
    assert found["accepted"] == 2000
    # Nobody knows that of those which the peer has: they are here once more.
    taken = len(peer.taken)  # type: ignore[attr-defined]
    assert found["unsure"] >= taken > 0
    assert found["delivered"] + found["inside"] + found["dropped"] == 2000
    assert delivery.complaints(found | {"delivered": found["delivered"] + taken}) == []


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ("setting.waiting=both", "target.setting.waiting: 'both' is not one of blocking, asynchronous"),
        ("setting.receive_delay=none", "target.setting.receive_delay: 'none' is not one of fixed, adaptive"),
        ("setting.batch_size=0", "target.setting.batch_size: '0' is not between 1 and 1000000"),
        ("setting.forwarding_batch_size=15001", "target.setting.forwarding_batch_size: '15001' is not between 1 and"),
        ("setting.batch_delay=2h", "target.setting.batch_delay: '2h' is not between 0ns and 1h"),
        ("setting.batch_delay=100", "target.setting.batch_delay: "),
        ("setting.client_timeout=0ms", "target.setting.client_timeout: '0ms' is not between 1ms and"),
        ("setting.key=a.b", "target.setting.key: 'a.b' is no name of a field"),
        ("setting.batchsize=3", 'target.setting: forwarder has no "batchsize"; did you mean "batch_size"'),
        ("allocator=pooled", "target.allocator: forwarder has no such choice"),
        ("receive_predictor=64KiB", "target.receive_predictor: forwarder has no such choice"),
        ("version=java8", 'target.version: forwarder has no "java8"'),
    ],
)
def test_what_it_cannot_have_is_one_sentence(chosen: str, said: str) -> None:
    (cell, *_) = spec.cells(spec.load("peer-forwarding-cap", [chosen]))
    with pytest.raises(SpecError) as refused:
        targets.of(cell.target).requirements(cell.target)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


class Told:
    """A node that says which peers it has not found."""

    def __init__(self, missing: list[int]) -> None:
        self.missing = missing

    def expect(self, method: str, path: str, timeout_s: float = 60) -> Any:
        assert (method, path) == ("GET", "/_peers")
        assert timeout_s < 60
        return {"missing": self.missing}


def test_a_node_that_is_not_found_is_named() -> None:
    nodes: Any = (Told([]), Told([1, 3]), Told([]))
    assert Forwarder().is_ready(0, nodes)
    with pytest.raises(RunFailed, match="it has not found node 1, node 3"):
        Forwarder().is_ready(1, nodes)
