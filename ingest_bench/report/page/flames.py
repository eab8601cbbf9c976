"""Who allocated how much, as an icicle: the stacks of each run as a tree small enough for the page. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any
from urllib.parse import quote

from ingest_bench.analysis.compare import cells
from ingest_bench.model.results import Summary
from ingest_bench.report.page import html
from ingest_bench.report.tables.words import gb_text

# A narrower frame is a line in the picture: those beside each other become one.
_NARROWEST = 0.002
# A deep server has some thousand frames that wide; of one with more the narrowest are merged, too.
_MOST_FRAMES = 4000
# All icicles of a page together. A folder of hundreds of runs would make a page that no browser opens.
MOST_BYTES = 2_000_000
_MERGED = "(smaller)"
# A file of ours has 235 bytes at most (results/folder_names.py), and more is written around this.
_LONGEST_NAME = 200
_HINT = (
    "Click a frame to zoom, or choose it by arrow keys, once this has the focus, and press Enter; 0 shows all again."
)


@dataclass(slots=True)
class Frame:
    """A frame with all that allocated below it."""

    name: str
    total: int = 0
    children: dict[str, Frame] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Flames:
    """The icicles of a page: names that they share, and each run's."""

    names: Sequence[str]
    graphs: Sequence[Mapping[str, Any]]
    places: Mapping[str, int]
    """Of each run that is drawn the place of its graph."""

    @property
    def data(self) -> dict[str, Any]:
        """What the script draws them from."""
        return {"names": self.names, "graphs": self.graphs}


def file_name(run: Summary) -> str:
    """Where the whole stacks of a run are, in the folder of the page: no other run has that name."""
    name = quote(run.run.replace("/", "-"), safe="=+")
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(run.run.encode()).hexdigest()[:12]}"
    return f"allocations-{name}.folded"


def folded(run: Summary) -> str:
    """All stacks of a run in Brendan Gregg's folded form, which flamegraph.pl and speedscope read."""
    return "".join(f"{frames} {size}\n" for frames, size in sorted(run.stacks.items()))


def flames(summaries: Sequence[Summary]) -> Flames:
    """The icicles of all runs that know their stacks, as long as there is room: the first run of each cell first."""
    names: dict[str, int] = {}
    graphs: list[Mapping[str, Any]] = []
    places: dict[str, int] = {}
    size = 0
    groups = [[run for run in row.runs if run.stacks] for row in cells.group(summaries)]
    first = [run for runs in groups for run in runs[:1]]
    for run in (*first, *(run for runs in groups for run in runs[1:])):
        before = len(names)
        graph = _graph(run, names)
        size += len(json.dumps(graph)) + len(json.dumps(list(names)[before:]))
        if size > MOST_BYTES:
            # Nor its names, which may be most of it.
            names = dict(list(names.items())[:before])
            break
        places[run.run] = len(graphs)
        graphs.append(graph)
    return Flames(list(names), graphs, places)


def figure(run: Summary, drawn: Flames, *, is_open: bool) -> str:
    """HTML: where the script draws the stacks of a run, or why it does not; nothing where nobody looked for any."""
    if not run.stacks:
        return ""
    whole = f'<a href="{quote(file_name(run))}">{escape(file_name(run))}</a>'
    name = html.breakable(run.run)
    if (place := drawn.places.get(run.run)) is None:
        limit = f"{MOST_BYTES // 1_000_000} MB"
        return f'<p class="faint">{name}: who allocated is not drawn here, the page has {limit} of that: {whole}</p>'
    graph = drawn.graphs[place]
    total, merged = graph["nodes"][0][2], graph["merged"]
    said = (
        f"{gb_text(total)} in all. Each frame is as wide as what it and those below it allocated; the last one is the "
        "class. TLABs count whole, for whoever asked for a new one."
    )
    if merged:
        said += f" {merged / total:.1%} are of frames below {graph['least']:.1%} each, which are drawn as one."
    return (
        f"<details{' open' if is_open else ''}>\n<summary>{name}: who allocated</summary>\n"
        f'<p class="faint">{said} Whole: {whole}</p>\n{_KEY}\n'
        f'<figure data-flames="{place}">\n<svg tabindex="0" role="img" aria-label="{escape(run.run)}: allocations by '
        f'stack"></svg>\n<p class="said" aria-live="polite">{_HINT}</p>\n</figure>\n</details>'
    )


_KEY = (
    '<p class="key"><span class="netty">Netty</span> <span class="lucene">Lucene</span> <span class="jdk">JDK</span> '
    '<span class="other">all others</span> <span class="class">the class</span></p>'
)


def _graph(run: Summary, names: dict[str, int]) -> dict[str, Any]:
    """Its frames from the top down, each with its depth, its name and its bytes; `merged` of them have no own frame."""
    tree = _tree(run.stacks)
    least = _NARROWEST
    # No frame is wider than its caller, so those that are drawn are the widest of all.
    widest = sorted(_totals(tree), reverse=True)
    if len(widest) > _MOST_FRAMES:
        least = max(least, (widest[_MOST_FRAMES] + 1) / tree.total)
    nodes: list[tuple[int, int, int]] = []
    merged = _add(nodes, names, tree, least * tree.total)
    return {"title": run.run, "least": least, "merged": merged, "nodes": nodes}


def _tree(stacks: Mapping[str, int]) -> Frame:
    tree = Frame("all")
    for frames, size in stacks.items():
        at = tree
        at.total += size
        for name in frames.split(";"):
            at = at.children.setdefault(name, Frame(name))
            at.total += size
    return tree


# The next two are loops: a JVM that ran before may keep 2048 frames of a stack, more than Python's calls may be deep.
def _totals(tree: Frame) -> Iterator[int]:
    waiting = [tree]
    while waiting:
        frame = waiting.pop()
        yield frame.total
        waiting.extend(frame.children.values())


def _add(nodes: list[tuple[int, int, int]], names: dict[str, int], tree: Frame, least: float) -> int:
    """How many bytes of it were merged."""
    merged, waiting = 0, [(0, tree)]
    while waiting:
        depth, frame = waiting.pop()
        nodes.append((depth, names.setdefault(frame.name, len(names)), frame.total))
        wide = sorted((child for child in frame.children.values() if child.total >= least), key=lambda one: -one.total)
        small = sum(child.total for child in frame.children.values() if child.total < least)
        if small:
            waiting.append((depth + 1, Frame(_MERGED, small)))
            merged += small
        waiting.extend((depth + 1, child) for child in reversed(wide))
    return merged
