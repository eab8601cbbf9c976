"""Stalls: found in samples, explained by what was watched, never by a guess."""

from __future__ import annotations

import json
import random
from pathlib import Path

import made_runs as made
import numpy as np
import pytest

from ingest_bench import network
from ingest_bench.analysis.run import summary
from ingest_bench.analysis.run.samples import Samples, Window
from ingest_bench.analysis.stalls import attribution, sources
from ingest_bench.model.results import Happened, Interval, Measured, Stall, Watched
from ingest_bench.report.tables import stall_table

SECOND = made.SECOND
ZERO = made.START + made.OFFSET
USERS = 4
CAUSES = ("garbage collection", "server process stopped", "packets lost on the network", "quota")
SERVICE_S = 0.02


def load(stalled: list[tuple[float, float]], length_s: float, only_user: int | None = None) -> Samples:
    """A closed loop of 4 users with answers after 20 ms, but for what is under way in one of these spans: it waits."""
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
    planned_s, done_s, user_of = np.array(sorted(rows, key=lambda row: row[1])).T
    found = made.samples([made.sample(0, 0)]).repeat(len(rows))
    found["planned_ns"] = found["sent_ns"] = made.START + (planned_s * SECOND).astype(np.int64)
    found["done_ns"] = found["first_byte_ns"] = made.START + (done_s * SECOND).astype(np.int64)
    found["user"] = user_of.astype(np.int32)
    return found


def watched(spans: dict[str, list[tuple[float, float]]]) -> list[Watched]:
    return [
        Watched(cause, tuple(Interval(cause, ZERO + round(a * SECOND), ZERO + round(b * SECOND)) for a, b in each))
        for cause, each in spans.items()
    ]


def found(samples: Samples, spans: dict[str, list[tuple[float, float]]], length_s: float = 20) -> tuple[Stall, ...]:
    window = Window(made.START, made.START + round(length_s * SECOND))
    return attribution.find(samples, window, SERVICE_S * 1000, watched(spans), made.OFFSET)


def test_a_stall_has_its_span_its_requests_and_its_cause() -> None:
    one, other = found(
        np.concatenate([load([(5, 8.4)], 20, only_user=2), load([(12, 13)], 20)]),
        {"garbage collection": [(1, 1.01), (12.02, 13)], "quota": [(4, 8.5)]},
    )
    assert (one.start_ns - ZERO) / SECOND == pytest.approx(5, abs=0.03)
    assert (one.end_ns - ZERO) / SECOND == pytest.approx(8.4, abs=0.03)
    assert (one.requests, one.at_once) == (1, 1)
    assert one.longest_ns / SECOND == pytest.approx(3.4, abs=0.04)
    assert [cause for cause, _ in one.causes] == ["quota"]
    assert [cause for cause, _ in one.ruled_out] == ["garbage collection"]
    assert (other.requests, other.at_once, other.causes[0][0]) == (USERS, USERS, "garbage collection")
    assert attribution.sentence(one, ZERO, USERS).startswith("4.98-8.42 s: ")
    assert "1 of 4 users waited, the longest request 3.4" in attribution.sentence(one, ZERO, USERS)
    assert attribution.sentence(one, ZERO, USERS).endswith("ruled out: garbage collection (0.00 s)")


def test_what_nothing_covers_is_unexplained() -> None:
    (one,) = found(load([(5, 8)], 20), {"garbage collection": [(5.1, 5.2)], "quota": [(9, 10)]})
    assert (one.causes, one.unexplained_ns) == ((), one.end_ns - one.start_ns)
    assert "unexplained; ruled out: garbage collection (0.10 s), quota (0.00 s)" in attribution.sentence(
        one, ZERO, USERS
    )
    assert attribution.values([one])["stall_cause_top"] == "unexplained"
    assert attribution.values([one])["stalled_unexplained_s"] == attribution.values([one])["stalls_s"]


def test_what_is_always_there_explains_no_stall() -> None:
    """It covers all of the waiting, and as much of everything else."""
    always = [(second / 10, second / 10 + 0.08) for second in range(200)]
    (one,) = found(load([(5, 8)], 20), {"quota": always})
    assert (one.causes, one.ruled_out) == ((), ())


def test_a_rate_that_falls_is_a_stall_without_slow_requests() -> None:
    rows = [made.sample(n / 20, n / 20 + 0.02) for n in range(400) if not 160 <= n < 220 or n % 5 == 0]
    (one,) = found(made.samples(rows), {"quota": [(8, 11)]})
    assert ((one.start_ns - ZERO) / SECOND, (one.end_ns - ZERO) / SECOND) == (8, 11)
    assert (one.requests, [cause for cause, _ in one.causes]) == (0, ["quota"])
    assert not found(load([], 20), {"quota": [(8, 11)]})


def test_of_200_stalls_at_random_moments_none_is_named_wrong_and_19_of_20_are_named() -> None:
    """One or two causes that may overlap, each seen with an error of 100 ms, among spans that mean nothing."""
    rng = random.Random(14)  # noqa: S311 - made-up runs
    named = wrong = 0
    for _ in range(200):
        start_s = rng.uniform(2, 14)
        true = {rng.choice(CAUSES): (start_s, start_s + rng.uniform(0.4, 4))}
        if rng.random() < 0.4:
            begin_s = start_s + rng.uniform(0, 2)
            true.setdefault(rng.choice(CAUSES), (begin_s, begin_s + rng.uniform(0.4, 3)))
        spans: dict[str, list[tuple[float, float]]] = {cause: [] for cause in CAUSES}
        for cause, (begin, end) in true.items():
            spans[cause].append((begin + rng.uniform(-0.1, 0.1), end + rng.uniform(-0.1, 0.1)))
        spans["garbage collection"] += [(at, at + 0.02) for at in (rng.uniform(0, 20) for _ in range(30))]
        spans["a cause that was not there"] = [(at, at + 0.1) for at in (rng.uniform(0, 20) for _ in range(20))]
        told = {cause for one in found(load(list(true.values()), 20), spans) for cause, _ in one.causes}
        wrong += bool(told - true.keys())
        named += bool(told)
    assert wrong == 0
    assert named >= 190


def test_a_load_in_pieces_has_the_same_stalls() -> None:
    whole = load([(5, 7), (12, 12.5)], 20)

    class Pieces:
        def __len__(self) -> int:
            return len(whole)

        def pieces(self):  # type: ignore[no-untyped-def]
            for start in range(0, len(whole), 100):
                yield whole[start : start + 100], 0

    spans = {"quota": [(5.0, 7.0)]}
    assert found(Pieces(), spans) == found(whole, spans)  # type: ignore[arg-type]
    assert len(found(whole, spans)) == 2


def test_a_generator_that_stood_still_is_a_cause_and_one_that_did_not_is_ruled_out() -> None:
    marks = made.cpu(0.1, 0.1, 0.1)
    (none,) = sources.generator([marks], made.report())
    marks["at_ns"][2:] += SECOND // 2
    (late,) = sources.generator([marks], made.report())
    assert none.spans == ()
    assert [(span.start_ns - ZERO, span.end_ns - ZERO) for span in late.spans] == [(2 * SECOND, 2.5 * SECOND)]
    assert sources.generator([], made.report()) == []


def test_a_fault_that_lasts_to_the_end_covers_all_that_is_left() -> None:
    (one,) = sources.faults([Happened(kind="pause", started=5)], 9)
    assert [(span.start_ns, span.end_ns) for span in one.spans] == [(5, 9)]


def test_a_timeout_of_tcp_lasts_from_before_it_was_seen_until_it_is_gone(tmp_path: Path) -> None:
    def end(timeouts: list[int], port: int = 40000) -> dict[str, object]:
        rows = [
            {"at_ns": n * SECOND // 4, "connections": [{"local_port": port, "remote_port": 9200, "timeouts": count}]}
            for n, count in enumerate(timeouts, 8)
        ]
        return {"frames": {}, "looked_at": 0, "lost": 0, "seconds": 1.0, "tcp": rows}

    path = tmp_path / network.WIRE
    path.write_text(json.dumps({"to-server": end([0, 0, 0, 0]), "to-client": end([0, 1, 2, 0])}))
    (one,) = network.losses(tmp_path, [40000])
    assert [(span.cause, span.start_ns, span.end_ns) for span in one.spans] == [
        (network.LOST, 1.8 * SECOND, 2.75 * SECOND)
    ]
    (other,) = network.losses(tmp_path, [40001])
    assert other.spans == ()
    path.write_text(json.dumps({"to-server": None, "to-client": end([0, 1, 2, 0])}))
    assert network.losses(tmp_path, [40000]) == ()


def test_what_tcp_sent_again_without_a_timeout_was_lost_since_the_look_before(tmp_path: Path) -> None:
    def end(*retransmits: int) -> dict[str, object]:
        ports = {"local_port": 40000, "remote_port": 9200, "timeouts": 0}
        rows = [
            {"at_ns": n * SECOND // 4, "connections": [{**ports, "retransmits": count}]}
            for n, count in enumerate(retransmits, 8)
        ]
        return {"frames": {}, "looked_at": 0, "lost": 0, "seconds": 1.0, "tcp": rows}

    # What it had sent again before it was looked at first counts nowhere.
    (tmp_path / network.WIRE).write_text(json.dumps({"to-server": end(7, 7, 7), "to-client": end(3, 3, 5)}))
    (one,) = network.losses(tmp_path, [40000])
    assert [(span.thread, span.start_ns, span.end_ns) for span in one.spans] == [
        ("port 40000", 2.25 * SECOND, 2.5 * SECOND)
    ]


def test_a_run_has_its_stalls_in_columns_notes_and_table() -> None:
    spans = (Interval("garbage collection", ZERO + 3 * SECOND, ZERO + 4 * SECOND),)
    seen: list[Measured] = [*made.measured(), Watched("garbage collection", spans)]
    rows = [made.sample(n / 10, n / 10 + 0.01) for n in range(70) if not 30 <= n < 40] + [made.sample(3, 4)]
    row = summary.summarise(made.record(documents_counted=6100), made.cell(), made.samples(rows), made.report(), seen)
    assert (row.values["stalls"], row.values["stall_cause_top"]) == (1, "garbage collection")
    assert row.values["stalls_s"] == pytest.approx(1, abs=0.02)
    assert row.values["stalled_unexplained_s"] == pytest.approx(0, abs=0.02)
    assert [text for remark in row.remarks if (text := remark.text).startswith("stall: 1.00-2.0")]
    table = stall_table.rows([row])
    assert len(table) == 2
    assert table[1][:2] == [row.run, "1.000"]
    assert str(table[1][6]).startswith("garbage collection 1.0")
