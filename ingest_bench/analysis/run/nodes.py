"""The nodes of a run: what each one's probes, link and address saw, and all of them as one."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from ingest_bench.analysis.numbers import histogram
from ingest_bench.analysis.run import sample_columns as load
from ingest_bench.analysis.run.column import Together
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.analysis.run.sample_columns import Samples, Tickets
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import Histogram, Measured, Reading, Remark, Series, Stacks, Value, Watched

_RULES: Mapping[str, Together] = {column.name: column.together for column in COLUMNS}


# What is of the load's connections alone: a node that the load does not go to has none of it.
_OF_THE_LOAD = {
    *("bytes_read", "reads_recorded", "reads_empty", "read_bytes", "wire_bytes"),
    *("kernel_bytes_read", "kernel_reads", "kernel_read_bytes"),
}


def loaded(
    nodes: Sequence[Sequence[Measured]], samples: Tickets, report: WorkerReport | None, only: int | None
) -> frozenset[int]:
    """The numbers of the nodes that any request went to. `only` as in `values`.

    Where a library picked the nodes, those that read anything: that no other one did, the count of all bytes shows.
    """
    if report is not None and not report.addresses:
        return frozenset(number for number, measured in enumerate(nodes, 1) if any(map(_is_read, measured)))
    found = {int(one) for piece, _ in load.pieces(samples) for one in np.unique(piece["address"])}
    return frozenset(only or address + 1 for address in found if address >= 0)


def together(nodes: Sequence[Sequence[Measured]], to: Collection[int] = ()) -> list[Measured]:
    """What the probes of all nodes saw, as if they were one: a number where one is that of all, histograms added up.

    One that is unknown of a node is unknown of all, but what only those have that the load goes `to` (by default to
    all). The series of a node carry its number, those of the first do not.
    """
    if len(nodes) == 1:
        return list(nodes[0])

    def has(name: str, number: int) -> bool:
        return not to or number in to or name not in _OF_THE_LOAD

    def asked(name: str) -> int:
        return sum(has(name, number) for number in range(1, len(nodes) + 1))

    readings: dict[str, list[Value]] = {}
    histograms: dict[str, list[dict[int, int]]] = {}
    rest: list[Measured] = []
    for number, measured in enumerate(nodes, 1):
        for item in measured:
            if isinstance(item, Reading):
                readings.setdefault(item.name, []).extend([item.value] if has(item.name, number) else [])
            elif isinstance(item, Histogram):
                histograms.setdefault(item.name, []).extend([item.counts] if has(item.name, number) else [])
            elif isinstance(item, Series):
                rest.append(item if number == 1 else dataclasses.replace(item, name=f"{item.name} of node {number}"))
            elif isinstance(item, Watched):
                rest.append(dataclasses.replace(item, node=number))
            elif isinstance(item, Remark):
                rest.append(dataclasses.replace(item, text=f"node {number}: {item.text}"))
    known = [Reading(name, _one(name, values, asked(name))) for name, values in readings.items()]
    whole = {name: each for name, each in histograms.items() if len(each) == asked(name)}
    rest.extend(_stacks_of_all(nodes))
    return [*known, *(Histogram(name, histogram.merge(each)) for name, each in whole.items()), *rest]


def stacks(measured: Iterable[Measured]) -> dict[str, int] | None:
    """What was allocated by stack, None where that is unknown; several probes see the same."""
    return next((item.folded for item in measured if isinstance(item, Stacks)), None)


def _stacks_of_all(nodes: Sequence[Sequence[Measured]]) -> list[Stacks]:
    added: Counter[str] = Counter()
    for measured in nodes:
        found = stacks(measured)
        if found is None:
            # One that is unknown of a node is unknown of all.
            return []
        added.update(found)
    return [Stacks(dict(added))]


def _is_read(item: Measured) -> bool:
    return isinstance(item, Reading) and item.name == "bytes_read" and bool(item.value)


def _one(name: str, values: Sequence[Value], nodes: int) -> Value:
    rule = _RULES.get(name, "")
    if len(values) < nodes or None in values:
        return None
    if rule == "machine" or (rule == "same" and len(set(values)) == 1):
        return values[0]
    numbers = [value for value in values if isinstance(value, (int, float))]
    rules: dict[Together, Callable[[Iterable[float]], float]] = {"sum": sum, "max": max, "min": min}
    return rules[rule](numbers) if rule in rules and len(numbers) == nodes else None


def values(
    nodes: Sequence[Sequence[Measured]],
    links: Sequence[Mapping[str, Value]],
    samples: Tickets,
    report: WorkerReport | None,
    only: int | None,
) -> tuple[dict[str, Value], ...]:
    """What is known of each node, by column: what its probes and its link saw, and the requests that went to it.

    `only` is the node of the load's only address; None: its addresses are those of the nodes in their order. Without
    addresses nobody knows which requests went to which node.
    """
    found = []
    for number, (measured, link) in enumerate(zip(nodes, links, strict=True), 1):
        row: dict[str, Value] = dict(link)
        row |= histogram.sizes({item.name: item.counts for item in measured if isinstance(item, Histogram)})
        row |= {item.name: item.value for item in measured if isinstance(item, Reading)}
        if report is not None and report.addresses and only in (None, number):
            sent = AtAddress(samples, 0 if only else number - 1)
            row |= {**load.totals(sent), **load.measured(sent, load.window_of(report))}
        found.append(row)
    return tuple(found)


@dataclasses.dataclass(frozen=True, slots=True)
class AtAddress:
    """The tickets that went to one address of the server."""

    tickets: Tickets
    address: int

    def __len__(self) -> int:
        return sum(len(samples) for samples, _ in self.pieces())

    def pieces(self) -> Iterator[tuple[Samples, int | None]]:
        """As `sample_columns.InPieces`."""
        for samples, settled_ns in load.pieces(self.tickets):
            yield samples[samples["address"] == self.address], settled_ns
