"""Delivery of acknowledged documents by number, from samples and the reports of nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ingest_bench.analysis.run import delivery
from ingest_bench.model.results import RunRecord
from ingest_bench.model.samples import SAMPLE

RECORD = RunRecord(run="only/1", replicate=1, cell="only", levels={}, state="measured")


def make_samples(*rows: tuple[int, int, int]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return samples from (user, documents, acknowledged documents)."""
    samples = np.zeros(len(rows), dtype=SAMPLE)
    samples["user"], samples["documents"], samples["documents_acked"] = zip(*rows, strict=True)
    return samples


def node(delivered: Sequence[int], again: Sequence[int] = (), inside: Sequence[int] = ()) -> bytes:
    """Return the report of a node."""
    report = b""
    for numbers in (delivered, again, inside):
        bits = np.zeros(max(numbers, default=-1) + 1, dtype=np.bool_)
        bits[list(numbers)] = True
        packed = np.packbits(bits, bitorder="little").tobytes()
        report += len(packed).to_bytes(8, "little") + packed
    return report


class Pieces:
    """Samples in several batches."""

    def __init__(self, *pieces: np.ndarray[Any, np.dtype[Any]]) -> None:
        self.parts = pieces

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def batches(self) -> Any:
        return iter(self.parts)


def test_acknowledged_document_is_delivered_pending_or_lost() -> None:
    # User 0 has 0, 2, 4 | 6, 8 (refused) | 10; user 1 has 1, 3 | 5. User -1: not taken by any user.
    sent = make_samples((0, 3, 3), (1, 2, 2), (0, 2, 0), (-1, 0, 0), (1, 1, 1), (0, 1, 1))
    back = delivery.parse_delivered([node([0, 1, 2], again=[1], inside=[4]), node([0, 6], inside=[3])])
    assert delivery.delivery_columns(back, sent, 2) == {
        "delivered_documents": 3,
        "pending_documents": 2,
        # 5, and 10, which no node reports.
        "lost_documents": 2,
        # 0 by two nodes, 1 twice by one node.
        "delivered_twice": 2,
        "delivered_unacknowledged": 1,
    }
    for cut in range(1, len(sent)):
        assert delivery.delivery_columns(back, Pieces(sent[:cut], sent[cut:]), 2) == delivery.delivery_columns(
            back, sent, 2
        )


@pytest.mark.parametrize(
    ("reports", "expected"), [([node([0]), node([], inside=[0, 1])], (1, 1, 0)), ([node([]), node([])], (0, 0, 2))]
)
def test_document_delivered_by_one_node_is_delivered(reports: list[bytes], expected: tuple[int, ...]) -> None:
    columns = delivery.delivery_columns(delivery.parse_delivered(reports), make_samples((0, 2, 2)), 1)
    assert tuple(columns[f"{name}_documents"] for name in ("delivered", "pending", "lost")) == expected


@pytest.mark.parametrize("report", [b"", b"\x01", node([3])[:-1], (9).to_bytes(8, "little") + b"\x00"])
def test_truncated_report_is_an_error(report: bytes) -> None:
    with pytest.raises(ValueError, match="truncated"):
        delivery.parse_delivered([report])


def test_sample_of_an_unknown_user_is_an_error() -> None:
    with pytest.raises(ValueError, match="user 3, but there are 2 users"):
        delivery.delivery_columns(delivery.parse_delivered([node([0])]), make_samples((3, 1, 1)), 2)


COUNTED: dict[str, Any] = {"accepted": 100, "delivered": 60, "dropped": 30, "inside": 10, "unsure": 0}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, ""),
        ({"delivered": 61}, "the server accepted 100 documents, 61 are delivered, 30 dropped and 10 pending, +1"),
        ({"inside": 0}, "60 are delivered, 30 dropped and 0 pending, -10"),
        ({"delivered": 80, "unsure": 20}, ""),
        ({"delivered": 81, "unsure": 20}, "+21 (batches without a response: at most 20 more)"),
        ({"inside": 9, "unsure": 20}, "-1"),
    ],
)
def test_account_of_the_nodes_must_balance(changed: dict[str, int], expected: str) -> None:
    text = delivery.describe_account_error(COUNTED | changed)
    assert bool(text) == bool(expected)
    assert expected in text


def test_server_without_counters_has_no_account() -> None:
    assert delivery.describe_account_error({"documents": 3}) == ""
    assert delivery.server_columns(RECORD, 1, 0, 10**10) == {}


def test_rates_and_times_are_of_full_seconds() -> None:
    counters: Any = {
        "forwarded": 7,
        "dropped": 0,
        "seconds": {str(second): {"accepted": 10 * second, "delivered": 4, "forwards": second} for second in range(9)},
        "latency_us": {"3": {"1000": 50, "1001": 40}, "4": {"2000": 9, "5000": 1}, "8": {"9": 1}},
    }
    record = dataclasses.replace(RECORD, counters=counters, server={"workers": 5, "batch_delay_ns": 10**8})
    columns = delivery.server_columns(record, 3, 2_900_000_000, 5_100_000_000)
    assert columns == {
        "forwards_cap_per_s": 50 * 3 * 2,
        "forwarded_documents": 7,
        "dropped_documents": 0,
        "accepted_per_s": 35,
        "delivered_per_s": 4,
        "forwards_per_s": 3.5,
        "delivery_samples": 100,
        "delivery_ms_p50": 1.0,
        "delivery_ms_p99": 2.0,
    }
    assert "accepted_per_s" not in delivery.server_columns(record, 3, None, None)
    # A partial second does not count.
    assert "accepted_per_s" not in delivery.server_columns(record, 3, 2_100_000_000, 2_900_000_000)


def test_no_forward_limit_without_a_batch_delay() -> None:
    assert delivery.max_forwards_per_s({"workers": 1, "batch_delay_ns": 0}, 2) is None
    assert delivery.max_forwards_per_s({}, 2) is None


def test_losses_and_repetitions_are_described() -> None:
    assert (
        list(delivery.describe_losses({"lost_documents": 0, "delivered_twice": 0, "delivered_unacknowledged": 0})) == []
    )
    expected = delivery.describe_losses(
        {
            "documents_acked": 4000,
            "lost_documents": 1500,
            "dropped_documents": 1500,
            "delivered_twice": 2,
            "delivered_unacknowledged": 3,
        }
    )
    assert list(expected) == [
        "1,500 of 4,000 acknowledged documents are lost, the server reports 1,500 as dropped",
        "delivered more than once: 2 documents",
        "delivered without an acknowledgement: 3 documents",
    ]
