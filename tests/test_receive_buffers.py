from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingest_bench.analysis.buffers import receive_buffers
from ingest_bench.analysis.buffers.netty import Adaptive, Fixed
from ingest_bench.analysis.buffers.receive_buffers import KIB, Bytes, Cost, Limits
from ingest_bench.model.results import READ_FIELDS
from ingest_bench.model.target import TargetOptions
from ingest_bench.report.tables import whatif_table

# Reads of the sink (Netty 4.1.94) over the profile "ethernet": 118 MB in bulks of 1.2 MB on four connections.
RECORDED = Path(__file__).parent / "data" / "adaptive-reads.npz"


def reads(*sizes: int, port: int = 40000) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    made = np.zeros(len(sizes), dtype=np.dtype(list(READ_FIELDS)))
    made["bytes"], made["end_ns"], made["port"] = sizes, np.arange(len(sizes)), port
    return made


def drained(*sizes: int) -> list[Bytes]:
    return [np.array(sizes, dtype=np.int64)]


@pytest.mark.parametrize(
    ("buffers", "real_bytes", "real_buffers"),
    [
        # The sink's own counters, less the connection that asked for them: a buffer of 4096, or one of 64 and of 128.
        (Adaptive(4096, 4096, 524288), 370_585_600 - 4096, 3_099 - 1),
        (Adaptive(64, 64, 65536), 133_135_552 - 64 - 128, 2_384 - 2),
    ],
)
def test_the_adaptive_allocator_is_replayed_to_the_byte(buffers: Adaptive, real_bytes: int, real_buffers: int) -> None:
    recorded = np.load(RECORDED)[f"{buffers.minimum_bytes}..{buffers.maximum_bytes}"]
    (cost,) = receive_buffers.what_if(recorded, buffers, candidates=[buffers])
    assert (cost.allocated_bytes, cost.allocations) == (real_bytes, real_buffers)


def test_no_recorded_read_is_larger_than_the_buffer_that_netty_is_said_to_have_had() -> None:
    buffers = Adaptive(64, 64, 65536)
    for sequence in receive_buffers.sequences(np.load(RECORDED)["64..65536"]):
        predictor = buffers.predictor()
        for read in sequence.tolist():
            assert read <= predictor.next_bytes
            predictor.read(read)


def test_reads_up_to_a_short_one_are_what_lay_in_the_socket() -> None:
    found = receive_buffers.available(np.array([4096, 4096, 100, 50, 4096, 7]), Fixed(4096))
    assert found.tolist() == [8292, 50, 4103]


def test_a_recording_that_ends_in_a_filled_buffer_loses_no_byte() -> None:
    assert receive_buffers.available(np.array([10, 4096, 4096]), Fixed(4096)).tolist() == [10, 8192]
    assert receive_buffers.available(np.array([], dtype=np.int64), Fixed(4096)).tolist() == []


def test_the_recorded_size_itself_is_predicted_exactly() -> None:
    random = np.random.default_rng(3)
    sizes = np.minimum(random.lognormal(10, 1.5, 5000).astype(int) + 1, 64 * KIB)
    (cost,) = receive_buffers.what_if(reads(*sizes), candidates=[Fixed(64 * KIB)])
    assert cost.allocations == 5000
    assert cost.allocated_bytes == 5000 * 64 * KIB
    assert cost.ingested_bytes == int(sizes.sum())
    assert cost.wasted_bytes == 5000 * 64 * KIB - int(sizes.sum())


def test_the_same_arrivals_cost_the_same_whichever_buffer_recorded_them() -> None:
    random = np.random.default_rng(4)
    arrivals = random.integers(1, 3_000_000, 400).tolist()

    def recorded(size: int) -> list[int]:
        return [min(size, left) for arrival in arrivals for left in range(arrival, 0, -size)]

    expected = receive_buffers.cost(drained(*arrivals), Fixed(16 * KIB))
    for size in (64 * KIB, 512 * KIB):
        found = receive_buffers.what_if(reads(*recorded(size)), Fixed(size), candidates=[Fixed(16 * KIB)])[0]
        # An arrival of exactly so many full buffers cannot be told from the next one: 400 arrivals, rarely one.
        assert found.allocations == pytest.approx(expected.allocations, rel=0.001)


def test_connections_are_counted_each_for_itself() -> None:
    both = np.concatenate([reads(4096, 10), reads(4096, 20, port=40001)])
    both["end_ns"] = [0, 2, 1, 3]
    (cost,) = receive_buffers.what_if(both, candidates=[Fixed(8192)])
    assert cost.allocations == 2


def test_reads_are_taken_in_the_order_of_their_time() -> None:
    shuffled = reads(4096, 4096, 10, 700)[[2, 0, 3, 1]]
    (cost,) = receive_buffers.what_if(shuffled, candidates=[Fixed(1 << 20)])
    assert cost.allocations == 2


def test_an_end_of_stream_takes_a_buffer_and_brings_nothing() -> None:
    (cost,) = receive_buffers.what_if(reads(100, -1), Fixed(4096), candidates=[Fixed(4096)])
    assert (cost.allocations, cost.ingested_bytes) == (2, 100)


def test_a_read_that_found_nothing_has_a_buffer_of_its_own_also_behind_one_that_was_filled() -> None:
    buffers = Fixed(4096)
    for sizes, allocations in (((4096, -1), 2), ((4096, 0, 4096, 100), 4), ((4096, 4096, 0), 3)):
        (cost,) = receive_buffers.what_if(reads(*sizes), buffers, candidates=[buffers])
        assert (cost.allocations, cost.ingested_bytes) == (len(sizes), sum(size for size in sizes if size > 0))
        assert allocations == len(sizes)


def test_a_port_that_serves_one_connection_after_another_has_a_predictor_for_each() -> None:
    buffers, real = Adaptive(64, 2048, 65536), list[int]()
    recorded: list[int] = []
    for sizes in (
        [2048, 32768, 65536, 65536, 65536, 30720, *[65536] * 12, -1],
        [2048, 3952, 6000, 6000, 6000, 6000, -1],
    ):
        predictor = buffers.predictor()
        for size in sizes:
            real.append(predictor.next_bytes)
            predictor.read(size)
        recorded += sizes
    (cost,) = receive_buffers.what_if(reads(*recorded), buffers, candidates=[buffers])
    assert (cost.allocations, cost.allocated_bytes) == (len(real), sum(real))


def test_requests_of_one_size_are_not_taken_for_filled_buffers() -> None:
    (cost,) = receive_buffers.what_if(reads(61_078, 61_078, 61_078), candidates=[Fixed(1 << 20)])
    assert cost.allocations == 3
    assert not cost.is_extrapolated


def test_a_size_above_a_filled_buffer_is_marked_as_extrapolated() -> None:
    small, large = receive_buffers.what_if(reads(65536, 9), candidates=[Fixed(4096), Fixed(1 << 20)])
    assert (small.is_extrapolated, large.is_extrapolated) == (False, True)


def test_buffers_over_a_tlab_are_counted_only_when_its_size_is_known() -> None:
    costs = receive_buffers.what_if(reads(65536, 9), candidates=[Fixed(65536)], limits=Limits(tlab_bytes=50_000))
    assert costs[0].over_tlab_bytes == 2 * 65536
    assert receive_buffers.what_if(reads(65536, 9), candidates=[Fixed(65536)])[0].over_tlab_bytes is None


def test_the_adaptive_allocator_shrinks_after_two_small_reads_and_grows_by_four_steps() -> None:
    predictor = Adaptive(64, 2048, 65536).predictor()
    sizes = []
    for read in (2048, 30_000, 100, 100, 100, 100):
        sizes.append(predictor.next_bytes)
        predictor.read(read)
    # 2048 is filled: four steps to 32768, and the same read counts as the first small one. 30,000 changes nothing.
    assert sizes == [2048, 32768, 32768, 16384, 16384, 8192]


def test_the_old_adaptive_allocator_needs_a_read_that_fits_two_steps_smaller() -> None:
    new, old = (Adaptive(64, 65536, 65536, is_old=is_old).predictor() for is_old in (False, True))
    for _ in range(2):
        new.read(30_000)
        old.read(30_000)
    assert (new.next_bytes, old.next_bytes) == (32768, 65536)


def test_fixed_is_adaptive_without_room() -> None:
    arrivals = drained(5, 70_000, 131_072, 0)
    fixed, adaptive = (receive_buffers.cost(arrivals, item) for item in (Fixed(65536), Adaptive(65536, 65536, 65536)))
    assert fixed.allocations == adaptive.allocations == 1 + 2 + 2 + 1


def recommended(costs: list[Cost]) -> tuple[str, str]:
    found = receive_buffers.recommend(costs)
    assert found is not None
    return str(found.best.buffers), found.reason


def test_the_largest_buffer_that_wastes_little_is_recommended() -> None:
    costs = receive_buffers.what_if(reads(*[33_000] * 100))
    best, reason = recommended(costs)
    # 33,000 in buffers of 8 KiB: five, 1.24; of 16 KiB: three, 1.49.
    assert best == "8KiB"
    assert reason == (
        "8KiB allocates 1.24 bytes for each byte ingested, in 151,515 reads a GB; "
        "16KiB allocates 1.49 bytes for each byte ingested"
    )


def test_a_buffer_larger_than_a_tlab_is_not_recommended() -> None:
    costs = receive_buffers.what_if(reads(*[1 << 20] * 50, 1), limits=Limits(tlab_bytes=300_000))
    best, reason = recommended(costs)
    assert best == "256KiB"
    assert "512KiB allocates 1.01 bytes for each byte ingested and is larger than a TLAB" in reason


def test_when_every_size_wastes_the_smallest_waste_is_recommended_and_said() -> None:
    best, reason = recommended(receive_buffers.what_if(reads(*[100] * 50)))
    assert best == "4KiB"
    assert "no size stays within 1.25" in reason


def test_without_reads_nothing_is_recommended() -> None:
    assert receive_buffers.recommend(receive_buffers.what_if(reads())) is None


def test_what_the_server_was_told_says_what_recorded_the_reads() -> None:
    assert receive_buffers.made_with(TargetOptions()) is None
    assert receive_buffers.made_with(TargetOptions(receive_predictor_bytes=(65536,))) == Fixed(65536)
    old = TargetOptions(name="elasticsearch", version="5.6.16", receive_predictor_bytes=(65536, 524288))
    assert receive_buffers.made_with(old) == Adaptive(65536, 65536, 524288, is_old=True, grows_within=False)
    new = TargetOptions(name="sink", receive_predictor_bytes=(65536, 524288))
    assert receive_buffers.made_with(new) == Adaptive(65536, 65536, 524288)


def test_costs_of_several_runs_add_up() -> None:
    one, other = (
        receive_buffers.what_if(reads(*sizes), limits=Limits(tlab_bytes=1e5))
        for sizes in ([65536, 9], [65536, 65536, 7])
    )
    added = receive_buffers.together([one, other])
    assert [item.buffers for item in added] == list(receive_buffers.CANDIDATES)
    for total, first, second in zip(added, one, other, strict=True):
        assert total.allocations == first.allocations + second.allocations
        assert total.over_tlab_bytes == (first.over_tlab_bytes or 0) + (second.over_tlab_bytes or 0)
    unknown = receive_buffers.together([one, receive_buffers.what_if(reads(65536, 9))])
    assert {item.over_tlab_bytes for item in unknown} == {None}


def test_the_table_marks_extrapolated_sizes_and_leaves_out_what_nobody_knows() -> None:
    head, *rows = whatif_table.table(receive_buffers.what_if(reads(65536, 9)))
    assert head == ["receive buffer", "buffers/GB", "allocated/GB", "wasted/GB"]
    assert [row[0] for row in rows][3:6] == ["32KiB", "64KiB", "128KiB (extrapolated)"]
    assert (
        "over a TLAB/GB"
        in whatif_table.table(receive_buffers.what_if(reads(65536, 9), limits=Limits(tlab_bytes=1e5)))[0]
    )


def test_half_a_region_is_humongous_and_not_recommended() -> None:
    # A recording with 1 MiB said that 1 MiB was best. With regions of 1 MiB, 512 KiB and its header are above half.
    costs = receive_buffers.what_if(reads(*[1 << 20] * 50, 1), limits=Limits(region_bytes=1 << 20))
    by_size = {str(cost.buffers): cost for cost in costs}
    assert by_size["256KiB"].humongous_bytes == 0
    assert by_size["512KiB"].humongous_bytes == by_size["512KiB"].allocated_bytes > 0
    best, reason = recommended(costs)
    assert best == "256KiB"
    assert "512KiB allocates 1.01 bytes for each byte ingested and is a humongous object" in reason
    large = receive_buffers.what_if(reads(*[1 << 20] * 50, 1), limits=Limits(region_bytes=4 << 20))
    assert recommended(large)[0] == "1MiB"
    assert "humongous/GB" in whatif_table.table(costs)[0]
