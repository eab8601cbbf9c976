"""The offset of the server's clock is bounded by sent and read bytes, whatever the connections did."""

from __future__ import annotations

import dataclasses
import random
import re
from typing import Any

import example_runs as made
import generated
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest_bench.analysis.run import summary
from ingest_bench.analysis.run.clock import bound_clock_offset, clock_outputs
from ingest_bench.analysis.run.sample_columns import Samples
from ingest_bench.model.results import READ_FIELDS, Note, Summary
from ingest_bench.model.samples import ClockOffset
from ingest_bench.results.layout import SampleFiles

MS = 10**6
FASTEST_NS = MS // 10
"""Shortest time on the wire, so that the limits are at least two of these apart."""
REPORT = made.report(addresses=("192.0.2.1:9200",))
Rows = list[dict[str, int]]


class Load:
    """A load on several connections, and the reads of a server whose clock is ahead."""

    def __init__(self, seed: int, ahead_ns: int) -> None:
        self.random, self.ahead_ns = random.Random(seed), ahead_ns  # noqa: S311 - test data
        self.requests: Rows = []
        self.reads: list[tuple[int, int, int]] = []

    def wait_ns(self) -> int:
        return FASTEST_NS + round(self.random.expovariate(1 / MS))

    def connect(self, port: int, now_ns: int, requests: int) -> int:
        """Send requests one after the other on a connection; return its end."""
        for _ in range(requests):
            now_ns = self.request(port, now_ns)
        return now_ns

    def request(self, port: int, sent_ns: int, attempts: int = 1) -> int:
        """Send a request, each attempt of it read in parts; return when it is done."""
        size, now_ns = self.random.randint(1, 10**6), sent_ns
        for _ in range(attempts):
            cuts = sorted(self.random.choices(range(size + 1), k=self.random.randint(0, 4)))
            for part in np.diff([0, *cuts, size]).tolist():
                now_ns += self.wait_ns()
                self.reads.append((now_ns + made.OFFSET + self.ahead_ns, part, port))
            now_ns += self.wait_ns()
        self.add(port, sent_ns, now_ns, bytes_sent=size * attempts, attempts=attempts)
        return now_ns + self.random.randint(0, MS)

    def cut_off(self, port: int, sent_ns: int) -> None:
        """Send a last request that the server reads in part, if at all."""
        size = self.random.randint(1, 10**6)
        read = self.random.randint(0, size)
        self.reads.append((sent_ns + self.wait_ns() + made.OFFSET + self.ahead_ns, read, port))
        self.add(port, sent_ns, sent_ns + 100 * MS, bytes_sent=size, outcome="cut-off")

    def add(self, port: int, sent_ns: int, done_ns: int, **changed: Any) -> None:
        row = made.sample(0, 0, local_port=port, **changed)
        self.requests.append(row | {"sent_ns": sent_ns, "first_byte_ns": done_ns, "done_ns": done_ns})

    @property
    def samples(self) -> Samples:
        """In the order of their ends, as in the files."""
        return made.samples(sorted(self.requests, key=lambda row: row["done_ns"]))

    @property
    def read_records(self) -> Samples:
        self.random.shuffle(self.reads)
        return np.array(self.reads, dtype=np.dtype(list(READ_FIELDS)))

    def bound(self, **conditions: bool) -> tuple[int, int] | None:
        limits = bound_clock_offset(self.samples, self.read_records, REPORT, **conditions)
        return None if limits is None else (limits.low_ns, limits.high_ns)


AHEAD = st.integers(-(10**13), 10**13)


@given(seed=st.integers(), ahead_ns=AHEAD)
@generated.examples(100)
def test_the_offset_is_within_the_limits_whatever_the_connections_did(seed: int, ahead_ns: int) -> None:
    load = Load(seed, ahead_ns)
    for port in (40000, 40001, 40002):
        end_ns = load.connect(port, made.START, load.random.randint(1, 20))
        if load.random.random() < 0.5:
            # The server asked for more time, and the whole request was sent again.
            end_ns = load.request(port, end_ns, attempts=2)
        if load.random.random() < 0.5:
            # A later connection has the port of one that ended.
            end_ns = load.connect(port, end_ns + 10 * MS, 5)
        if load.random.random() < 0.5:
            load.cut_off(port, end_ns)
    # Two connections to different servers, or from different machines, share a port at the same time.
    for _ in range(2):
        load.connect(40003, made.START, 10)
    # Of three connections the last request is cut off. Before, one of them was opened for a second attempt, one port
    # belonged to a connection to another node, and one to a connection that was reset.
    for port, earlier in ((40006, {"attempts": 2}), (40007, {"address": 1}), (40008, {"outcome": "timeout"})):
        size = load.random.randint(1, 10**5)
        load.add(port, made.START - MS, made.START, bytes_sent=size, **{"bytes_unanswered": size} | earlier)
        load.cut_off(port, load.connect(port, made.START, 10))
    # The recording lacks reads of one connection, and of another one everything is encrypted.
    load.connect(40004, made.START, 10)
    load.reads = [read for number, read in enumerate(load.reads) if read[2] != 40004 or number % 2]
    load.connect(40005, made.START, 10)
    load.reads = [(end_ns, size + 29 * (port == 40005), port) for end_ns, size, port in load.reads]
    bound = load.bound()
    assert bound is not None
    low_ns, high_ns = bound
    assert low_ns + FASTEST_NS <= ahead_ns <= high_ns - FASTEST_NS


def test_a_handshake_is_read_before_the_first_request_of_a_connection_was_sent() -> None:
    load = Load(1, 0)
    handshake_bytes, sent_ns = 300, made.START + 200 * MS
    load.reads.append((made.START + made.OFFSET, handshake_bytes, 40000))
    load.connect(40000, sent_ns, 5)
    # It is sent when the first request is due, and its bytes are those of this request.
    load.requests[0]["bytes_sent"] += handshake_bytes
    bound = load.bound()
    assert bound is not None
    assert bound[0] < 0 < bound[1]


@pytest.mark.parametrize("read_bytes", [None, 49_000, 51_000])
def test_without_equal_bytes_there_are_no_limits(read_bytes: int | None) -> None:
    load = Load(1, 0)
    load.add(40000, made.START, made.START + MS)
    if read_bytes is not None:
        load.reads = [(made.START + made.OFFSET + MS // 2, read_bytes, 40000)]
    assert load.bound() is None
    assert list(clock_outputs(load.samples, load.read_records, REPORT, None)) == []


def test_no_request_gives_no_limits() -> None:
    assert Load(1, 0).bound() is None
    # A load whose workers left no file.
    assert bound_clock_offset(SampleFiles([]), Load(1, 0).read_records, REPORT) is None


def test_requests_without_a_response_give_no_limits() -> None:
    load = Load(1, 0)
    load.connect(40000, made.START, 10)
    assert load.bound() is not None
    load.requests = [row | {"status": 0} for row in load.requests]
    assert load.bound() is None


def test_unordered_bytes_give_no_limits() -> None:
    load = Load(1, 0)
    load.connect(40000, made.START, 10)
    assert load.bound(is_encrypted=True) is None
    # A library chose the node.
    assert bound_clock_offset(load.samples, load.read_records, made.report()) is None


@pytest.mark.parametrize(("round_trip_ms", "is_wrong"), [(0, True), (30, True), (40, False)])
def test_clocks_of_workers_are_known_to_half_a_round_trip(round_trip_ms: int, is_wrong: bool) -> None:
    load = Load(1, -20 * MS)
    load.connect(40000, made.START, 100)
    load.ahead_ns = 20 * MS
    load.connect(40001, made.START, 100)
    clocks = tuple(ClockOffset(worker=worker, round_trip_ns=round_trip_ms * MS) for worker in (0, 1))
    report = dataclasses.replace(REPORT, clock_offsets=clocks)
    outputs = clock_outputs(load.samples, load.read_records, report, None)
    assert any(isinstance(item, Note) for item in outputs) == is_wrong


def summarise(load: Load) -> Summary:
    samples, sent = load.samples, sum(row["bytes_sent"] for row in load.requests)
    return summary.summarise(
        made.inputs(
            samples=samples,
            report=made.report(bytes_written=sent),
            outputs=[*made.measured(bytes_read=sent), *clock_outputs(samples, load.read_records, REPORT, None)],
            record=made.record(documents_counted=len(samples) * 100),
        )
    )


@pytest.mark.parametrize(
    ("ahead_ms", "reason"),
    [
        # The recorder of Java 11 and 17 is up to 1 ms late.
        (-1, ""),
        (137, r"probe reads: the server's clock differs from the load's by 13\d\.\d to 13\d\.\d ms, so .*"),
        (-137, r"probe reads: the server's clock differs from the load's by -13\d\.\d to -13\d\.\d ms, so .*"),
    ],
)
def test_a_clock_that_differs_makes_the_run_invalid(ahead_ms: int, reason: str) -> None:
    load = Load(1, ahead_ms * MS)
    load.connect(40000, made.START + 3 * made.SECOND, 100)
    row = summarise(load)
    low_ms, high_ms = row.values["clock_offset_ms_min"], row.values["clock_offset_ms_max"]
    assert isinstance(low_ms, float)
    assert isinstance(high_ms, float)
    assert low_ms < ahead_ms < high_ms < low_ms + 1
    assert re.fullmatch(reason, row.reason)
    assert row.state == ("invalid" if reason else "measured")


def test_a_response_before_the_last_read_of_a_request_is_no_step_of_a_clock() -> None:
    load = Load(1, 0)
    for row in range(10):
        sent_ns = made.START + row * made.SECOND
        for part in range(5):
            load.reads.append((sent_ns + FASTEST_NS + part * 100 * MS + made.OFFSET, 1000, 40000))
        load.add(40000, sent_ns, sent_ns + 2 * FASTEST_NS, bytes_sent=5000)
    assert load.bound() == (-FASTEST_NS, FASTEST_NS)


def test_the_clock_over_jmx_is_that_of_the_fastest_request_of_a_slow_server() -> None:
    load, round_trip_ns = Load(1, 137 * MS), 2 * FASTEST_NS
    for row in range(10):
        sent_ns = made.START + row * made.SECOND
        # A quick way to the server, and half a second until its response.
        load.reads.append((sent_ns + FASTEST_NS + row * MS + made.OFFSET + load.ahead_ns, 1000, 40000))
        load.add(40000, sent_ns, sent_ns + made.SECOND // 2, bytes_sent=1000)
    limits = bound_clock_offset(load.samples, load.read_records, REPORT)
    assert limits is not None
    clock = limits.to_offset(0, "node-1", round_trip_ns, made.report())
    assert clock.to_theirs(made.START + made.OFFSET) - (made.START + made.OFFSET) == load.ahead_ns
    assert clock.round_trip_ns / 2 == load.ahead_ns - limits.low_ns > 400 * MS


@pytest.mark.parametrize("step_ms", [5000, -5000])
def test_a_clock_that_is_stepped_during_the_run_makes_it_invalid(step_ms: int) -> None:
    load = Load(1, 0)
    end_ns = load.connect(40000, made.START + 3 * made.SECOND, 100)
    load.ahead_ns = step_ms * MS
    load.connect(40000, end_ns, 100)
    row = summarise(load)
    assert row.state == "invalid"
    # Sorted by time, the reads of one connection that were stepped back precede the earlier ones.
    step = r"4,999\.\d" if step_ms > 0 else r"4,\d{3}\.\d"
    assert re.match(rf"probe reads: clock stepped by at least {step} ms during the run, the server's or", row.reason)
