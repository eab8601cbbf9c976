"""Results of several nodes: the columns of each node, and their combination in the run's row."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np

from ingest_bench.analysis import quantiles
from ingest_bench.analysis.run import sample_columns as load
from ingest_bench.analysis.run.columns import COLUMNS, NodeRule
from ingest_bench.analysis.run.sample_columns import SampleSource
from ingest_bench.model.results import (
    CauseIntervals,
    ColumnValue,
    Histogram,
    Note,
    ProbeOutput,
    Reading,
    Series,
    Stacks,
)
from ingest_bench.model.samples import WorkerReport

_RULES: Mapping[str, NodeRule] = {column.name: column.node_rule for column in COLUMNS}
# Values about the load's connections; a node that the load does not use has none.
_OF_THE_LOAD = {
    *("bytes_read", "reads_recorded", "reads_empty", "read_bytes", "wire_bytes"),
    *("kernel_bytes_read", "kernel_reads", "kernel_read_bytes"),
    *("clock_offset_ms_min", "clock_offset_ms_max"),
}


def loaded_nodes(
    nodes: Sequence[Sequence[ProbeOutput]], samples: SampleSource, address_nodes: Sequence[int]
) -> frozenset[int]:
    """Return the numbers of the nodes that received requests. *address_nodes* as in `node_columns`.

    If it is unknown which node has which address, these are the nodes that read bytes; the comparison of all bytes
    shows that no other node did.
    """
    if not address_nodes:
        readings = ((number, item) for number, outputs in enumerate(nodes, 1) for item in outputs)
        return frozenset(
            number
            for number, item in readings
            if isinstance(item, Reading) and item.name == "bytes_read" and item.value
        )
    addresses = {int(address) for batch in load.iterate_batches(samples) for address in np.unique(batch["address"])}
    return frozenset(address_nodes[address] for address in addresses if address >= 0)


def merge_nodes(nodes: Sequence[Sequence[ProbeOutput]], to: Collection[int] = ()) -> list[ProbeOutput]:
    """Return the probe outputs of all nodes combined: readings by their column's rule, histograms added.

    A value that is unknown for one node is unknown for all. Values about the load's connections are required only from
    the nodes *to* which the load goes (default: all). Series of all nodes but the first carry the node's number.
    """
    if len(nodes) == 1:
        return list(nodes[0])

    def has(name: str, number: int) -> bool:
        return not to or number in to or name not in _OF_THE_LOAD

    def expected_nodes(name: str) -> int:
        return sum(has(name, number) for number in range(1, len(nodes) + 1))

    stacks = Counter[str]()
    for folded in map(find_stacks, nodes):
        stacks.update(folded or {})
    readings: dict[str, list[ColumnValue]] = {}
    histograms: dict[str, list[dict[int, int]]] = {}
    unmerged: list[ProbeOutput] = []
    for number, outputs in enumerate(nodes, 1):
        for item in outputs:
            match item:
                case Reading():
                    readings.setdefault(item.name, []).extend([item.value] if has(item.name, number) else [])
                case Histogram():
                    histograms.setdefault(item.name, []).extend([item.counts] if has(item.name, number) else [])
                case Series():
                    name = item.name if number == 1 else f"{item.name} of node {number}"
                    unmerged.append(dataclasses.replace(item, name=name))
                case CauseIntervals():
                    unmerged.append(dataclasses.replace(item, node=number))
                case Note():
                    unmerged.append(dataclasses.replace(item, text=f"node {number}: {item.text}"))
    return [
        *(Reading(name, _combine(name, values, expected_nodes(name))) for name, values in readings.items()),
        *(
            Histogram(name, quantiles.merge_counts(counts))
            for name, counts in histograms.items()
            if len(counts) == expected_nodes(name)
        ),
        *unmerged,
        *([] if None in map(find_stacks, nodes) else [Stacks(dict(stacks))]),
    ]


def find_stacks(outputs: Iterable[ProbeOutput]) -> dict[str, int] | None:
    """Return the allocated bytes by stack; None if unknown. If several probes have them, they are equal."""
    return next((item.folded for item in outputs if isinstance(item, Stacks)), None)


def _combine(name: str, values: Sequence[ColumnValue], nodes: int) -> ColumnValue:
    rule = _RULES.get(name, "")
    if len(values) < nodes or None in values:
        return None
    if rule == "machine" or (rule == "same" and len(set(values)) == 1):
        return values[0]
    numbers = [value for value in values if isinstance(value, (int, float))]
    functions: dict[NodeRule, Callable[[Iterable[float]], float]] = {"sum": sum, "max": max, "min": min}
    return functions[rule](numbers) if rule in functions and len(numbers) == nodes else None


def node_columns(
    nodes: Sequence[Sequence[ProbeOutput]],
    links: Sequence[Mapping[str, ColumnValue]],
    samples: SampleSource,
    report: WorkerReport | None,
    address_nodes: Sequence[int],
) -> tuple[dict[str, ColumnValue], ...]:
    """Return the columns of each node: from its probes, its link, and the requests that went to it.

    *address_nodes* has the number of the node at each address of the load. Empty: it is unknown which requests went to
    which node.
    """
    rows = []
    for number, (outputs, link) in enumerate(zip(nodes, links, strict=True), 1):
        row: dict[str, ColumnValue] = dict(link)
        row |= quantiles.size_columns({item.name: item.counts for item in outputs if isinstance(item, Histogram)})
        row |= {item.name: item.value for item in outputs if isinstance(item, Reading)}
        if report is not None and number in address_nodes:
            sent = load.AtAddress(samples, address_nodes.index(number))
            row |= {**load.document_totals(sent), **load.load_columns(sent, load.measurement_window(report))}
        rows.append(row)
    return tuple(rows)
