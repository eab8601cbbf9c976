"""What other receive buffers would have cost, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from ingest_bench.analysis.buffers.predictions import Prediction
from ingest_bench.analysis.buffers.receive_buffers import Cost
from ingest_bench.report.tables.words import gb_text, short, whole


def table(costs: Sequence[Cost]) -> list[list[str]]:
    """A head and a row for each candidate, all for each GB (10^9 bytes) ingested."""
    limits = (("over a TLAB/GB", "over_tlab_bytes"), ("humongous/GB", "humongous_bytes"))
    known = [(title, name) for title, name in limits if any(getattr(item, name) is not None for item in costs)]
    head = ["receive buffer", "buffers/GB", "allocated/GB", "wasted/GB", *(title for title, _ in known)]
    rows = []
    for item in costs:
        row = [
            f"{item.buffers}{' (extrapolated)' if item.is_extrapolated else ''}",
            whole(item.per_gb(item.allocations)),
            gb_text(item.per_gb(item.allocated_bytes)),
            gb_text(item.per_gb(item.wasted_bytes)),
        ]
        for _, name in known:
            value = getattr(item, name)
            row.append("" if value is None else gb_text(item.per_gb(value)))
        rows.append(row)
    return [head, *rows]


def predicted(predictions: Sequence[Prediction]) -> list[list[str]]:
    """A head and a row a cell: bytes allocated for each byte ingested, predicted and measured; [] without any."""
    if not predictions:
        return []
    head = ["cell", "buffer", "predicted from", "allocated/ingested: predicted", "measured", "error"]
    rows = [
        [
            item.cell,
            f"{item.cost.buffers}{' (extrapolated)' if item.cost.is_extrapolated else ''}",
            "its own reads" if item.source == item.cell else item.source,
            short(item.cost.share),
            short(item.measured_share),
            f"{item.error:+.1%}",
        ]
        for item in predictions
    ]
    return [head, *rows]
