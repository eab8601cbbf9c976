"""Stalls are detected in samples and attributed to watched causes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import example_runs as made
import numpy as np
import pytest

from ingest_bench.analysis.run import summary
from ingest_bench.analysis.run.sample_columns import Samples, SampleSource
from ingest_bench.analysis.stalls import attribution, phases, suspects
from ingest_bench.model.experiment import Cell
from ingest_bench.model.results import READ_FIELDS, CauseIntervals, FaultRecord, Interval, ProbeOutput, Stall
from ingest_bench.model.samples import EVENT_LOOP_STALL
from ingest_bench.model.target import TargetOptions, Url
from ingest_bench.network.measure import readings
from ingest_bench.network.measure.wire import TcpSnapshot, WireRecord
from ingest_bench.report import cell_tables, stall_table

SECOND = made.SECOND
ZERO = made.START + made.OFFSET
USERS = 4
CAUSES = ("garbage collection", "server process stopped", "packets lost on the network", "quota")
SERVICE_S = 0.02
Spans = Mapping[str, Sequence[tuple[float, float]]]


def build(begin_s: Sequence[float], end_s: Sequence[float], user: Sequence[int]) -> Samples:
    """Return samples in order of their end, each user on its own port."""
    order = np.argsort(end_s, kind="stable")
    rows = made.timed(np.asarray(begin_s)[order], np.asarray(end_s)[order])
    rows["user"] = np.asarray(user, dtype=np.int32)[order]
    rows["local_port"] = 40000 + rows["user"]
    return rows


def load(stalled: list[tuple[float, float]], length_s: float = 20, only_user: int | None = None) -> Samples:
    """Return a closed loop of 4 users with responses after 20 ms; requests in flight during *stalled* wait."""
    rows = []
    for user in range(USERS):
        now = user * 0.005
        while now < length_s:
            done = now + SERVICE_S
            for begin, end in stalled if only_user in (None, user) else ():
                if begin < done and now < end:
                    done = end + SERVICE_S / 2
            rows.append((now, done, user))
            now = done
    return build(*zip(*rows, strict=True))


def cause(name: str, *spans: tuple[float, float], thread: str = "", port: int = 0, **flags: Any) -> CauseIntervals:
    intervals = tuple(
        Interval(name, ZERO + round(begin * SECOND), ZERO + round(end * SECOND), thread, port) for begin, end in spans
    )
    return CauseIntervals(name, intervals, **flags)


def find(
    samples: SampleSource,
    causes: Spans | Sequence[CauseIntervals] = (),
    window_s: tuple[float, float] = (0, 20),
    median_ms: float = SERVICE_S * 1000,
) -> tuple[Stall, ...]:
    start_ns, end_ns = (made.START + round(at * SECOND) for at in window_s)
    watched = [cause(name, *spans) for name, spans in causes.items()] if isinstance(causes, Mapping) else causes
    report = made.report(warm_up_end_ns=start_ns, measure_end_ns=end_ns)
    return attribution.find_stalls(samples, report, median_ms, watched)


def names(stall: Stall) -> set[str]:
    return {item.cause for item in stall.causes}


def attributed(samples: SampleSource, causes: Spans | Sequence[CauseIntervals]) -> set[str]:
    """Return the causes of the only stall."""
    (stall,) = find(samples, causes)
    return names(stall)


def ends_s(*stalls: Stall) -> list[float]:
    return [(time_ns - ZERO) / SECOND for stall in stalls for time_ns in (stall.start_ns, stall.end_ns)]


def test_stall_has_span_requests_cause_and_description() -> None:
    first, second = find(
        np.concatenate([load([(5, 8.4)], only_user=2), load([(12, 13)])]),
        {"garbage collection": [(1, 1.01), (12.02, 13)], "quota": [(4.95, 8.45)]},
    )
    assert ends_s(first) == pytest.approx([5, 8.4], abs=0.03)
    assert (first.requests, first.max_concurrent, names(first)) == (1, 1, {"quota"})
    assert first.longest_response_ns / SECOND == pytest.approx(3.4, abs=0.04)
    assert [item.cause for item in first.ruled_out] == ["garbage collection"]
    assert (second.requests, second.max_concurrent, names(second)) == (USERS, USERS, {"garbage collection"})
    text = attribution.describe_stall(first, ZERO, USERS)
    assert text.startswith("4.98-8.42 s: 1 of 4 connections waited, the longest 3.4")
    assert ", while: quota (3.4" in text
    assert "; ruled out: garbage collection" in text


def test_waiting_requests_of_an_open_loop_are_counted_instead_of_connections() -> None:
    """57 requests a second of 4 users, and a pause of 4 s without responses."""
    due_s = np.arange(456) / 57
    done_s = np.where((due_s + SERVICE_S > 1) & (due_s < 5), 5, due_s) + SERVICE_S
    samples = build(due_s.tolist(), done_s.tolist(), (np.arange(456) % USERS).tolist())
    report = made.report(is_open_loop=True, warm_up_end_ns=made.START, measure_end_ns=made.START + 8 * SECOND)
    stalls = attribution.find_stalls(samples, report, SERVICE_S * 1000, [])
    (note,) = attribution.note_stalls(stalls, report, samples, made.cell(probes=("stalls",)))
    assert note.text.startswith("0.98-5.03 s: 219 requests waited at once, the longest 4.0")


def test_user_that_waits_twice_in_a_row_is_one_connection() -> None:
    usual = [made.sample(n / 100, n / 100 + 0.0099) for n in (*range(300), *range(511, 700))]
    rows = made.samples([*usual, made.sample(3.0, 4.2), made.sample(4.2001, 5.1)])
    (stall,) = attribution.find_stalls(rows, made.report(), 10.0, [])
    assert (stall.requests, stall.max_concurrent) == (2, 1)


def test_stall_without_covering_cause_is_unexplained() -> None:
    (stall,) = find(load([(5, 8)]), {"garbage collection": [(5.1, 5.2)], "quota": [(9, 10)]})
    assert stall.causes == ()
    assert stall.unexplained_ns == pytest.approx(stall.end_ns - stall.start_ns, abs=0.02 * SECOND)
    text = attribution.describe_stall(stall, ZERO, USERS)
    assert "unexplained; ruled out: garbage collection (0.10 s), quota;" in text
    values = attribution.stall_columns([stall])
    assert values["stall_cause_top"] == "unexplained"
    assert values["stalled_unexplained_s"] == pytest.approx(values["stalled_s"], abs=0.02)


def test_permanent_cause_explains_no_stall() -> None:
    """It covers all of the waiting, and as much of all other time."""
    (stall,) = find(load([(5, 8)]), {"quota": [(n / 10, n / 10 + 0.08) for n in range(200)]})
    assert stall.causes == ()
    assert [item.cause for item in stall.undecided] == ["quota"]


def test_drop_in_throughput_is_a_stall_without_slow_requests() -> None:
    rows = [made.sample(n / 20, n / 20 + 0.02) for n in range(400) if not 160 <= n < 220 or n % 5 == 0]
    (stall,) = find(made.samples(rows), {"quota": [(8, 11)]})
    assert ends_s(stall) == pytest.approx([8, 11], abs=0.11)
    assert (stall.requests, names(stall)) == (0, {"quota"})
    assert not find(load([]), {"quota": [(8, 11)]})


def test_rate_that_was_never_higher_is_no_stall() -> None:
    slow_start = [made.sample(n / 20, n / 20 + 0.02) for n in range(400) if n >= 60 or n % 5 == 0]
    assert not find(made.samples(slow_start))
    warm_up = [made.sample(n / 20, n / 20 + 0.02) for n in range(-100, 0)]
    (stall,) = find(made.samples(warm_up + slow_start))
    assert ends_s(stall) == pytest.approx([0, 3], abs=0.11)


def test_random_stalls_have_no_wrong_cause_and_19_of_20_have_one() -> None:
    """One or two causes that may overlap, with timing errors of 100 ms, among unrelated spans."""
    rng = random.Random(14)  # noqa: S311 - synthetic runs
    explained = wrong = 0
    for _ in range(60):
        start_s = rng.uniform(2, 14)
        true = {rng.choice(CAUSES): (start_s, start_s + rng.uniform(0.4, 4))}
        if rng.random() < 0.4:
            begin_s = start_s + rng.uniform(0, 2)
            true.setdefault(rng.choice(CAUSES), (begin_s, begin_s + rng.uniform(0.4, 3)))
        spans: dict[str, list[tuple[float, float]]] = {name: [] for name in CAUSES}
        for name, (begin, end) in true.items():
            spans[name].append((begin + rng.uniform(-0.1, 0.1), end + rng.uniform(-0.1, 0.1)))
        spans["garbage collection"] += [(at, at + 0.02) for at in (rng.uniform(0, 20) for _ in range(30))]
        spans["unrelated"] = [(at, at + 0.1) for at in (rng.uniform(0, 20) for _ in range(20))]
        causes = set[str]().union(*map(names, find(load(list(true.values())), spans)))
        wrong += bool(causes - true.keys())
        explained += bool(causes)
    assert wrong == 0
    assert explained >= 57


def test_random_stalls_without_watched_cause_are_attributed_to_no_bystander() -> None:
    """A bystander occurs twice a run for half a second, at random times."""
    rng = random.Random(15)  # noqa: S311 - synthetic runs
    for _ in range(60):
        start_s = rng.uniform(2, 14)
        bystander = [(at, at + 0.5) for at in (rng.uniform(0, 19.5) for _ in range(2))]
        stalls = find(load([(start_s, start_s + rng.uniform(0.4, 4))]), {"garbage collection": bystander})
        assert [names(stall) for stall in stalls] == [set()], (start_s, bystander)


def test_overlapping_requests_have_their_own_causes() -> None:
    both = np.concatenate([load([(5, 8.4)], only_user=2), load([(8.2, 9.4)], only_user=1)])
    (stall,) = find(both, {"quota": [(5, 8.4)]})
    assert names(stall) == {"quota"}
    assert stall.unexplained_ns / SECOND == pytest.approx(1.2, abs=0.05)
    (stall,) = find(both, {"quota": [(5, 8.4)], "packets lost on the network": [(8.2, 9.4)]})
    assert names(stall) == {"quota", "packets lost on the network"}
    assert stall.unexplained_ns == 0


def file_and_lack_of_cpu(begin_s: float, end_s: float, *, starves_cpu: bool = True) -> list[CauseIntervals]:
    """Return a thread's activity from 5 to 8 s, and a lack of CPU at another time, which by itself does not fit."""
    return [cause("cpu", (begin_s, end_s), starves_cpu=starves_cpu), cause("file", (5, 8), thread="write#1")]


@pytest.mark.parametrize(
    ("stalled", "causes", "expected"),
    [
        # A cause of a fifth of the waiting explains nothing.
        ((5, 5.34), [cause("gc", (5.1, 5.17))], ""),
        ((5, 5.34), [cause("gc", (5, 5.07))], ""),
        # Causes that fit equally are attributed together, and so are successive ones.
        ((5, 7), [cause("quota", (5.0, 7.0)), cause("gc", (5.01, 6.99))], "quota gc"),
        ((5, 7), [cause("gc", (5.01, 6.99)), cause("quota", (5.0, 7.0))], "quota gc"),
        ((5, 8), [cause("quota", (5, 6.6)), cause("lost", (6.5, 8))], "quota lost"),
        ((5, 8), [cause("quota", (5, 6.6))], ""),
        # Different activities follow one another on one thread.
        ((5, 8), [cause("lock", (5, 6), thread="write#1"), cause("file", (6, 8), thread="write#1")], "lock file"),
        ((5, 8), [cause("lock", (5, 6), thread="write#1"), cause("file", (6, 8), thread="write#2")], ""),
        # A starved thread's activity is not the cause.
        ((5, 8), file_and_lack_of_cpu(4, 9), "cpu"),
        ((5, 8), file_and_lack_of_cpu(4, 7.5), "cpu"),
        ((5, 8), file_and_lack_of_cpu(4, 7.2), "file"),
        ((5, 8), file_and_lack_of_cpu(4, 9, starves_cpu=False), "file"),
        # A cause may continue after the measurement, but within it has to end with the waiting.
        ((18.5, 22), [cause("flush", (18.5, 20))], "flush"),
        ((18.5, 22), [cause("flush", (18.5, 23))], "flush"),
        ((12, 13.5), [cause("flush", (12, 17))], ""),
    ],
)
def test_cause_that_begins_and_ends_with_the_waiting_is_attributed(
    stalled: tuple[float, float], causes: list[CauseIntervals], expected: str
) -> None:
    assert attributed(load([stalled], 24), causes) == set(expected.split())


def test_stalls_that_are_hardly_apart_are_merged() -> None:
    assert [len(find(load([(5, 6), second]))) for second in ((6.1, 7), (6.9, 7.9))] == [1, 2]


@pytest.mark.parametrize("only_user", [None, 2])
def test_pause_is_ruled_out_by_responses_of_other_connections(only_user: int | None) -> None:
    causes = [cause("garbage collection", (5, 7), blocks_responses=True)]
    (stall,) = find(load([(5, 7)], only_user=only_user), causes)
    assert names(stall) == (set() if only_user else {"garbage collection"})
    assert [item.reason.endswith(" responses meanwhile") for item in stall.ruled_out] == ([True] if only_user else [])


USUAL = [made.sample(n / 10, n / 10 + 0.02, user=3) for n in range(50)]


def test_request_queued_for_a_user_does_not_show_when_a_cause_began() -> None:
    free = made.START + 9 * SECOND
    rows = [made.sample(5, 9), made.sample(7, 9.02, sent_ns=free, user=1), made.sample(7.5, 9.02, sent_ns=free, user=2)]
    assert attributed(made.samples([*USUAL, *rows]), {"quota": [(7, 9)]}) == set()


def test_requests_that_all_queued_for_a_user_waited_since_they_were_due() -> None:
    """A stalled generator: nothing was in flight, and the requests that were due meanwhile were sent afterwards."""
    sent = made.START + 8 * SECOND
    rows = made.samples([*USUAL, *(made.sample(5.1 + n / 10, 8.02, sent_ns=sent, user=n % 3) for n in range(29))])
    assert attributed(rows, {"quota": [(5.1, 8)]}) == {"quota"}
    (stall,) = find(rows, {"quota": [(7.9, 8)]})
    assert names(stall) == set()
    assert stall.unexplained_ns / SECOND == pytest.approx(2.92, abs=0.01)


def test_cause_during_the_catching_up_is_ruled_out() -> None:
    """From 9 s on the server responds immediately to the requests that queued for a user."""
    rows = [made.sample(5, 9)]
    for n in range(50):
        sent = made.START + round((9 + n / 50) * SECOND)
        rows.append(made.sample(5.1 + n / 20, 9.02 + n / 50, sent_ns=sent, user=1 + n % 3))
    (stall,) = find(made.samples([*USUAL, *rows]), {"quota": [(5, 9)], "a thread waited": [(9, 10)]})
    assert names(stall) == {"quota"}
    assert [item.cause for item in stall.ruled_out] == ["a thread waited"]


def test_activity_of_one_thread_is_undecided_if_a_cause_of_all_threads_fits() -> None:
    (stall,) = find(load([(5, 8)]), [cause("quota", (5, 8)), cause("forced a file", (5, 8), thread="write#1")])
    assert names(stall) == {"quota"}
    assert [item.cause for item in stall.undecided] == ["forced a file"]


def open_loop(pause_s: tuple[float, float], later_s: float, users: int, length_s: float) -> Samples:
    """Return requests each 10 ms; none is answered in the pause, later ones take *later_s* until 7.2 s."""
    rows, free_s = [], [0.0] * users
    for due_s in (n / 100 for n in range(round(length_s * 100))):
        user = min(range(users), key=free_s.__getitem__)
        sent_s = max(due_s, free_s[user])
        done_s = sent_s + (later_s if pause_s[0] < sent_s < 7.2 else 0.01)
        if sent_s < pause_s[1] and done_s > pause_s[0]:
            done_s = pause_s[1] + 0.01
        free_s[user] = done_s
        sent_ns = made.START + round(sent_s * SECOND)
        rows.append(made.sample(due_s, done_s, sent_ns=sent_ns, user=user, local_port=40000 + user))
    return made.samples(rows)


def test_request_sent_after_the_measurement_waited_for_a_user_within_it() -> None:
    (stall,) = find(open_loop((4.5, 5.5), 0.08, USERS, 7), {"garbage collection": [(4.5, 5.5)]}, (2, 5), 10)
    assert (names(stall), stall.unexplained_ns) == ({"garbage collection"}, 0)


def test_users_that_catch_up_slowly_waited_for_the_cause_of_the_stall() -> None:
    """Packets are lost from 5 s to 6.5 s; then a request takes 110 ms for a while."""
    lost = [Interval(readings.LOST, ZERO + 5 * SECOND, ZERO + 13 * SECOND // 2, port=40000 + n) for n in range(16)]
    causes = [CauseIntervals(readings.LOST, tuple(lost), timing_error_ns=SECOND // 4)]
    (stall,) = find(open_loop((5, 6.5), 0.11, 16, 12), causes, (0, 12))
    assert (names(stall), stall.unexplained_ns) == ({readings.LOST}, 0)


@pytest.mark.parametrize("sent_s", [6.5, 7.0, 7.2])
def test_stalled_time_ends_with_the_measurement(sent_s: float) -> None:
    rows = [made.sample(n / 100, n / 100 + 0.01, user=n % USERS) for n in range(700)]
    late = made.sample(6.4, 7.6, sent_ns=made.START + round(sent_s * SECOND), user=1)
    samples = made.samples([*rows, made.sample(6, 6.5), late])
    stalls = find(samples, {"quota": [(6.2, 6.3)]}, (2, 7), 10)
    assert attribution.stall_columns(stalls)["stalled_s"] == pytest.approx(1, abs=0.02)


def test_request_answered_when_the_measurement_begins_adds_no_stalled_time() -> None:
    rows = [made.sample(n / 100, n / 100 + 0.01) for n in range(500)]
    stalls = find(made.samples([*rows, made.sample(1, 2)]), {}, (2, 5), 10)
    assert attribution.stall_columns(stalls)["stalled_s"] == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("longest_s", [0.19, 0.25])
def test_slow_request_does_not_hide_a_drop_in_throughput(longest_s: float) -> None:
    rows = []
    for user in range(USERS):
        at = 0.0
        while at < 30:
            duration = 0.02 if not 12 <= at < 17 else longest_s if user == 0 and 15 <= at < 15.19 else 0.19
            rows.append(made.sample(at, at + duration, user=user))
            at += duration
    stalls = find(made.samples(rows), (), (0, 30))
    assert attribution.stall_columns(stalls)["stalled_s"] == pytest.approx(5.1, abs=0.2)


def test_two_drops_around_a_good_second_do_not_overlap() -> None:
    rows = [
        made.sample(at / 100, at / 100 + 0.01)
        for at in range(3000)
        if not (1000 <= at < 1135 or 1165 <= at < 1300)
        for _ in range(2 if 1100 <= at < 1200 else 1)
    ]
    stalls = find(made.samples(rows), (), (0, 30), 10)
    assert ends_s(*stalls) == pytest.approx([10, 11.35, 11.65, 13], abs=0.1)


def test_gap_between_few_requests_has_its_length() -> None:
    rows = [made.sample(at / 5, at / 5 + 0.01) for at in range(150) if not 50 <= at < 60]
    assert ends_s(*find(made.samples(rows), (), (0, 30), 10)) == pytest.approx([9.9, 12], abs=0.11)


@pytest.mark.parametrize(
    ("only_user", "lost_on", "expected"),
    [(2, (40002,), [40002]), (2, (40001,), []), (None, (40001,), [40001]), (None, (40001, 40002), [0])],
)
def test_packet_loss_explains_only_its_own_connections(
    only_user: int | None, lost_on: tuple[int, ...], expected: list[int]
) -> None:
    intervals = tuple(Interval("lost", ZERO + 5 * SECOND, ZERO + 7 * SECOND, port=port) for port in lost_on)
    (stall,) = find(load([(5, 7)], only_user=only_user), [CauseIntervals("lost", intervals)])
    assert [item.port for item in stall.causes] == expected


def lossy(
    rng: random.Random, lost_on: frozenset[int], users: int, paused: bool = False
) -> tuple[Samples, list[CauseIntervals]]:
    """Return a closed loop of 12 s in which these users' packets are lost, or the server pauses, for a second.

    TCP retransmits after 0.2, 0.4 and 0.8 s. Its timeouts are sampled each 250 ms and reported as by
    `network.measure.readings`. Garbage collections and a quota are bystanders.
    """
    start_s, sampled_s = rng.uniform(3, 7), rng.uniform(0, 0.25)
    rows, lost = [], []
    for user in range(users):
        now = user * SERVICE_S / users
        while now < 12:
            done = now + SERVICE_S * rng.uniform(0.8, 1.2)
            if done > start_s and now < start_s + 1 and user in lost_on:
                begin, timeout_s = max(now, start_s), 0.2
                done = begin + timeout_s
                while done < start_s + 1:
                    timeout_s *= 2
                    done += timeout_s
                first, last = np.floor((begin + 0.2 - sampled_s) / 0.25), np.ceil((done - sampled_s) / 0.25)
                lost.append((first * 0.25 + sampled_s - 0.2, last * 0.25 + sampled_s, 40000 + user))
            if paused and done > start_s and now < start_s + 1:
                done = start_s + 1 + SERVICE_S
            rows.append((now, done, user))
            now = done
    intervals = tuple(
        Interval(readings.LOST, ZERO + round(a * SECOND), ZERO + round(b * SECOND), port=port) for a, b, port in lost
    )
    pauses = [(at, at + 0.02) for at in (rng.uniform(0, 12) for _ in range(20))] + [(start_s, start_s + 1)] * paused
    quotas = [(at, at + 0.1) for at in (rng.uniform(0, 12) for _ in range(10))]
    return build(*zip(*rows, strict=True)), [
        CauseIntervals(readings.LOST, intervals, timing_error_ns=SECOND // 4),
        cause("garbage collection", *pauses, blocks_responses=True),
        cause("quota", *quotas),
    ]


def causes_with_port(samples: Samples, causes: Sequence[CauseIntervals]) -> set[tuple[str, int]]:
    return {(item.cause, item.port) for stall in find(samples, causes, (0, 12)) for item in stall.causes}


@pytest.mark.parametrize("users", [1, 4, 16])
@pytest.mark.parametrize("hit", ["all", "half", "one", "none"])
def test_stall_of_a_second_is_attributed_correctly_with_1_to_16_users(hit: str, users: int) -> None:
    """Packets are lost on these connections; "none": the server pauses."""
    rng = random.Random(31)  # noqa: S311 - synthetic runs
    correct = wrong = 0
    runs = 10
    for _ in range(runs):
        count = {"all": users, "half": max(1, users // 2), "one": 1, "none": 0}[hit]
        lost_on = frozenset(rng.sample(range(users), count))
        causes = causes_with_port(*lossy(rng, lost_on, users, paused=not lost_on))
        port = 40000 + min(lost_on) if len(lost_on) == 1 else 0
        true = (readings.LOST, port) if lost_on else ("garbage collection", 0)
        correct += causes == {true}
        wrong += bool(causes - {true})
    assert (correct, wrong) == (runs, 0)


def test_packet_loss_on_some_connections_does_not_explain_others() -> None:
    samples, (lost, *others) = lossy(random.Random(3), frozenset(), 16, paused=True)  # noqa: S311 - a synthetic run
    pause = others[0].intervals[-1]
    elsewhere = tuple(Interval(readings.LOST, pause.start_ns, pause.end_ns, port=50000 + user) for user in range(16))
    assert not causes_with_port(
        samples, [CauseIntervals(readings.LOST, elsewhere, timing_error_ns=lost.timing_error_ns)]
    )


@pytest.mark.parametrize(("node", "expected"), [(1, {"garbage collection"}), (2, set()), (None, set())])
def test_pause_of_one_node_blocks_only_its_own_address(node: int | None, expected: set[str]) -> None:
    held, free = load([(5, 7)]), load([])
    both = np.concatenate([held[held["user"] < 2], free[free["user"] >= 2]])
    both["address"] = both["user"] // 2
    assert attributed(both, [cause("garbage collection", (5, 7), blocks_responses=True, node=node)]) == expected


def test_cause_with_equally_long_harmless_spans_is_ruled_out() -> None:
    (stall,) = find(load([(5, 6)]), {"quota": [(5, 6), (9, 10), (14, 15.2)]})
    assert names(stall) == set()
    assert [(item.cause, item.reason) for item in stall.ruled_out] == [("quota", "2 as long delayed no request")]


def test_threads_have_separate_causes() -> None:
    intervals = (
        Interval("flushed", ZERO + 5 * SECOND, ZERO + 8 * SECOND, "write#1"),
        Interval("flushed", ZERO + 11 * SECOND, ZERO + 12 * SECOND, "write#2"),
    )
    (stall,) = find(load([(5, 8)], only_user=1), [CauseIntervals("flushed", intervals, node=2)])
    assert [(item.cause, item.thread, item.node) for item in stall.causes] == [("flushed", "write#1", 2)]
    assert "while: flushed in write#1 of node 2 (3.0" in attribution.describe_stall(stall, ZERO, USERS)


@pytest.mark.parametrize(("at_s", "expected"), [(5.005, {"fault reset"}), (5.5, set()), (4.5, set())])
def test_instant_fault_explains_a_stall_that_begins_with_it(at_s: float, expected: set[str]) -> None:
    at_ns = ZERO + round(at_s * SECOND)
    faults = [FaultRecord(kind="reset", start_ns=at_ns, end_ns=at_ns + 2_000_000)]
    assert attributed(load([(5, 7)]), suspects.fault_causes(faults, ZERO + 20 * SECOND)) == expected


def test_fault_without_end_lasts_to_the_end_of_the_measurement() -> None:
    (item,) = suspects.fault_causes([FaultRecord(kind="pause", start_ns=5)], 9)
    assert [(interval.start_ns, interval.end_ns) for interval in item.intervals] == [(5, 9)]


def test_stalls_of_the_only_load_process_block_responses() -> None:
    stalled = np.array([(made.START + 2 * SECOND, made.START + 5 * SECOND // 2)], dtype=EVENT_LOOP_STALL)
    assert suspects.generator_causes([], made.report()) == []
    assert suspects.generator_causes([stalled[:0]], made.report())[0].intervals == ()
    (item,) = suspects.generator_causes([stalled], made.report())
    assert [(span.start_ns - ZERO, span.end_ns - ZERO) for span in item.intervals] == [(2 * SECOND, 2.5 * SECOND)]
    assert item.blocks_responses
    assert not suspects.generator_causes([stalled, stalled[:0]], made.report())[0].blocks_responses


def test_request_is_split_by_the_reads_of_its_connection() -> None:
    row = made.sample(3, 6, sent_ns=made.START + 3_200_000_000, written_ns=made.START + 3_300_000_000)
    row["first_byte_ns"] = made.START + 5_500_000_000
    read_s = {40000: (3.1, 3.5, 4.0, 5.6), 40001: (3.3, 5.4)}
    reads = np.array(
        [(ZERO + round(at * SECOND), 100, port) for port, times in read_s.items() for at in times]
        + [(ZERO + 4_500_000_000, 0, 40000)],
        dtype=list(READ_FIELDS),
    )
    by_port = phases.reads_by_port(reads, made.OFFSET)
    times_s = {name: time[0] / SECOND for name, time in phases.phase_times_ns(made.samples([row]), by_port).items()}
    assert times_s == pytest.approx(
        {"client": 0.2, "sending": 0.1, "wire": 0.3, "reading": 0.5, "processing": 1.5, "receiving": 0.5}
    )
    unknown = {name: time[0] for name, time in phases.phase_times_ns(made.samples([row]), {}).items()}
    assert (unknown["wire"], unknown["reading"], unknown["processing"]) == (-1, -1, -1)
    for changed in ({"attempts": 2}, {"bytes_sent": 0}):
        times_ns = phases.phase_times_ns(made.samples([row | changed]), by_port)
        assert {time[0] for time in times_ns.values()} == {-1}
    unsplit = phases.longest_phases(made.samples([row]), {})
    assert unsplit == (("client", SECOND // 5), (phases.UNSPLIT, 23 * SECOND // 10), ("receiving", SECOND // 2))


def test_phase_columns_are_of_the_slowest_hundredth() -> None:
    rows = [made.sample(n / 100, n / 100 + 0.005, local_port=40000) for n in range(1000)]
    for row in rows[::100]:
        row["done_ns"] += 2 * SECOND
        row["first_byte_ns"] = row["sent_ns"] + SECOND
    reads = np.array([(row["sent_ns"] + made.OFFSET + 1_000_000, 9, 40000) for row in rows], dtype=list(READ_FIELDS))
    report = made.report(warm_up_end_ns=made.START, measure_end_ns=made.START + 20 * SECOND)
    values = phases.phase_columns(made.samples(rows), report, reads)
    assert values["slowest_wire_ms"] == pytest.approx(1)
    assert values["slowest_receiving_ms"] == pytest.approx(1005)
    without_reads = phases.phase_columns(made.samples(rows), report, None)
    assert (without_reads["slowest_processing_ms"], without_reads["slowest_sending_ms"]) == (None, 0)


def tcp_snapshot(n: int, **counters: int) -> TcpSnapshot:
    return TcpSnapshot(at_ns=n * SECOND // 4, connections=(made.tcp_connection(**{"rtt_us": 300, **counters}),))


def wire_records(
    to_server: Sequence[TcpSnapshot] | None, to_client: Sequence[TcpSnapshot]
) -> dict[str, WireRecord | None]:
    return {
        direction: None if snapshots is None else made.wire_record(*snapshots)
        for direction, snapshots in (("to-server", to_server), ("to-client", to_client))
    }


def test_tcp_timeout_lasts_from_before_its_detection_until_it_is_gone() -> None:
    timeouts = [tcp_snapshot(n, timeouts=count) for n, count in enumerate([0, 1, 2, 0], 8)]
    records = wire_records([tcp_snapshot(n) for n in range(8, 12)], timeouts)
    (item,) = readings.find_losses(records, [40000])
    assert item.intervals == (Interval(readings.LOST, 9 * SECOND // 5, 11 * SECOND // 4, port=40000),)
    (other,) = readings.find_losses(records, [40001])
    assert other.intervals == ()
    assert readings.find_losses(wire_records(None, timeouts), [40000]) == ()
    assert readings.find_losses(wire_records([], []), [40000]) == ()


def test_retransmission_without_timeout_was_lost_since_the_previous_sample() -> None:
    # Retransmissions before the first sample do not count.
    to_server, to_client = (
        [tcp_snapshot(n, rtt_us=80_000, retransmits=count) for n, count in enumerate(counts, 8)]
        for counts in ((7, 7, 7), (3, 3, 5))
    )
    (item,) = readings.find_losses(wire_records(to_server, to_client), [40000])
    assert item.intervals == (Interval(readings.LOST, 9 * SECOND // 4, 5 * SECOND // 2, port=40000),)


def test_stalls_of_a_run_are_in_columns_notes_and_table() -> None:
    outputs: list[ProbeOutput] = [*made.measured(), cause("garbage collection", (3, 4))]
    rows = [made.sample(n / 10, n / 10 + 0.01) for n in range(70) if not 30 <= n < 40] + [made.sample(3, 4)]
    record = made.record(documents_counted=6100)
    row = summary.summarise(made.inputs(record=record, samples=made.samples(rows), outputs=outputs))
    assert (row.values["stalls"], row.values["stall_cause_top"]) == (1, "garbage collection")
    assert row.values["stalled_s"] == pytest.approx(1, abs=0.02)
    assert row.values["stalled_unexplained_s"] == pytest.approx(0, abs=0.02)
    assert any(note.startswith(f"{row.run}: stall: 1.00-2.0") for note in cell_tables.list_notes([row]))
    table = stall_table.stall_rows([row])
    assert (len(table), table[1][:2]) == (2, [row.run, "1.000"])
    assert str(table[1][6]).startswith("garbage collection 1.0")


EXTERNAL = TargetOptions(url=Url(scheme="http", host="127.0.0.1", port=9200))


@pytest.mark.parametrize(
    ("cell", "explained", "expected"),
    [
        (made.cell(probes=("reads", "gc")), False, 'probes = ["reads", "gc", "stalls"] in the experiment'),
        (made.cell(probes=("reads", "gc")), True, ""),
        (made.cell(probes=("gc", "stalls")), False, ""),
        (made.cell(probes=("gc",), target=EXTERNAL), False, ""),
    ],
)
def test_note_on_an_unexplained_stall_names_the_missing_probe(cell: Cell, explained: bool, expected: str) -> None:
    samples = load([(5, 8)])
    stalls = find(samples, {"quota": [(5, 8)]} if explained else {})
    *_, last = attribution.note_stalls(stalls, made.report(), samples, cell)
    assert last.text.startswith("the server's threads were not watched") == bool(expected)
    assert expected in last.text


@pytest.mark.parametrize(("before_sending", "ports", "lasted_ns", "held"), [
    (False, (1,), 200, True), (False, (1,), 150, True), (False, (1,), 149, False), (False, (0,), 149, True),
    (True, (1,), 149, True),
])  # fmt: skip
def test_cause_of_less_than_a_seventh_of_a_request_delayed_it_not(
    before_sending: bool, ports: tuple[int, ...], lasted_ns: int, held: bool
) -> None:
    interval = Interval("cause", made.START, made.START + lasted_ns)
    (cause,) = suspects.build_suspects([CauseIntervals("cause", (interval,), delays_sending=before_sending)], 0)
    slow = made.samples([made.sample(0, 0) | {"sent_ns": made.START, "done_ns": made.START + 1000}])
    assert suspects.delayed_no_request(cause, slow, np.array(ports)) is not held
