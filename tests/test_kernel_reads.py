"""The probe `kernel-reads`: reads and their room as a program counts them itself; and what is done with its file."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import ordinary_user
import pytest
from probe_lab import EVER_NS, histogram, make_context, notes, read, readings, write_recording

from ingest_bench import system
from ingest_bench.jvm import attach
from ingest_bench.model.results import Note, ProbeOutput
from ingest_bench.model.target import Endpoint
from ingest_bench.probes import PROBES
from ingest_bench.probes import kernel_tap as tap
from ingest_bench.probes.kernel_reads import check_capability

SECOND = 10**9
FORMAT = """name: sock_recv_length
ID: 2283
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;

	field:void * sk;	offset:8;	size:8;	signed:0;
	field:__u16 protocol;	offset:18;	size:2;	signed:0;
	field:int ret;	offset:20;	size:4;	signed:1;
	field:int flags;	offset:24;	size:4;	signed:1;
	field:unsigned long args[6];	offset:32;	size:48;	signed:0;
"""
TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:23F0 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 31415 1 0 100 0 0 10 0
   1: 0100007F:23F1 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 27182 1 0 100 0 0 10 0
   2: 0100007F:23F0 0100007F:AAAA 01 00000000:00000000 00:00000000 00000000     0        0 31416 1 0 100 0 0 10 0
"""


def read_kernel(raw: Path, port: int = 40, start_ns: int = 0, end_ns: int = EVER_NS) -> list[ProbeOutput]:
    return read("kernel-reads", make_context(raw, start_ns, end_ns, {port}))


def write(raw: Path, rows: list[tuple[int, int, int, int, int]], **output: Any) -> None:
    """Records of (at_ns, pid, returned, requested, peer_port)."""
    table = np.zeros(len(rows), dtype=np.dtype(list(tap.RECORD)))
    for record, row in zip(table, rows, strict=True):
        record["at_ns"], record["pid"], record["returned"], record["requested"], record["peer_port"] = row
    table.tofile(raw / "kernel-reads.bin")
    (raw / "kernel-reads.json").write_text(
        json.dumps({"lost": 0, "clocks": [[0, 1000], [10**5, 1000]], "pid": 7} | output)
    )


def test_offsets_are_read_from_a_tracepoint_format() -> None:
    assert tap.parse_format(FORMAT) == {"common_type": 0, "sk": 8, "protocol": 18, "ret": 20, "flags": 24, "args": 32}


def test_only_listening_ports_of_the_process_are_traced() -> None:
    assert list(attach.parse_sockets(TABLE, {"31415", "31416"})) == [Endpoint("127.0.0.1", 9200)]


@pytest.mark.parametrize(
    ("words", "host"),
    [
        ("00000000000000000000000000000000", "127.0.0.1"),
        ("00000000000000000000000001000000", "::1"),
        ("0000000000000000FFFF00000100007F", "127.0.0.1"),
        ("B80D0120000000000000000001000000", "2001:db8::1"),
    ],
)
def test_ipv6_endpoint_is_an_address_that_clients_can_reach(words: str, host: str) -> None:
    table = f"head\n 0: {words}:23F0 {'0' * 32}:0000 0A 0:0 0:0 0 0 0 7 1"
    assert list(attach.parse_sockets(table, {"7"})) == [Endpoint(host, 9200)]


def test_reads_within_the_measurement_are_counted_with_their_room(tmp_path: Path) -> None:
    mine = [(5000, 7, 100, 400, 40), (6000, 7, 300, 400, 40), (6500, 7, -11, 400, 40), (7000, 7, 0, 400, 40)]
    write(tmp_path, [*mine, (5500, 7, 9999, 9999, 41), (99_000, 7, 50, 64, 40), (5600, 7, 10, 0, 40)])
    outputs = read_kernel(tmp_path, start_ns=6000, end_ns=50_000)
    values = readings(outputs)
    assert values["kernel_bytes_read"] == 100 + 300 + 50 + 10
    assert values["kernel_reads"] == 3
    assert values["read_requested_bytes_mean"] == 400
    assert values["read_waste_bytes_mean"] == 200
    assert values["read_fill_share"] == 0.5
    assert histogram(outputs) == {10: 1, 100: 1, 300: 1}


def test_clock_step_moves_only_later_reads(tmp_path: Path) -> None:
    # Longer than 2^53 ns since 1970, as today. It was set 5 s ahead between the 10th and the 11th second.
    today, second = 1_800_000_000 * SECOND, SECOND
    clocks = [[0, today], [10 * second, today], [11 * second, today + 5 * second], [20 * second, today + 5 * second]]
    write(tmp_path, [(at * second + 7, 7, at, 400, 40) for at in (1, 9, 12, 19)], clocks=clocks)
    for at, moved_at in ((1, 1), (9, 9), (12, 12 + 5), (19, 19 + 5)):
        begin = today + moved_at * second + 7
        assert histogram(read_kernel(tmp_path, 40, begin, begin + 1)) == {at: 1}


def test_lost_reads_are_noted_and_make_bytes_unavailable(tmp_path: Path) -> None:
    write(tmp_path, [(5000, 7, 100, 400, 40)], lost=3)
    outputs = read_kernel(tmp_path)
    assert readings(outputs)["kernel_bytes_read"] is None
    assert notes(outputs) == ["3 reads are lost: they came faster than they were written"]


def test_reads_of_another_process_with_the_same_ports_are_excluded(tmp_path: Path) -> None:
    write(tmp_path, [(5000, 7, 100, 400, 40), (5001, 8, 900, 900, 40)])
    assert readings(read_kernel(tmp_path))["kernel_bytes_read"] == 100


def test_recording_that_differs_from_the_kernel_invalidates_the_run(tmp_path: Path) -> None:
    write(tmp_path, [(5000, 7, 100, 400, 40)])
    for total, differences in ((90, [True]), (100, [])):
        reads = {"all": {"count": 1, "total": total}}
        content = {"events": 1, "files": [], "lost_bytes": 0, "reads": reads}
        write_recording(make_context(tmp_path, ports={40}), content)
        assert [item.invalidates for item in read_kernel(tmp_path) if isinstance(item, Note)] == differences


@pytest.mark.measures
@pytest.mark.bpf
@pytest.mark.parametrize("room", [64, 1000])
def test_reads_and_bytes_equal_the_counts_of_the_server(room: int, tmp_path: Path) -> None:
    needs_root()
    with socket.create_server(("127.0.0.1", 0)) as server, PROBES["kernel-reads"].watch(os.getpid(), tmp_path):
        sender = threading.Thread(target=send, args=(server.getsockname(), 30_000))
        sender.start()
        connection, peer = server.accept()
        sizes: list[int] = []
        with connection:
            connection.recv(10, socket.MSG_PEEK)
            # One after the other: recvfrom(2) and read(2).
            while got := os.read(connection.fileno(), room) if len(sizes) % 2 else connection.recv(room):
                sizes.append(len(got))
        sender.join()
    outputs = read_kernel(tmp_path, peer[1])
    values = readings(outputs)
    assert notes(outputs) == []
    assert values["kernel_bytes_read"] == sum(sizes) == 3_000_000
    assert values["kernel_reads"] == len(sizes)
    assert values["read_requested_bytes_mean"] == room
    assert values["read_waste_bytes_mean"] == pytest.approx(room - sum(sizes) / len(sizes))
    assert histogram(outputs) == {size: sizes.count(size) for size in set(sizes)}


# A thousand reads into a ring of one page, which holds 128 of them.
OVERFLOW = """
import os, socket
from ingest_bench.probes import kernel_tap as tap
tap._RING_BYTES = 4096
with socket.create_server(("127.0.0.1", 0)) as server:
    ring, lost = tap.start_tracing([server.getsockname()[1]], os.getpid())
    with socket.create_connection(server.getsockname()) as sender, server.accept()[0] as connection:
        sender.sendall(b"x" * 1000)
        for _ in range(1000):
            connection.recv(1)
    print(len(ring.drain()) // 32, tap.read_counter(lost))
"""


@pytest.mark.bpf
def test_reads_beyond_the_ring_are_counted_as_lost() -> None:
    needs_root()
    assert check_capability().present
    kept, lost = map(int, system.run([sys.executable, "-c", OVERFLOW]).split())
    assert lost > 0
    assert kept + lost == 1000


@pytest.mark.processes
def test_ordinary_user_gets_the_missing_capability() -> None:
    program = (
        "from ingest_bench.probes.kernel_reads import check_capability; c = check_capability();"
        "print(c.present, c.detail, c.remedy)"
    )
    output = system.run([*ordinary_user.before(), sys.executable, "-c", program])
    assert output.startswith("False the kernel refused to trace reads (")
    assert "Run as root" in output


def send(address: tuple[str, int], writes: int) -> None:
    with socket.create_connection(address) as connection:
        for _ in range(writes):
            connection.sendall(b"x" * 100)


def needs_root() -> None:
    if not system.is_root():
        pytest.skip("needs root")
