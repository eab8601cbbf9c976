"""Results of several nodes: combined, per node, and the node that others waited for."""

from __future__ import annotations

import csv
import io

import example_runs as made
import example_summaries

from ingest_bench.analysis.run import nodes
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.model.network import LinkName
from ingest_bench.model.results import Histogram, Note, ProbeOutput, Reading, Series, Stacks
from ingest_bench.network.measure.readings import longest_waits, node_wait_columns
from ingest_bench.network.measure.wire import TcpSnapshot, WireRecord
from ingest_bench.report import plot_cells, summary_files

MS = 10**6
TWO = made.report(addresses=("one:9200", "two:9200"))


def saw(bytes_read: int | None, pause_ms: float, collector: str, sizes: dict[int, int]) -> list[ProbeOutput]:
    return [
        Reading("bytes_read", bytes_read),
        Reading("gc_pause_ms_max", pause_ms),
        Reading("gc_pause_ms_p50", pause_ms),
        Reading("gc_collector", collector),
        Reading("gc_causes", "G1 Evacuation Pause: 3"),
        Reading("cpu_busy_share", 0.5),
        Histogram("read_bytes", sizes),
        Series("heap_bytes", (1,), (2.0,)),
        Note(source="gc", text="something"),
    ]


def test_stacks_are_summed_over_nodes_once_per_probe() -> None:
    outputs: list[ProbeOutput] = [Stacks({"a;b": 1, "a;c": 2}), Stacks({"a;b": 1, "a;c": 2})]
    assert nodes.merge_nodes([outputs, [Stacks({"a;b": 10})]]) == [Stacks({"a;b": 11, "a;c": 2})]
    # A node without allocations is known, too.
    assert nodes.merge_nodes([outputs, [Stacks({})]]) == [Stacks({"a;b": 1, "a;c": 2})]
    # Unknown for one node is unknown for all.
    assert nodes.merge_nodes([outputs, []]) == []


def test_readings_are_combined_by_the_rule_of_their_column() -> None:
    merged = nodes.merge_nodes([saw(10, 1.5, "g1", {100: 2}), saw(20, 0.5, "g1", {100: 1, 200: 4})])
    readings = {item.name: item.value for item in merged if isinstance(item, Reading)}
    assert readings == {
        "bytes_read": 30,
        "gc_pause_ms_max": 1.5,
        "gc_pause_ms_p50": None,
        "gc_collector": "g1",
        # Equal texts are kept only by the rule "same".
        "gc_causes": None,
        "cpu_busy_share": 0.5,
    }
    assert Histogram("read_bytes", {100: 3, 200: 4}) in merged
    assert [item.name for item in merged if isinstance(item, Series)] == ["heap_bytes", "heap_bytes of node 2"]
    assert [item.text for item in merged if isinstance(item, Note)] == ["node 1: something", "node 2: something"]


def test_reading_unknown_for_one_node_is_unknown_for_all() -> None:
    merged = nodes.merge_nodes([saw(10, 1, "g1", {}), saw(None, 1, "cms", {})])
    readings = {item.name: item.value for item in merged if isinstance(item, Reading)}
    assert readings["bytes_read"] is None
    assert readings["gc_collector"] is None
    without = nodes.merge_nodes([saw(10, 1, "g1", {}), [Note(source="gc", text="unavailable")]])
    assert {item.name: item.value for item in without if isinstance(item, Reading)}["bytes_read"] is None


def test_histogram_unknown_for_one_node_is_unknown_for_all() -> None:
    dead: list[ProbeOutput] = [Note(source="reads", text="the JVM was killed")]
    merged = nodes.merge_nodes([saw(10, 1, "g1", {100: 2}), dead], {1, 2})
    assert not [item for item in merged if isinstance(item, Histogram)]
    # A node that the load does not use has no reads of it.
    idle: list[ProbeOutput] = [Reading("bytes_read", None), Reading("gc_pause_ms_max", 3.0)]
    outputs = [saw(10, 1, "g1", {100: 2}), idle]
    merged = nodes.merge_nodes(outputs, nodes.loaded_nodes(outputs, made.steady(), (1, 2)))
    assert Histogram("read_bytes", {100: 2}) in merged
    assert {Reading("bytes_read", 10), Reading("gc_pause_ms_max", 3.0)} <= {i for i in merged if isinstance(i, Reading)}
    assert nodes.loaded_nodes(outputs, made.steady(), (2,)) == {2}
    both = made.steady()
    both["address"][:3] = 1
    both["address"][3:5] = -1
    assert nodes.loaded_nodes(outputs, both, (2, 1)) == {1, 2}
    # If a library chose the nodes, those that read bytes were chosen.
    both["address"] = -1
    assert nodes.loaded_nodes(outputs, both, ()) == {1}


def test_single_node_is_unchanged() -> None:
    assert nodes.merge_nodes([saw(10, 1, "g1", {1: 1})]) == saw(10, 1, "g1", {1: 1})


def test_each_node_has_its_own_requests() -> None:
    samples = made.steady()
    samples["address"][: len(samples) // 4] = 1
    outputs = [saw(10, 1, "g1", {100: 2}), saw(20, 1, "g1", {})]
    first, second = nodes.node_columns(outputs, ({"mss": 1448}, {"mss": 536}), samples, TWO, (1, 2))
    assert (first["bytes_read"], first["mss"], first["read_bytes_mean"]) == (10, 1448, 100.0)
    assert (second["bytes_read"], second["mss"], second["read_bytes_mean"]) == (20, 536, None)
    acked = [row["documents_acked"] for row in (first, second)]
    assert sum(int(str(number)) for number in acked) == samples["documents_acked"].sum()
    assert acked[1] == samples["documents_acked"][: len(samples) // 4].sum()
    # The load's addresses may have another order than the nodes.
    second, first = nodes.node_columns(outputs, ({}, {}), samples, TWO, (2, 1))
    assert [row["documents_acked"] for row in (first, second)] == acked
    first, other = nodes.node_columns(outputs, ({}, {}), made.steady(), made.report(addresses=("two:9200",)), (2,))
    assert "requests" not in first
    assert other["documents_acked"] == made.steady()["documents_acked"].sum()


def test_requests_by_node_are_unknown_if_a_library_chose_the_node() -> None:
    rows = nodes.node_columns([saw(10, 1, "g1", {}), saw(20, 1, "g1", {})], ({}, {}), made.steady(), made.report(), ())
    assert [(row["bytes_read"], "requests" in row, "documents_acked" in row) for row in rows] == [
        (10, False, False),
        (20, False, False),
    ]


def test_table_has_a_row_for_each_node() -> None:
    run = example_summaries.summary({"network": "ethernet"}, nodes=({"reads": 3, "mss": 1448}, {"reads": None}))
    rows = list(csv.DictReader(io.StringIO(summary_files.format_nodes_csv([run]))))
    assert [(row["node"], row["reads"], row["mss"]) for row in rows] == [("1", "3", "1448"), ("2", "", "")]
    assert {"reads", "mss"} <= {column.name for column in COLUMNS}


def snapshot(at_ms: int, *connections: tuple[int, int, int]) -> TcpSnapshot:
    """Return a sample of connections: local port, and times since the last send and receive."""
    rows = tuple(
        made.tcp_connection(local_port=port, sent_ms_ago=sent, received_ms_ago=received, rtt_us=50_000)
        for port, sent, received in connections
    )
    return TcpSnapshot(at_ns=at_ms * MS, connections=rows)


def test_wait_lasts_from_the_last_send_until_a_response() -> None:
    looks = made.wire_record(
        snapshot(1000, (61000, 500, 400)),  # answered
        snapshot(1250, (61000, 100, 650)),  # asked 100 ms ago
        snapshot(1500, (61000, 50, 900)),  # asked once more, and still no word
        snapshot(1750, (61000, 300, 20)),  # answered
        snapshot(2000, (61000, 10, 30)),  # asked anew, and no answer comes within less than a round trip
    )
    assert [wait for _, wait in longest_waits(looks, 0)] == [0, 100, 350, 0, 50]


def test_abandoned_request_before_the_measurement_is_not_a_wait() -> None:
    looks = made.wire_record(
        snapshot(9000, (61000, 8500, 8600)), snapshot(9250, (61000, 8750, 8850)), snapshot(9500, (61000, 100, 9100))
    )
    assert [wait for _, wait in longest_waits(looks, 1000 * MS)] == [0, 0, 100]


def test_connection_that_only_responds_does_not_wait() -> None:
    assert [wait for _, wait in longest_waits(made.wire_record(snapshot(1000, (9300, 10, 900), (61001, 5, 2))), 0)] == [
        0
    ]


def test_waited_for_node_is_the_one_without_responses() -> None:
    idle, busy = (
        made.wire_record(snapshot(1000, (61000, 9, 5))),
        made.wire_record(snapshot(1000, (61000, 80, 95)), snapshot(9000, (61000, 500, 900))),
    )
    links: dict[LinkName, dict[str, WireRecord | None]] = {
        LinkName((1, 2)): {"to-server": idle, "to-client": busy},
        LinkName((1, 3)): {"to-server": idle, "to-client": None},
        LinkName((2, 3)): {"to-server": idle, "to-client": idle},
    }
    assert node_wait_columns(links, 3, 500 * MS, 2000 * MS) == (
        {"peer_wait_ms_mean": 0.0, "peer_wait_ms_max": 0.0},
        {"peer_wait_ms_mean": 80.0, "peer_wait_ms_max": 80.0},
        {"peer_wait_ms_mean": 0.0, "peer_wait_ms_max": 0.0},
    )
    assert node_wait_columns({}, 1, 0, 1) == ({"peer_wait_ms_mean": None, "peer_wait_ms_max": None},)


def test_waited_for_node_stands_out() -> None:
    assert plot_cells.find_longest_wait([1.0, 0.0, 50.0]) == 2
    assert plot_cells.find_longest_wait([40.0, 0.0, 50.0]) is None
    assert plot_cells.find_longest_wait([None, 5.0, 1.0]) == 1
    assert plot_cells.find_longest_wait([None, 5.0]) is None
    assert plot_cells.find_longest_wait([]) is None


def test_plot_shows_each_node_of_each_cell() -> None:
    waits = ({"peer_wait_ms_mean": 0.5}, {"peer_wait_ms_mean": 465.0}, {"peer_wait_ms_mean": None})
    cells = [example_summaries.summary({"fault": fault}, nodes=waits) for fault in ("none", "paused")]
    picture = plot_cells.draw_picture(
        "nodes", [*cells, example_summaries.summary({"fault": "far"}, state="failed", nodes=())]
    )
    assert picture is not None
    assert picture[:4] == b"\x89PNG"
    assert plot_cells.draw_picture("nodes", [example_summaries.summary({"network": "ethernet"})]) is None
