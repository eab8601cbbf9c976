"""What became of each acknowledged document, by its number: from samples, and from what nodes say of themselves."""

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


def tickets(*rows: tuple[int, int, int]) -> np.ndarray[Any, np.dtype[Any]]:
    """Of each ticket its user, its documents and how many of them were acknowledged."""
    made = np.zeros(len(rows), dtype=SAMPLE)
    made["user"], made["documents"], made["documents_acked"] = zip(*rows, strict=True)
    return made


def node(delivered: Sequence[int], again: Sequence[int] = (), inside: Sequence[int] = ()) -> bytes:
    """As a node says it."""
    told = b""
    for numbers in (delivered, again, inside):
        bits = np.zeros(max(numbers, default=-1) + 1, dtype=np.bool_)
        bits[list(numbers)] = True
        packed = np.packbits(bits, bitorder="little").tobytes()
        told += len(packed).to_bytes(8, "little") + packed
    return told


class Pieces:
    """Samples in several pieces."""

    def __init__(self, *pieces: np.ndarray[Any, np.dtype[Any]]) -> None:
        self.parts = pieces

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def pieces(self) -> Any:
        return ((part, None) for part in self.parts)


def test_each_acknowledged_document_is_delivered_inside_or_lost() -> None:
    # User 0 has 0, 2, 4 | 6, 8 (refused) | 10; user 1 has 1, 3 | 5. Nobody took the ticket of user -1.
    sent = tickets((0, 3, 3), (1, 2, 2), (0, 2, 0), (-1, 0, 0), (1, 1, 1), (0, 1, 1))
    back = delivery.read([node([0, 1, 2], again=[1], inside=[4]), node([0, 6], inside=[3])])
    assert delivery.values(back, sent, 2) == {
        "delivered_documents": 3,
        "inside_documents": 2,
        # 5, and 10, which no node has ever heard of.
        "lost_documents": 2,
        # 0 by two nodes, 1 by one of them.
        "delivered_twice": 2,
        "delivered_unacknowledged": 1,
    }
    for cut in range(1, len(sent)):
        assert delivery.values(back, Pieces(sent[:cut], sent[cut:]), 2) == delivery.values(back, sent, 2)


def test_a_document_that_is_delivered_here_and_inside_there_is_delivered() -> None:
    back = delivery.read([node([0]), node([], inside=[0, 1])])
    found = delivery.values(back, tickets((0, 2, 2)), 1)
    assert (found["delivered_documents"], found["inside_documents"], found["lost_documents"]) == (1, 1, 0)


def test_nodes_that_have_nothing_have_lost_everything() -> None:
    back = delivery.read([node([]), node([])])
    assert delivery.values(back, tickets((0, 7, 7)), 1)["lost_documents"] == 7


@pytest.mark.parametrize("told", [b"", b"\x01", node([3])[:-1], (9).to_bytes(8, "little") + b"\x00"])
def test_what_is_cut_off_is_no_answer(told: bytes) -> None:
    with pytest.raises(ValueError, match="cut off"):
        delivery.read([told])


def test_a_sample_of_a_user_that_nobody_has_is_damage() -> None:
    with pytest.raises(ValueError, match="user 3, and there are 2"):
        delivery.values(delivery.read([node([0])]), tickets((3, 1, 1)), 2)


COUNTED: dict[str, Any] = {"accepted": 100, "delivered": 60, "dropped": 30, "inside": 10, "unsure": 0}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"delivered": 61}, "the server accepted 100 documents, 61 are delivered, 30 dropped and 10 inside, +1"),
        ({"inside": 0}, "60 are delivered, 30 dropped and 0 inside, -10"),
        ({"delivered": 80, "unsure": 20}, ""),
        ({"delivered": 81, "unsure": 20}, "+21 (batches without an answer: at most 20 more)"),
        ({"inside": 9, "unsure": 20}, "-1"),
    ],
)
def test_what_the_nodes_accepted_is_delivered_dropped_or_inside(changed: dict[str, int], said: str) -> None:
    found = delivery.complaints(COUNTED | changed)
    assert len(found) == bool(said)
    assert said in "".join(found)


def test_a_server_that_counts_nothing_of_it_has_no_such_account() -> None:
    assert delivery.complaints({"documents": 3}) == []
    assert delivery.own(RECORD, 1, 0, 10**10) == {}


def test_rates_and_times_are_of_the_full_seconds_of_the_measurement() -> None:
    counters: Any = {
        "forwarded": 7,
        "dropped": 0,
        "seconds": {str(second): {"accepted": 10 * second, "delivered": 4, "forwards": second} for second in range(9)},
        "latency_us": {"3": {"1000": 50, "1001": 40}, "4": {"2000": 9, "5000": 1}, "8": {"9": 1}},
    }
    record = dataclasses.replace(RECORD, counters=counters, server={"workers": 5, "batch_delay_ns": 10**8})
    found = delivery.own(record, 3, 2_900_000_000, 5_100_000_000)
    assert found == {
        "forwards_cap_per_s": 50 * 3 * 2,
        "forwarded_documents": 7,
        "dropped_documents": 0,
        "accepted_per_s": 35,
        "delivered_per_s": 4,
        "forwards_per_s": 3.5,
        "delivery_times": 100,
        "delivery_ms_p50": 1.0,
        "delivery_ms_p99": 2.0,
    }
    assert "accepted_per_s" not in delivery.own(record, 3, None, None)
    # Less than a full second is none.
    assert "accepted_per_s" not in delivery.own(record, 3, 2_100_000_000, 2_900_000_000)


def test_without_a_batch_delay_there_is_no_cap() -> None:
    assert delivery.cap({"workers": 1, "batch_delay_ns": 0}, 2) is None
    assert delivery.cap({}, 2) is None


def test_what_is_lost_and_what_is_there_too_often_is_said() -> None:
    assert list(delivery.remarks({"lost_documents": 0, "delivered_twice": 0, "delivered_unacknowledged": 0})) == []
    said = delivery.remarks(
        {
            "documents_acked": 4000,
            "lost_documents": 1500,
            "dropped_documents": 1500,
            "delivered_twice": 2,
            "delivered_unacknowledged": 3,
        }
    )
    assert list(said) == [
        "1,500 of 4,000 acknowledged documents are lost, 1,500 dropped by what the server says",
        "delivered more than once: 2 documents",
        "delivered though nobody acknowledged it: 3 documents",
    ]
