from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest_bench.analysis import receive_buffers
from ingest_bench.analysis.receive_buffers import KIB, Buffers, Bytes, Cost, Limits, Predictor, Recording, fixed
from ingest_bench.experiment import catalog
from ingest_bench.model.results import READ_FIELDS
from ingest_bench.model.target import TargetOptions
from ingest_bench.report import buffer_tables, published

# Reads of the sink (Netty 4.1.94) over the profile "ethernet": 118 MB in bulks of 1.2 MB on four connections.
RECORDED = Path(__file__).parent / "data" / "adaptive-reads.npz"


def reads(*sizes: int, port: int = 40000) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    records = np.zeros(len(sizes), dtype=np.dtype(list(READ_FIELDS)))
    records["bytes"], records["end_ns"], records["port"] = sizes, np.arange(len(sizes)), port
    return records


def predict_costs(*arguments: Any, **options: Any) -> Sequence[Cost]:
    return receive_buffers.analyse_reads(*arguments, **options).costs


def drained(*sizes: int) -> list[Bytes]:
    return [np.array(sizes, dtype=np.int64)]


@pytest.mark.parametrize(
    ("buffers", "real_bytes", "real_buffers"),
    [
        # The sink's own counters without the connection that read them: a buffer of 4096, or one of 64 and of 128.
        (Buffers(4096, 4096, 524288), 370_585_600 - 4096, 3_099 - 1),
        (Buffers(64, 64, 65536), 133_135_552 - 64 - 128, 2_384 - 2),
    ],
)
def test_adaptive_allocator_is_replayed_to_the_byte(buffers: Buffers, real_bytes: int, real_buffers: int) -> None:
    recorded = np.load(RECORDED)[f"{buffers.minimum_bytes}..{buffers.maximum_bytes}"]
    (cost,) = predict_costs(recorded, buffers, candidates=[buffers])
    assert (cost.allocated_bytes, cost.allocations) == (real_bytes, real_buffers)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([4096, 4096, 100, 50, 4096, 7], [8292, 50, 4103]),
        # The recording ends with a filled buffer.
        ([10, 4096, 4096], [10, 8192]),
        ([], []),
    ],
)
def test_reads_up_to_a_short_one_are_the_available_bytes(sizes: list[int], expected: list[int]) -> None:
    assert receive_buffers.available_bytes(np.array(sizes, dtype=np.int64), fixed(4096)).tolist() == expected


def test_recorded_size_is_predicted_exactly() -> None:
    random = np.random.default_rng(3)
    sizes = np.minimum(random.lognormal(10, 1.5, 5000).astype(int) + 1, 64 * KIB)
    (cost,) = predict_costs(reads(*sizes), candidates=[fixed(64 * KIB)])
    assert cost.allocations == 5000
    assert cost.allocated_bytes == 5000 * 64 * KIB
    assert cost.ingested_bytes == int(sizes.sum())
    assert cost.wasted_bytes == 5000 * 64 * KIB - int(sizes.sum())


def test_prediction_is_independent_of_the_recorded_buffer() -> None:
    random = np.random.default_rng(4)
    arrivals = random.integers(1, 3_000_000, 400).tolist()

    def recorded(size: int) -> list[int]:
        return [min(size, left) for arrival in arrivals for left in range(arrival, 0, -size)]

    expected = receive_buffers.compute_cost(drained(*arrivals), fixed(16 * KIB))
    for size in (64 * KIB, 512 * KIB):
        result = predict_costs(reads(*recorded(size)), fixed(size), candidates=[fixed(16 * KIB)])[0]
        # Data that fills its last buffer exactly is merged with the next: rare among 400.
        assert result.allocations == pytest.approx(expected.allocations, rel=0.001)


def test_reads_are_ordered_by_time_and_separated_by_connection() -> None:
    both = np.concatenate([reads(4096, 10), reads(4096, 20, port=40001)])
    both["end_ns"] = [0, 2, 1, 3]
    (cost,) = predict_costs(both, candidates=[fixed(8192)])
    assert cost.allocations == 2
    shuffled = reads(4096, 4096, 10, 700)[[2, 0, 3, 1]]
    (cost,) = predict_costs(shuffled, candidates=[fixed(1 << 20)])
    assert cost.allocations == 2


@pytest.mark.parametrize("sizes", [(100, -1), (4096, -1), (4096, 0, 4096, 100), (4096, 4096, 0)])
def test_read_without_data_costs_its_own_buffer(sizes: tuple[int, ...]) -> None:
    (cost,) = predict_costs(reads(*sizes), fixed(4096), candidates=[fixed(4096)])
    assert (cost.allocations, cost.ingested_bytes) == (len(sizes), sum(size for size in sizes if size > 0))


def test_successive_connections_of_a_port_have_their_own_predictor() -> None:
    buffers, real = Buffers(64, 2048, 65536), list[int]()
    recorded: list[int] = []
    for sizes in (
        [2048, 32768, 65536, 65536, 65536, 30720, *[65536] * 12, -1],
        [2048, 3952, 6000, 6000, 6000, 6000, -1],
    ):
        predictor = Predictor(buffers)
        for size in sizes:
            real.append(predictor.next_bytes)
            predictor.read(size)
        recorded += sizes
    (cost,) = predict_costs(reads(*recorded), buffers, candidates=[buffers])
    assert (cost.allocations, cost.allocated_bytes) == (len(real), sum(real))


def test_equal_requests_are_not_taken_for_filled_buffers() -> None:
    (cost,) = predict_costs(reads(61_078, 61_078, 61_078), candidates=[fixed(1 << 20)])
    assert cost.allocations == 3
    assert not cost.is_extrapolated


def test_size_above_a_filled_buffer_is_extrapolated() -> None:
    small, large = predict_costs(reads(65536, 9), candidates=[fixed(4096), fixed(1 << 20)])
    assert (small.is_extrapolated, large.is_extrapolated) == (False, True)


def test_old_adaptive_allocator_needs_a_read_two_steps_smaller() -> None:
    new, old = (Predictor(Buffers(64, 65536, 65536, is_old=is_old)) for is_old in (False, True))
    for _ in range(2):
        new.read(30_000)
        old.read(30_000)
    assert (new.next_bytes, old.next_bytes) == (32768, 65536)


LARGE = [1 << 20] * 50 + [1]


@pytest.mark.parametrize(
    ("sizes", "limits", "best", "reason"),
    [
        # 33,000 in buffers of 8 KiB: five, 1.24; of 16 KiB: three, 1.49.
        ([33_000] * 100, Limits(), "8KiB", "allocates 1.24 bytes for each byte ingested, in 151,515 reads a GB; 16KiB"),
        (LARGE, Limits(tlab_bytes=300_000), "256KiB", "512KiB allocates 1.01 bytes for each byte ingested and is"),
        # With regions of 1 MiB, 512 KiB and the header are above half.
        (LARGE, Limits(region_bytes=1 << 20), "256KiB", "bytes for each byte ingested and is a humongous object"),
        (LARGE, Limits(region_bytes=4 << 20), "1MiB", ""),
        ([100] * 50, Limits(), "4KiB", "no size stays within 1.25"),
    ],
)
def test_largest_economical_buffer_that_fits_is_recommended(
    sizes: list[int], limits: Limits, best: str, reason: str
) -> None:
    result = receive_buffers.recommend(predict_costs(reads(*sizes), limits=limits))
    assert result is not None
    assert str(result.best.buffers) == best
    assert reason in result.reason


def test_without_reads_nothing_is_recommended() -> None:
    assert receive_buffers.recommend(predict_costs(reads())) is None


def test_configured_buffers_are_those_of_the_target() -> None:
    assert receive_buffers.configured_buffers(TargetOptions()) is None
    assert receive_buffers.configured_buffers(TargetOptions(receive_predictor_bytes=(65536,))) == fixed(65536)
    old = TargetOptions(name="elasticsearch", version="5.6.16", receive_predictor_bytes=(65536, 524288))
    assert receive_buffers.configured_buffers(old) == Buffers(65536, 65536, 524288, is_old=True, grows_within=False)
    new = TargetOptions(name="sink", receive_predictor_bytes=(65536, 524288))
    assert receive_buffers.configured_buffers(new) == Buffers(65536, 65536, 524288)


def test_costs_of_several_runs_add_up() -> None:
    first_costs, second_costs = (
        predict_costs(reads(*sizes), limits=Limits(tlab_bytes=1e5)) for sizes in ([65536, 9], [65536, 65536, 7])
    )
    added = receive_buffers.sum_costs([first_costs, second_costs])
    assert [item.buffers for item in added] == list(receive_buffers.CANDIDATES)
    for total, first, second in zip(added, first_costs, second_costs, strict=True):
        assert total.allocations == first.allocations + second.allocations
        assert total.over_tlab_bytes == (first.over_tlab_bytes or 0) + (second.over_tlab_bytes or 0)
    unknown = receive_buffers.sum_costs([first_costs, predict_costs(reads(65536, 9))])
    assert {item.over_tlab_bytes for item in unknown} == {None}


def test_table_marks_extrapolated_sizes_and_omits_unknown_columns() -> None:
    head, *rows = buffer_tables.cost_rows(predict_costs(reads(65536, 9)))
    assert head == ["receive buffer", "buffers/GB", "allocated/GB", "wasted/GB"]
    assert [row[0] for row in rows][3:6] == ["32KiB", "64KiB", "128KiB (extrapolated)"]
    limits = Limits(tlab_bytes=1e5, region_bytes=1 << 20)
    assert {"over a TLAB/GB", "humongous/GB"} <= {*buffer_tables.cost_rows(predict_costs(reads(9), limits=limits))[0]}


def cost(size_bytes: int, share: float) -> Cost:
    fields: dict[str, Any] = {"buffers": fixed(size_bytes), "ingested_bytes": 1000}
    names = {field.name: 0 for field in Cost.__dataclass_fields__.values()}
    return Cost(**(names | fields | {"allocated_bytes": round(share * 1000)}))


def recorded(name: str, share: float, available: list[int], *, filled: int = 0, length_s: float = 1.0) -> Recording:
    return Recording(
        run=name,
        costs=[cost(1024, share), cost(4096, 9 * share)],
        available_bytes=np.array(available),
        largest_bytes=1024,
        filled=filled,
        reads=100,
        length_s=length_s,
    )


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (recorded("b", receive_buffers.ALIKE, [10, 30]), ""),
        (recorded("b", 2.5, [20, 20]), "but with different spread (0.5 and 0.0 times the mean)"),
        (recorded("b", 2.5, [20, 20], length_s=4), "the server read 0.0 and 0.0 MB/s"),
        (recorded("b", 2.5, [20, 22]), "the requests that arrived together differed; record more runs"),
        (
            recorded("b", 2.5, [20, 20], filled=100),
            "100% of the reads of b filled their 1KiB, which hid the bytes behind",
        ),
    ],
)
def test_recordings_that_differ_by_more_than_a_tenth_disagree_with_a_reason(other: Recording, expected: str) -> None:
    text = receive_buffers.find_disagreement([recorded("a", 1.0, [10, 30]), other])
    disagreement = "a and b disagree: 1KiB allocate 1.00 bytes for each byte ingested by the first, 2.50 by the second"
    assert text.startswith(disagreement if expected else "")
    assert bool(text) == bool(expected)
    assert text.endswith(expected)


def test_published_corpora_match_the_workloads() -> None:
    for name, size_bytes in published.CORPUS_BYTES.items():
        assert catalog.load_workload(name).published_bytes == size_bytes
