from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.inputs.load_values import parse_arrivals, parse_rate
from ingest_bench.load.arrivals import parse_recorded, schedule, take_share
from ingest_bench.model.load import Arrivals, LoadOptions, Rate

MS = 10**6
S = 10**9


def first(count: int, text: str, *, seed: int = 1, sizes: Iterator[float] | None = None) -> list[int]:
    return list(itertools.islice(schedule(parse_arrivals(text), sizes=sizes, seed=seed), count))


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("2000/s", Rate(2000.0)),
        ("0.5/s", Rate(0.5)),
        ("90/min", Rate(1.5)),
        ("10_000docs/s", Rate(10_000.0, "documents")),
        ("50MB/s", Rate(50e6, "bytes")),
        ("64KiB/s", Rate(65536.0, "bytes")),
        ("1 mb/s", Rate(1048576.0, "bytes")),
    ],
)
def test_a_rate_is_read_from_its_text(text: str, rate: Rate) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["2000", "2k/s", "2000/year", "fast", "-5/s", "5parsecs/s", ""])
def test_a_wrong_rate_names_the_format(text: str) -> None:
    with pytest.raises(ValueError, match="2000/s"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "arrivals"),
    [
        ("closed", Arrivals()),
        ("2000/s", Arrivals(shape="constant", rate=Rate(2000.0))),
        ("poisson 2000/s", Arrivals(shape="poisson", rate=Rate(2000.0))),
        ("ramp 1/s..9/s 30s", Arrivals(shape="ramp", rate=Rate(1.0), end_rate=Rate(9.0), period_ns=30 * S)),
        ("steps 1/s 2/s 10s", Arrivals(shape="steps", rates=(Rate(1.0), Rate(2.0)), period_ns=10 * S)),
        ("sine 9/s 50% 1min", Arrivals(shape="sine", rate=Rate(9.0), amplitude_ppm=500_000, period_ns=60 * S)),
        ("burst 64 10s", Arrivals(shape="burst", requests=64, period_ns=10 * S)),
        ("recorded a b.txt", Arrivals(shape="recorded", file="a b.txt")),
    ],
)
def test_arrivals_are_read_from_their_text_and_survive_json(text: str, arrivals: Arrivals) -> None:
    options = records.from_toml(LoadOptions, {"arrivals": text}, "x.toml: load")
    assert options.arrivals == arrivals
    assert records.from_json(LoadOptions, records.to_json(options)) == options


def test_arrivals_are_read_from_a_table_too() -> None:
    table = {"shape": "ramp", "rate": "100/s", "end_rate": "2000/s", "period": "30s"}
    options = records.from_toml(LoadOptions, {"arrivals": table}, "x.toml: load")
    assert options.arrivals == parse_arrivals("ramp 100/s..2000/s 30s")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("sometimes", "not an arrival shape"),
        ("poisson", "poisson 2000/s"),
        ("poisson 1/s 2/s", "poisson 2000/s"),
        ("ramp 1/s 2/s", "ramp 100/s..2000/s 30s"),
        ("ramp 1/s..5MB/s 3s", "one unit"),
        ("steps 10s", '"steps" arrivals need "rates"'),
        ("sine 5/s 100% 10s", "would stop a sine"),
        ("0/s", "above 0"),
        ("recorded", '"recorded" arrivals need "file"'),
        ("burst 10s", "burst 64 10s"),
        ("burst 64/s 10s", "'64/s' is not a number of requests"),
        ("burst ٣ 10s", "'٣' is not a number of requests"),
        ("burst 0 10s", 'need "requests"'),
        ("burst 64 0s", 'need "period"'),
        ("burst 28233 10s", "requests"),
        ("burst 64 1us", "more than one machine can send"),
        ("closed 5/s", "write it like 'closed'"),
        ("5000", "is not a rate"),
        ({"shape": "poisson"}, '"poisson" arrivals need "rate"'),
        ({"shape": "poisson", "rate": "5/s", "end_rate": "6/s"}, 'have no "end_rate"'),
        ({"rate": "5/s"}, '"closed" arrivals have no "rate"'),
        ({"shape": "poison", "rate": "5/s"}, "did you mean"),
    ],
)
def test_wrong_arrivals_name_the_key_and_the_remedy(value: object, message: str) -> None:
    with pytest.raises(SpecError, match=r"^x\.toml: load: arrivals") as raised:
        records.from_toml(LoadOptions, {"arrivals": value}, "x.toml: load")
    assert message in str(raised.value)


def test_a_constant_rate_has_equal_gaps_and_never_drifts() -> None:
    assert first(4, "4/s") == [0, 250 * MS, 500 * MS, 750 * MS]
    assert next(itertools.islice(schedule(parse_arrivals("3/s")), 300_000, None)) == 100_000 * S


def test_rates_of_documents_and_bytes_count_the_request_sizes() -> None:
    assert first(3, "1000docs/s", sizes=itertools.repeat(500.0)) == [0, 500 * MS, 1000 * MS]
    assert first(4, "10MB/s", sizes=iter([1e6, 2e6, 5e5])) == [0, 100 * MS, 300 * MS, 350 * MS]


def test_poisson_has_its_mean_and_spread_and_is_reproducible() -> None:
    times = first(20_000, "poisson 1000/s", seed=5)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(MS, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(MS, rel=0.05)
    assert times == first(20_000, "poisson 1000/s", seed=5) != first(20_000, "poisson 1000/s", seed=6)


def test_a_ramp_down_to_nothing_ends() -> None:
    assert len(list(schedule(parse_arrivals("ramp 100/s..0/s 2s")))) == 101


@pytest.mark.parametrize(
    ("text", "rate", "until_s"),
    [
        ("ramp 0/s..50/s 10s", lambda at_s: min(5 * at_s, 50), 14),
        ("ramp 50/s..5/s 10s", lambda at_s: max(50 - 4.5 * at_s, 5), 30),
        ("ramp 300/s..300/s 2s", lambda _at_s: 300, 3),
        ("steps 2/s 70/s 9/s 3s", lambda at_s: (2, 70, 9)[min(int(at_s / 3), 2)], 20),
        ("sine 500/s 99% 100ms", lambda at_s: 500 * (1 + 0.99 * math.sin(20 * math.pi * at_s)), 0.5),
        ("sine 50/s 30% 4s", lambda at_s: 50 * (1 + 0.3 * math.sin(math.pi / 2 * at_s)), 9),
        ("sine 5/s 99% 60s", lambda at_s: 5 * (1 + 0.99 * math.sin(math.pi / 30 * at_s)), 130),
    ],
)
def test_a_request_is_due_when_the_integral_reaches_its_number(
    text: str, rate: Callable[[float], float], until_s: float
) -> None:
    grid = np.linspace(0, until_s, 20_001)
    middle = np.array([rate(float(at_s)) for at_s in (grid[1:] + grid[:-1]) / 2])
    due = np.concatenate(([0], np.cumsum(middle))) * grid[1]
    times = np.array(first(int(due[-1]), text)) / S
    assert len(times) > 100
    assert np.interp(times, grid, due) == pytest.approx(np.arange(len(times)), abs=0.02)


@pytest.mark.parametrize("text", ["100/s", "poisson 100/s"])
def test_the_shares_of_all_workers_are_the_schedule_without_a_duplicate(text: str) -> None:
    shares = [list(itertools.islice(take_share(schedule(parse_arrivals(text)), worker, 3), 100)) for worker in range(3)]
    assert sorted(itertools.chain(*shares)) == first(300, text)


def test_a_burst_is_due_at_one_moment_and_the_next_one_a_period_later() -> None:
    assert first(7, "burst 3 2s") == [0, 0, 0, 2 * S, 2 * S, 2 * S, 4 * S]


@pytest.mark.parametrize(("requests", "workers"), [(5, 2), (7, 3), (4, 4), (3, 1)])
def test_no_worker_gets_more_of_any_burst_than_it_has_users(requests: int, workers: int) -> None:
    arrivals = parse_arrivals(f"burst {requests} 1s")
    for worker in range(workers):
        users = len(range(worker, requests, workers))
        share = take_share(schedule(arrivals), worker, workers, burst=requests)
        assert list(itertools.islice(share, 3 * users)) == [0] * users + [S] * users + [2 * S] * users


def test_recorded_times_start_with_the_first_line() -> None:
    times = parse_recorded("# from production\n1700000000.25\n1700000000.75\n\n1700000002\n", "t.txt")
    assert times == (0, 500 * MS, 1750 * MS)
    assert tuple(schedule(parse_arrivals("recorded t.txt"), recorded_ns=times)) == times


@pytest.mark.parametrize(
    ("text", "message"), [("1\nx\n", "t.txt:2"), ("2\n1\n", "t.txt:2"), ("\n", "no timestamp"), ("nan\n", "t.txt:1")]
)
def test_a_wrong_recording_names_its_line(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_recorded(text, "t.txt")
