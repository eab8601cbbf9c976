"""Predicted costs of other receive buffers (`recommend`), and predictions compared with measurements."""

from __future__ import annotations

from collections.abc import Sequence

from ingest_bench.analysis.receive_buffers import Cost, Prediction
from ingest_bench.report.formatting import format_gb, format_integer, format_number


def cost_rows(costs: Sequence[Cost]) -> list[list[str]]:
    """Return a head and a row for each candidate buffer; all numbers are for each GB (10^9 bytes) ingested."""
    limits = (("over a TLAB/GB", "over_tlab_bytes"), ("humongous/GB", "humongous_bytes"))
    used = [(title, name) for title, name in limits if any(getattr(cost, name) is not None for cost in costs)]
    rows = [["receive buffer", "buffers/GB", "allocated/GB", "wasted/GB", *(title for title, _ in used)]]
    for cost in costs:
        values = [getattr(cost, name) for _, name in used]
        rows.append(
            [
                _format_buffer(cost),
                format_integer(cost.per_gb(cost.allocations)),
                format_gb(cost.per_gb(cost.allocated_bytes)),
                format_gb(cost.per_gb(cost.wasted_bytes)),
                *("" if value is None else format_gb(cost.per_gb(value)) for value in values),
            ]
        )
    return rows


def prediction_rows(predictions: Sequence[Prediction]) -> list[list[str]]:
    """Return a head and a row for each cell: allocated / ingested bytes, predicted and measured; [] without any."""
    if not predictions:
        return []
    head = ["cell", "buffer", "predicted from", "allocated/ingested: predicted", "measured", "error"]
    body = [
        [
            item.cell,
            _format_buffer(item.cost),
            "its own reads" if item.source == item.cell else item.source,
            format_number(item.cost.share),
            format_number(item.measured_share),
            f"{item.error:+.1%}",
        ]
        for item in predictions
    ]
    return [head, *body]


def _format_buffer(cost: Cost) -> str:
    return f"{cost.buffers}{' (extrapolated)' if cost.is_extrapolated else ''}"
