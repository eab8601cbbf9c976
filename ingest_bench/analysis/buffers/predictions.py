"""What receive buffers were said to cost, beside what a server that counts its own says."""

from __future__ import annotations

from dataclasses import dataclass

from ingest_bench.analysis.buffers.receive_buffers import Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One cell: its cost as the reads of the cell `source` predict it, and as its own server counted."""

    cell: str
    source: str
    cost: Cost
    measured_share: float
    """Bytes allocated for each byte ingested."""

    @property
    def error(self) -> float:
        """Predicted over measured, less 1: 0.05 is 5% too much."""
        return self.cost.share / self.measured_share - 1
