"""What a plan will run, for people: what its runs have in common, and what they differ in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ingest_bench import targets
from ingest_bench.analysis.run import summary
from ingest_bench.experiment import catalog
from ingest_bench.lab import campaign
from ingest_bench.model.experiment import Cell, Plan
from ingest_bench.model.load import LoadOptions
from ingest_bench.units import format_bytes, format_time

# So many are named; of more it is said how many there are.
_MOST_NAMED = 5


def rows(ordered: Plan) -> list[tuple[str, str]]:
    """What it is, such as "users", and what it is in the cells: "4", or "4 / 8" where they differ."""
    found: dict[str, list[str]] = {}
    # Runs come in a random order, levels as the user wrote them.
    places = {factor.key: {level: at for at, level in enumerate(factor.levels)} for factor in ordered.factors}
    cells = sorted(campaign.unique_cells(ordered), key=lambda cell: [places[key][cell.levels[key]] for key in places])
    for cell in cells:
        for name, text in _of_cell(cell):
            found.setdefault(name, []).append(text)
    return [(name, _named(list(dict.fromkeys(texts)))) for name, texts in found.items()]


def _named(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_NAMED
    return " / ".join([*texts[:_MOST_NAMED], *([f"{more} more"] if more > 0 else [])])


def _of_cell(cell: Cell) -> Iterator[tuple[str, str]]:
    target, load = cell.target, cell.load
    if target.runs_already:
        yield "server", str(target.url or f"pid {target.attach}")
    else:
        version = target.version or targets.of(target).default_version
        nodes = f", {target.nodes} nodes" if target.nodes > 1 else ""
        yield "server", f"{target.name} {version}".rstrip() + nodes
        yield "heap", format_bytes(target.heap_bytes)
    yield "network", "as it is" if cell.network is None else cell.network.name
    yield "workload", summary.sent(cell)
    if load.track is None:
        yield from _of_load(load)
    yield "probes", ", ".join(cell.probes) or "none"


def _of_load(load: LoadOptions) -> Iterator[tuple[str, str]]:
    workload = catalog.workload(load.workload)
    yield "users", f"{load.users or workload.users:,}"
    if load.bulk_bytes is not None:
        yield "bulk", f"at most {format_bytes(load.bulk_bytes)}"
    else:
        yield "bulk", f"{load.bulk_documents or workload.bulk_documents:,} documents"
    yield "warm-up", load.warm_up_ns if isinstance(load.warm_up_ns, str) else format_time(load.warm_up_ns)
    if load.measure_documents is not None:
        yield "measured", f"{load.measure_documents:,} documents"
    else:
        yield "measured", format_time(load.measure_ns)
