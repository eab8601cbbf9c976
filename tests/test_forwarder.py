"""Target `forwarder`: refusals, accounts of documents on real JVMs, its rate limit, and its losses."""

from __future__ import annotations

import json
import socketserver
import struct
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from running import canned_http, free_port
from servers import launched
from test_run import carried_out, number

from ingest_bench.analysis.compare.changes import Results
from ingest_bench.analysis.run import delivery
from ingest_bench.errors import RunFailed
from ingest_bench.model.results import Summary
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.report import gate
from ingest_bench.targets.builtin.forwarder import Forwarder

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
# A round lasts 200 ms: two nodes forward to each other 10 times a second together.
CAPPED = """
batch_delay = "200ms"
batch_size = "80"
buffer_size = "1000"
forwarding_batch_timeout = "0ms"
waiting = "asynchronous"
"bounded_blocking.buffer_size" = "300"
"bounded_blocking.batch_size" = "100"
"""
# A round sends about a hundred documents and reads ten: refused ones do not fit into the sender's buffer again.
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
    _, summaries = carried_out(folder, TWO.format(settings=settings, load=load))
    for summary in summaries:
        assert summary.state == "measured", summary.reason
    return summaries


def check_account(summary: Summary) -> float:
    """Check that all acknowledged documents are accounted for; return the number of lost ones."""
    names = ("delivered_documents", "pending_documents", "lost_documents")
    assert number(summary, "documents_counted") == number(summary, "documents_acked") > 1000
    assert sum(number(summary, name) for name in names) == number(summary, "documents_acked")
    return number(summary, "lost_documents")


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_the_batch_delay_limits_the_rate_unless_it_is_adaptive(tmp_path: Path) -> None:
    factor = 'measure = "3s"\n[factors]\n"setting.receive_delay" = ["fixed", "adaptive"]\n'
    fixed, adaptive = run(tmp_path, CAPPED, factor)
    for summary in (fixed, adaptive):
        assert check_account(summary) == 0
        assert number(summary, "forwards_cap_per_s") == 10
        for column in ("dropped_documents", "delivered_twice", "delivered_unacknowledged", "forwards_failed"):
            assert number(summary, column) == 0
        assert number(summary, "forwarded_documents") > 0
        assert number(summary, "delivery_ms_p99") >= number(summary, "delivery_ms_p50") > 0
    assert 0 < number(fixed, "forwards_per_s") <= 11
    assert number(adaptive, "forwards_per_s") > 2 * number(fixed, "forwards_per_s")


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_default_settings_lose_full_batches_and_a_gate_fails(tmp_path: Path) -> None:
    (summary,) = run(tmp_path, 'batch_delay = "10ms"', 'measure = "2s"')
    lost = check_account(summary)
    # A full batch of 1,500 does not fit into a buffer of 512, nor do most of the partial ones.
    assert lost >= 1500
    assert number(summary, "dropped_documents") == lost
    (text,) = [note.text for note in summary.notes if "acknowledged documents are lost" in note.text]
    assert text.startswith(f"{lost:,} of {summary.values['documents_acked']:,} acknowledged documents are lost")
    thresholds = gate.parse_thresholds({"threshold": [{"column": "lost_documents", "at_most": 0}]}, "gate.toml")
    assert gate.judge(Results(summaries=[summary]), thresholds).outcome == "fail"


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_documents_for_a_missing_peer_are_lost_or_duplicated(tmp_path: Path) -> None:
    (summary,) = run(tmp_path, NARROW, BREAKS)
    assert check_account(summary) > 0
    assert number(summary, "dropped_documents") >= number(summary, "lost_documents")
    # The peer was paused with a batch in its socket, and accepted it afterwards.
    assert number(summary, "delivered_twice") > 0
    assert number(summary, "forwards_failed") > 0


class Peer(socketserver.StreamRequestHandler):
    """Accepts each batch, with the response of its server."""

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
                self.server.numbers.append(number)  # type: ignore[attr-defined]
            self.wfile.write(self.server.response)  # type: ignore[attr-defined]


@pytest.mark.jvm
@pytest.mark.parametrize(
    "nonsense", [b"this is not HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n"], ids=["text", "length"]
)
def test_a_batch_is_unsure_after_an_invalid_response(tmp_path: Path, nonsense: bytes) -> None:
    settings = {"batch_delay": "20ms", "batch_size": "100", "buffer_size": "5000", "forwarding_batch_timeout": "0ms"}
    options = TargetOptions(name="forwarder", nodes=2, heap_bytes=64 << 20, setting=settings)
    with ExitStack() as stack:
        peer = stack.enter_context(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Peer))
        peer.daemon_threads, peer.numbers, peer.response = True, [], nonsense  # type: ignore[attr-defined]
        threading.Thread(target=peer.serve_forever, daemon=True).start()
        stack.callback(peer.shutdown)
        nodes = (Endpoint("127.0.0.1", free_port()), Endpoint("127.0.0.1", peer.server_address[1]))
        http, _ = stack.enter_context(launched(options, nodes, tmp_path))
        for first in range(0, 2000, 100):
            documents = [{"sequence": f"{first + number:010}"} for number in range(100)]
            assert http.request("POST", "/records", json.dumps(documents).encode()).status == 200
        account = FORWARDER.read_counters((http,))
    assert account["accepted"] == 2000
    # The sender does not know that the peer has these, and keeps them.
    at_peer = len(peer.numbers)  # type: ignore[attr-defined]
    assert account["unsure"] >= at_peer > 0
    assert account["delivered"] + account["inside"] + account["dropped"] == 2000
    assert delivery.describe_account_error(account | {"delivered": account["delivered"] + at_peer}) == ""


def test_missing_peers_are_named() -> None:
    nodes = [canned_http({"/_peers": (200, b'{"missing": %s}' % missing)}) for missing in (b"[]", b"[1, 3]", b"[]")]
    assert FORWARDER.is_ready(0, nodes)
    with pytest.raises(RunFailed, match="it is not connected to node 1, node 3"):
        FORWARDER.is_ready(1, nodes)
