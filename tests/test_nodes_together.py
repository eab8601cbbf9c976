"""What several nodes saw as one, what each saw, and which one the others waited for."""

from __future__ import annotations

import csv
import io

import made_runs as made
import made_summaries

from ingest_bench.analysis.run import nodes
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.model.network import LinkName
from ingest_bench.model.results import Histogram, Measured, Reading, Remark, Series, Stacks
from ingest_bench.network.measure.waits import longest, waited
from ingest_bench.network.measure.wire import Asked, Seen
from ingest_bench.report.plots import plots_nodes
from ingest_bench.report.tables import text_tables

MS = 10**6
TWO = made.report(addresses=("one:9200", "two:9200"))


def saw(bytes_read: int | None, pause_ms: float, collector: str, sizes: dict[int, int]) -> list[Measured]:
    return [
        Reading("bytes_read", bytes_read),
        Reading("gc_pause_ms_max", pause_ms),
        Reading("gc_pause_ms_p50", pause_ms),
        Reading("gc_collector", collector),
        Reading("cpu_busy_share", 0.5),
        Histogram("read_bytes", sizes),
        Series("heap_bytes", (1,), (2.0,)),
        Remark(probe="gc", text="something"),
    ]


def test_what_both_nodes_allocated_is_added_up_by_stack_and_each_probe_counts_once() -> None:
    one: list[Measured] = [Stacks({"a;b": 1, "a;c": 2}), Stacks({"a;b": 1, "a;c": 2})]
    assert nodes.together([one, [Stacks({"a;b": 10})]]) == [Stacks({"a;b": 11, "a;c": 2})]
    # One that allocated nothing is known, too.
    assert nodes.together([one, [Stacks({})]]) == [Stacks({"a;b": 1, "a;c": 2})]
    # One that is unknown of a node is unknown of all.
    assert nodes.together([one, []]) == []


def test_numbers_of_all_nodes_are_added_up_only_where_that_is_a_number_of_all() -> None:
    found = nodes.together([saw(10, 1.5, "g1", {100: 2}), saw(20, 0.5, "g1", {100: 1, 200: 4})])
    readings = {item.name: item.value for item in found if isinstance(item, Reading)}
    assert readings == {
        "bytes_read": 30,
        "gc_pause_ms_max": 1.5,
        "gc_pause_ms_p50": None,
        "gc_collector": "g1",
        "cpu_busy_share": 0.5,
    }
    assert Histogram("read_bytes", {100: 3, 200: 4}) in found
    assert [item.name for item in found if isinstance(item, Series)] == ["heap_bytes", "heap_bytes of node 2"]
    assert [item.text for item in found if isinstance(item, Remark)] == ["node 1: something", "node 2: something"]


def test_what_is_unknown_of_one_node_is_unknown_of_all() -> None:
    found = nodes.together([saw(10, 1, "g1", {}), saw(None, 1, "cms", {})])
    readings = {item.name: item.value for item in found if isinstance(item, Reading)}
    assert readings["bytes_read"] is None
    assert readings["gc_collector"] is None
    without = nodes.together([saw(10, 1, "g1", {}), [Remark(probe="gc", text="unavailable")]])
    assert {item.name: item.value for item in without if isinstance(item, Reading)}["bytes_read"] is None


def test_sizes_that_are_unknown_of_one_node_are_unknown_of_all() -> None:
    dead: list[Measured] = [Remark(probe="reads", text="the JVM was killed")]
    found = nodes.together([saw(10, 1, "g1", {100: 2}), dead], {1, 2})
    assert not [item for item in found if isinstance(item, Histogram)]
    # But a node that the load does not go to has none of its reads.
    idle: list[Measured] = [Reading("bytes_read", None), Reading("gc_pause_ms_max", 3.0)]
    seen = [saw(10, 1, "g1", {100: 2}), idle]
    found = nodes.together(seen, nodes.loaded(seen, made.steady(), TWO, None))
    assert Histogram("read_bytes", {100: 2}) in found
    assert {Reading("bytes_read", 10), Reading("gc_pause_ms_max", 3.0)} <= {i for i in found if isinstance(i, Reading)}
    assert nodes.loaded(seen, made.steady(), TWO, 2) == {2}
    both = made.steady()
    both["address"][:3] = 1
    both["address"][3:5] = -1
    assert nodes.loaded(seen, both, TWO, None) == {1, 2}
    # A library picked the nodes: who read anything, was picked.
    both["address"] = -1
    assert nodes.loaded(seen, both, made.report(), None) == {1}


def test_one_node_is_as_it_is() -> None:
    assert nodes.together([saw(10, 1, "g1", {1: 1})]) == saw(10, 1, "g1", {1: 1})


def test_each_node_has_the_requests_that_went_to_it() -> None:
    samples = made.steady()
    samples["address"][: len(samples) // 4] = 1
    seen = [saw(10, 1, "g1", {100: 2}), saw(20, 1, "g1", {})]
    first, second = nodes.values(seen, ({"mss": 1448}, {"mss": 536}), samples, TWO, None)
    assert (first["bytes_read"], first["mss"], first["read_bytes_mean"]) == (10, 1448, 100.0)
    assert (second["bytes_read"], second["mss"], second["read_bytes_mean"]) == (20, 536, None)
    acked = [row["documents_acked"] for row in (first, second)]
    assert sum(int(str(each)) for each in acked) == samples["documents_acked"].sum()
    assert acked[1] == samples["documents_acked"][: len(samples) // 4].sum()
    one, other = nodes.values(seen, ({}, {}), made.steady(), made.report(addresses=("two:9200",)), 2)
    assert "requests" not in one
    assert other["documents_acked"] == made.steady()["documents_acked"].sum()


def test_where_a_library_picked_the_nodes_nobody_knows_which_had_which_requests() -> None:
    rows = nodes.values([saw(10, 1, "g1", {}), saw(20, 1, "g1", {})], ({}, {}), made.steady(), made.report(), None)
    assert [(row["bytes_read"], "requests" in row, "documents_acked" in row) for row in rows] == [
        (10, False, False),
        (20, False, False),
    ]


def test_a_table_has_a_row_for_each_node() -> None:
    run = made_summaries.summary({"network": "ethernet"}, nodes=({"reads": 3, "mss": 1448}, {"reads": None}))
    rows = list(csv.DictReader(io.StringIO(text_tables.nodes_csv([run]))))
    assert [(row["node"], row["reads"], row["mss"]) for row in rows] == [("1", "3", "1448"), ("2", "", "")]
    assert {"reads", "mss"} <= {column.name for column in COLUMNS}


def asked(at_ms: int, *connections: tuple[int, int, int]) -> Asked:
    """A look: of each connection its own port, and how long ago it sent and received."""
    rows = tuple(
        {"local_port": port, "remote_port": 9300, "sent_ms_ago": sent, "received_ms_ago": received, "rtt_us": 50_000}
        for port, sent, received in connections
    )
    return Asked(at_ns=at_ms * MS, connections=rows)


def seen(*looks: Asked) -> Seen:
    return Seen(frames={}, looked_at=0, lost=0, seconds=1, tcp=looks)


def test_a_wait_lasts_from_what_was_sent_last_until_something_comes() -> None:
    looks = seen(
        asked(1000, (61000, 500, 400)),  # answered
        asked(1250, (61000, 100, 650)),  # asked 100 ms ago
        asked(1500, (61000, 50, 900)),  # asked once more, and still no word
        asked(1750, (61000, 300, 20)),  # answered
        asked(2000, (61000, 10, 30)),  # asked anew, and no answer comes within less than a round trip
    )
    assert [wait for _, wait in longest(looks, 0)] == [0, 100, 350, 0, 50]


def test_a_question_of_before_the_measurement_that_was_given_up_is_no_wait() -> None:
    looks = seen(asked(9000, (61000, 8500, 8600)), asked(9250, (61000, 8750, 8850)), asked(9500, (61000, 100, 9100)))
    assert [wait for _, wait in longest(looks, 1000 * MS)] == [0, 0, 100]


def test_a_text_of_counts_is_none_of_all_also_where_two_nodes_have_the_same() -> None:
    one = [Reading("gc_pauses", 3), Reading("gc_causes", "G1 Evacuation Pause: 3"), Reading("gc_collector", "g1")]
    readings = {item.name: item.value for item in nodes.together([one, one]) if isinstance(item, Reading)}
    assert readings == {"gc_pauses": 6, "gc_causes": None, "gc_collector": "g1"}


def test_who_only_answers_waits_for_nobody() -> None:
    assert [wait for _, wait in longest(seen(asked(1000, (9300, 10, 900), (61001, 5, 2))), 0)] == [0]


def test_the_node_that_was_waited_for_is_the_one_that_did_not_answer() -> None:
    idle, busy = seen(asked(1000, (61000, 9, 5))), seen(asked(1000, (61000, 80, 95)), asked(9000, (61000, 500, 900)))
    links: dict[LinkName, dict[str, Seen | None]] = {
        LinkName((1, 2)): {"to-server": idle, "to-client": busy},
        LinkName((1, 3)): {"to-server": idle, "to-client": None},
        LinkName((2, 3)): {"to-server": idle, "to-client": idle},
    }
    assert waited(links, 3, 500 * MS, 2000 * MS) == (
        {"waited_for_ms_mean": 0.0, "waited_for_ms_max": 0.0},
        {"waited_for_ms_mean": 80.0, "waited_for_ms_max": 80.0},
        {"waited_for_ms_mean": 0.0, "waited_for_ms_max": 0.0},
    )
    assert waited({}, 1, 0, 1) == ({"waited_for_ms_mean": None, "waited_for_ms_max": None},)


def test_the_node_that_was_waited_for_is_the_one_that_stands_out() -> None:
    assert plots_nodes.longest_wait([1.0, 0.0, 50.0]) == 2
    assert plots_nodes.longest_wait([40.0, 0.0, 50.0]) is None
    assert plots_nodes.longest_wait([None, 5.0, 1.0]) == 1
    assert plots_nodes.longest_wait([None, 5.0]) is None
    assert plots_nodes.longest_wait([]) is None


def test_a_picture_shows_each_node_of_each_cell_and_nothing_where_there_is_one() -> None:
    waits = ({"waited_for_ms_mean": 0.5}, {"waited_for_ms_mean": 465.0}, {"waited_for_ms_mean": None})
    cells = [made_summaries.summary({"fault": fault}, nodes=waits) for fault in ("none", "paused")]
    picture = plots_nodes.nodes([*cells, made_summaries.summary({"fault": "far"}, state="failed", nodes=())])
    assert picture is not None
    assert picture[:4] == b"\x89PNG"
    assert plots_nodes.nodes([made_summaries.summary({"network": "ethernet"})]) is None
