"""What is counted in numpy, beside the same said plainly: moments at, just before and just behind every bound."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import made_runs as made
import numpy as np
import pytest

from ingest_bench import nearest_rank
from ingest_bench.analysis.buffers import agreement, published, receive_buffers
from ingest_bench.analysis.buffers.agreement import Recorded
from ingest_bench.analysis.buffers.netty import Adaptive, Fixed
from ingest_bench.analysis.buffers.receive_buffers import Cost
from ingest_bench.analysis.numbers import histogram, quantiles
from ingest_bench.analysis.run import closed_loop, per_gb, recovery
from ingest_bench.analysis.run import sample_columns as load
from ingest_bench.analysis.run.sample_columns import Samples, Window
from ingest_bench.analysis.search import goals
from ingest_bench.analysis.stalls import phases, suspects, waiting
from ingest_bench.experiment import catalog
from ingest_bench.inputs import rates
from ingest_bench.load.live import figures
from ingest_bench.model.load import Rate, RateUnit
from ingest_bench.model.results import Happened, Series
from ingest_bench.model.samples import OUTCOMES

SECOND = made.SECOND
WINDOW = Window(made.START + 2 * SECOND, made.START + 5 * SECOND)
# Around both ends of the measurement and of a second within it, and far from all.
MOMENTS = [
    made.START + 2 * SECOND + at * SECOND + off for at in (-1, 0, 1, 3, 4) for off in (-1, 0, 1)
]  # fmt: skip


def every() -> Samples:
    """A ticket from each of these moments to each later one, some refused, never sent or of nobody."""
    rows = []
    for number, (planned_ns, done_ns) in enumerate(itertools.combinations_with_replacement(MOMENTS, 2)):
        outcome = (0, 0, 0, OUTCOMES.index("http-error"), OUTCOMES.index("timeout"))[number % 5]
        sent_ns = planned_ns + (done_ns - planned_ns) * (number % 3) // 2
        rows.append(
            made.sample(0, 0) | {
                "planned_ns": planned_ns, "sent_ns": sent_ns, "first_byte_ns": done_ns, "done_ns": done_ns,
                "outcome": outcome, "status": 0 if outcome == OUTCOMES.index("timeout") else 200,
                "documents_acked": 0 if outcome else 100 + number, "user": number % 4 - 1, "attempts": 1 + number % 3,
            }
        )  # fmt: skip
    return made.samples(rows)


def test_what_is_within_the_measurement_and_what_was_under_way_in_it() -> None:
    moments = np.array(MOMENTS)
    assert load.within(moments, WINDOW).tolist() == [WINDOW.start_ns <= at < WINDOW.end_ns for at in MOMENTS]
    found = every()
    assert load.under_way(found, WINDOW).tolist() == [
        one["planned_ns"] < WINDOW.end_ns and one["done_ns"] >= WINDOW.start_ns for one in found
    ]


def test_the_numbers_of_a_measurement_are_sums_over_its_tickets() -> None:
    found = every()
    row = load.measured(found, WINDOW)
    mine = [ticket for ticket in found if ticket["planned_ns"] < WINDOW.end_ns and ticket["done_ns"] >= WINDOW.start_ns]
    assert row["requests"] == len(mine)
    assert row["requests_failed"] == sum(ticket["outcome"] != 0 for ticket in mine)
    assert row["attempts"] == sum(ticket["attempts"] for ticket in mine)
    unknown = OUTCOMES.index("timeout")
    assert row["bytes_measured"] == sum(
        ticket["bytes_sent"]
        for ticket in found
        if WINDOW.start_ns <= ticket["done_ns"] < WINDOW.end_ns and ticket["outcome"] != unknown
    )
    ended = [ticket for ticket in found if WINDOW.start_ns <= ticket["done_ns"] < WINDOW.end_ns]
    assert row["requests_answered"] == sum(ticket["outcome"] != unknown for ticket in ended)
    assert row["docs_per_s_mean"] == pytest.approx(sum(int(ticket["documents_acked"]) for ticket in ended) / 3)
    response_ms = sorted((ticket["done_ns"] - ticket["planned_ns"]) / 1e6 for ticket in mine)
    acked_ms = sorted((ticket["done_ns"] - ticket["planned_ns"]) / 1e6 for ticket in mine if ticket["outcome"] == 0)
    for name, times in (("response", response_ms), ("response_ok", acked_ms)):
        assert row[f"{name}_ms_max"] == times[-1]
        assert row[f"{name}_ms_p50"] == times[-(-len(times) // 2) - 1]
    seconds = load.acked_per_second(found, WINDOW.start_ns, 3)
    for second in range(3):
        start_ns = WINDOW.start_ns + second * SECOND
        own = [int(ticket["documents_acked"]) for ticket in found if start_ns <= ticket["done_ns"] < start_ns + SECOND]
        assert seconds[second] == sum(own)
    hole = found[(found["done_ns"] < WINDOW.start_ns + SECOND) | (found["done_ns"] >= WINDOW.start_ns + 2 * SECOND)]
    assert load.measured(hole, WINDOW)["silent_s"] == 1


def test_the_documents_of_a_slot_are_the_parts_of_the_requests_in_it() -> None:
    found, slot_ns = every(), SECOND // 2
    slots = load.spread_acked(found, WINDOW.start_ns, 6, slot_ns)
    for slot in range(6):
        low_ns, expected = WINDOW.start_ns + slot * slot_ns, 0.0
        for one in found:
            end_ns = int(one["done_ns"])
            begin_ns = min(int(one["sent_ns"]), end_ns - 1)
            inside_ns = max(0, min(end_ns, low_ns + slot_ns) - max(begin_ns, low_ns))
            expected += float(one["documents_acked"]) * inside_ns / (end_ns - begin_ns)
        assert slots[slot] == pytest.approx(expected)


def test_who_waits_for_a_slow_answer_sends_nothing_meanwhile() -> None:
    found, limit_ms = every(), 150.0
    users, idle_ns = set(), 0
    for one in found:
        if one["planned_ns"] < WINDOW.end_ns and one["done_ns"] >= WINDOW.start_ns and one["user"] >= 0:
            users.add(int(one["user"]))
            if one["done_ns"] - one["sent_ns"] > 10 * limit_ms * 1e6:
                idle_ns += max(0, min(one["done_ns"], WINDOW.end_ns) - max(one["sent_ns"], WINDOW.start_ns))
    row = closed_loop.values(found, WINDOW, made.report(), limit_ms)
    assert row["idle_while_waiting_s"] == pytest.approx(idle_ns / 1e9 / len(users))


def test_the_steps_of_waiting_and_the_answers_in_them() -> None:
    found = every()
    # Slow is what takes more than a second here: ten medians of 100 ms.
    seen = waiting.of_load(found, WINDOW, 100.0)
    mine = [one for one in found if one["planned_ns"] < WINDOW.end_ns and one["done_ns"] >= WINDOW.start_ns]
    slow = [one for one in mine if one["done_ns"] - one["planned_ns"] > seen.slow_ns]
    assert len(seen.slow) == len(slow)
    assert seen.gap_ns == 3 * SECOND / len(mine)
    last = len(seen.counts) - 1

    def step(at_ns: int) -> int:
        return min(max((at_ns - WINDOW.start_ns) // seen.step_ns, 0), last)

    expected = [sum(step(one["planned_ns"]) <= at <= step(one["done_ns"]) for one in slow) for at in range(last + 1)]
    assert seen.counts.tolist() == expected
    answered = [one for one in found if WINDOW.start_ns <= one["first_byte_ns"] < WINDOW.end_ns and one["status"] > 0]
    assert seen.answers(WINDOW.start_ns - seen.step_ns, WINDOW.end_ns) == len(answered)
    second = WINDOW.start_ns + SECOND
    # From the step after the one in which the span begins to the one before its end.
    assert seen.answers(second - 1, second + seen.step_ns) == sum(
        second <= one["first_byte_ns"] < second + seen.step_ns for one in answered
    )
    assert seen.answers(second, second + seen.step_ns) == 0
    assert seen.answers(second, second + SECOND, address=5) == 0


@pytest.mark.parametrize("largest", [1 << 39, (1 << 40) - 1, 1 << 40, 1 << 41])
@pytest.mark.parametrize("least", [0, -1])
def test_the_median_of_each_second_whatever_the_times_are(largest: int, least: int) -> None:
    second = np.array([7, 3, 7, 3, 7, 7, 9, 3, 3])
    times = np.array([5, largest, 3, least, 8, largest, largest, 2, 1])
    seconds, medians = quantiles.medians(second, times)
    assert seconds.tolist() == [3, 7, 9]
    # Of an even number the lower one.
    assert medians.tolist() == [1, 5, largest]


def cost(size_bytes: int, share: float) -> Cost:
    fields: dict[str, Any] = {"buffers": Fixed(size_bytes), "ingested_bytes": 1000}
    names = {field.name: 0 for field in Cost.__dataclass_fields__.values()}
    return Cost(**(names | fields | {"allocated_bytes": round(share * 1000)}))


def recorded(name: str, share: float, found: list[int], *, filled: int = 0, length_s: float = 1.0) -> Recorded:
    return Recorded(
        run=name, costs=[cost(1024, share), cost(4096, 9 * share)], found_bytes=np.array(found), largest_bytes=1024,
        filled=filled, reads=100, length_s=length_s,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (recorded("b", 1.0 * agreement.ALIKE, [10, 30]), ""),
        (recorded("b", 2.5, [10, 30]), "1000B lay in a socket"),
    ],
)
def test_two_recordings_disagree_beyond_what_runs_differ_by(other: Recorded, said: str) -> None:
    found = agreement.disagreement([recorded("a", 1.0, [10, 30]), other])
    assert bool(found) is bool(said)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (recorded("b", 2.5, [20, 20]), "but spread in another way (0.5 times and 0.0 times of it)"),
        (recorded("b", 2.5, [20, 20], length_s=4), "the server took 0.0 and 0.0 MB/s"),
        (recorded("b", 2.5, [20, 22]), "what arrived together differed; record more runs"),
        (
            recorded("b", 2.5, [20, 20], filled=100),
            "100% of the reads of b filled their 1KiB, which hid what lay behind",
        ),
    ],
)
def test_why_two_recordings_disagree_is_said(other: Recorded, said: str) -> None:
    found = agreement.disagreement([recorded("a", 1.0, [10, 30]), other])
    assert "a and b disagree: 1KiB allocate 1.00 bytes for each byte ingested by the first, 2.50 by the second" in found
    assert found.endswith(said)


def test_throughput_is_back_with_the_first_whole_second_that_ends_behind_the_fault() -> None:
    def back(values: list[float], began: float, ended: float | None, end_s: int = 8) -> float | None:
        series = Series("docs_per_s", tuple(at * SECOND for at in range(8)), tuple(values))
        fault = Happened(
            kind="pause", started=round(began * SECOND), ended=None if ended is None else round(ended * SECOND)
        )
        return recovery.recovery_s(series, [fault], SECOND, end_s * SECOND)

    # Before it: 10, 20 and 30; of these 90% of the median are 18.
    values = [999.0, 10, 20, 30, 0, 17.9, 18, 99]
    assert back(values, 4, 4.5) == 2.5
    assert back(values, 4, 6) == 1
    assert back(values, 4, 6.9999) == pytest.approx(0.0001)
    assert back(values, 4, 7) == 1
    assert back(values, 4, None) == 3
    assert back(values, 4, 4.5, end_s=7) == 2.5
    assert back(values, 4, 4.5, end_s=6) is None
    # The second in which it began is none before it: of 10 and 20 the median is 15.
    assert back([999.0, 10, 20, 30, 0, 13.4, 13.5, 99], 3.999, 4.5) == 2.5
    assert back(values, 1.9, 4.5) is None
    assert recovery.recovery_s(Series("docs_per_s", (), ()), [], 0, SECOND) is None


def test_sizes_are_columns_and_no_bin_is_lost_between_two() -> None:
    counts = {1: 4, 3: 1, 1024: 90, 1025: 5}
    assert histogram.sizes({"read_bytes": counts, "wire_bytes": {9: 3, 11: 4}}) == {
        "reads": 100,
        "read_bytes_mean": (4 + 3 + 90 * 1024 + 5 * 1025) / 100,
        "read_bytes_p50": 1024,
        "read_bytes_p99": 1025,
        "wire_bytes_p50": 11,
    }
    assert histogram.sizes({"wire_bytes": {}}) == {}
    assert histogram.merge([{1: 2, 3: 4}, {3: 1}]) == {1: 2, 3: 5}
    rows = histogram.bins(counts, per_octave=2)
    assert (rows[0], rows[-1]) == ((1, 1, 4), (1025, 1448, 5))
    assert [low for low, _, _ in rows[1:]] == [high + 1 for _, high, _ in rows[:-1]]
    assert sum(number for _, _, number in rows) == 100
    assert [high for _, high, _ in rows if math.log2(high).is_integer()] == [2**power for power in range(11)]


def test_the_share_of_a_gb_is_that_of_any_byte_and_of_none_nobody_knows_it() -> None:
    assert per_gb.shares({"gc_pauses": 3, "bytes_measured": 1})["gc_pauses_per_gb"] == 3e9
    assert per_gb.shares({"gc_pauses": 3, "bytes_measured": 2 * 10**9})["gc_pauses_per_gb"] == 1.5
    for ingested in (0, None):
        assert per_gb.shares({"gc_pauses": 3, "bytes_measured": ingested})["gc_pauses_per_gb"] is None


def test_phases_that_nobody_saw_are_unknown_and_those_of_the_client_are_not() -> None:
    one = made.samples([made.sample(1, 2, sent_ns=made.START + SECOND + 5, written_ns=made.START + SECOND + 9)])
    found = {name: part.tolist() for name, part in phases.split_ns(one, {}).items()}
    assert found == {"client": [5], "writing": [4], "wire": [-1], "reading": [-1], "working": [-1], "answer": [0]}
    reads = {40000: phases.Reads(one["sent_ns"] + np.array([7, 30]))}
    found = {name: part.tolist() for name, part in phases.split_ns(one, reads).items()}
    assert found == {
        "client": [5], "writing": [4], "wire": [7], "reading": [23], "working": [SECOND - 35], "answer": [0]
    }  # fmt: skip
    for changed in ({"attempts": 2}, {"bytes_sent": 0}):
        other = made.samples([made.sample(1, 2, **changed)])
        assert all(part.tolist() == [-1] for part in phases.split_ns(other, reads).values())


def test_the_published_corpora_are_those_of_the_workloads() -> None:
    for name, (documents, size_bytes) in published.CORPORA.items():
        shipped = catalog.workload(name)
        assert (shipped.published_documents, shipped.published_bytes) == (documents, size_bytes)


def test_a_goal_is_met_below_its_limit_and_missed_at_it() -> None:
    goal = goals.parse("p99 < 500ms, errors < 1%")

    def broken(**values: float) -> list[str]:
        return goal.broken({"requests": 1000, "requests_failed": 0, "response_ms_p99": 20.0, **values})

    assert broken(response_ms_p99=499.999) == broken(requests_failed=9) == []
    assert [each.split()[0] for each in broken(response_ms_p99=500.0)] == ["p99"]
    assert [each.split()[0] for each in broken(requests_failed=10)] == ["errors"]
    assert len(broken(response_ms_p99=500.0, requests_failed=10)) == 2
    unknown = {"requests": 10, "requests_failed": 0}
    assert goal.broken({**unknown, "response_ms_max": 499.0}) == []
    assert len(goal.broken({**unknown, "response_ms_max": 500.0})) == len(goal.broken(unknown)) == 1
    assert len(goal.broken({"requests": 0, "requests_failed": 0, "response_ms_p99": 20.0})) == 1


def test_the_thousandth_longest_of_each_thousand_is_the_last_but_two_of_two_thousand() -> None:
    found = made.samples([made.sample(0, number / 1000) for number in range(1, 2001)])
    row = load.measured(found, Window(made.START, made.START + 10 * SECOND))
    for kind in ("response", "response_ok"):
        assert row[f"{kind}_ms_p999"] == pytest.approx(1998)
        assert row[f"{kind}_ms_p99"] == pytest.approx(1980)


def test_documents_are_lost_by_a_kill_alone_and_where_both_numbers_are_known() -> None:
    killed, paused = Happened(kind="kill", started=0), Happened(kind="pause", started=0)
    known = {"documents_acked": 10, "documents_repeated": 1, "documents_counted": 7}
    assert recovery.lost([paused, killed], known) == {"lost_documents": 2}
    assert recovery.lost([killed], {**known, "documents_counted": 12}) == {"lost_documents": 0}
    for faults, values in (
        ([paused], known),
        ([killed], {**known, "documents_acked": None}),
        ([killed], {**known, "documents_counted": None}),
    ):
        assert recovery.lost(faults, values) == {}


@pytest.mark.parametrize(("before_sending", "ports", "lasted_ns", "held"), [
    (False, (1,), 200, True), (False, (1,), 150, True), (False, (1,), 149, False), (False, (0,), 149, True),
    (True, (1,), 149, True),
])  # fmt: skip
def test_a_cause_held_no_request_when_none_had_it_for_a_seventh_of_its_time(
    before_sending: bool, ports: tuple[int, ...], lasted_ns: int, held: bool
) -> None:
    cause = suspects.Suspect(
        *("cause", "", None, 0, True, True, before_sending, False, True, 0),
        starts_ns=np.array([made.START]),
        ends_ns=np.array([made.START + lasted_ns]),
    )
    slow = made.samples([made.sample(0, 0) | {"sent_ns": made.START, "done_ns": made.START + 1000}])
    assert suspects.held_none(cause, slow, np.array(ports)) is not held


def test_the_buckets_of_a_dashboard_are_100_us_to_500_s() -> None:
    assert (figures.BUCKETS_NS[0], figures.BUCKETS_NS[1], figures.BUCKETS_NS[-1]) == (100_000, 250_000, 500 * SECOND)


def test_the_adaptive_buffer_of_the_candidates_is_that_of_netty() -> None:
    # AdaptiveRecvByteBufAllocator: DEFAULT_MINIMUM, DEFAULT_INITIAL, DEFAULT_MAXIMUM.
    assert Adaptive(64, 2048, 65536) in receive_buffers.CANDIDATES


@pytest.mark.parametrize(("unit", "most"), [("requests", 10**6), ("documents", 10**8), ("bytes", 10**11)])
def test_the_most_that_a_machine_can_send_is_a_rate_and_a_little_more_is_none(unit: RateUnit, most: int) -> None:
    rates.check_rate(Rate(per_s=most, unit=unit))
    with pytest.raises(ValueError, match="more than one machine can send"):
        rates.check_rate(Rate(per_s=most + 0.5, unit=unit))


@pytest.mark.parametrize("percent", [10, 50, 90, 99, 99.9, 99.99])
def test_a_percentile_has_exactly_the_place_that_its_share_says(percent: float) -> None:
    share = Fraction(str(percent)) / 100
    for count in range(1, 100_001, 37):
        for exact in (count, count * 1000):
            expected = None if exact * (1 - share) < 1 else math.ceil(exact * share) - 1
            assert nearest_rank.rank(percent, exact) == expected
