"""From summaries to files: tables, pictures and a page. Pure: no input or output.

A report is a function from summaries (in the order in which they are to be shown, `cells.in_order`) to files: name
below the results folder -> content. To add one: write the function, add a line to `REPORTS`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence

from ingest_bench.analysis.buffers import published
from ingest_bench.analysis.buffers.published import Published
from ingest_bench.analysis.compare import cells
from ingest_bench.inputs import data
from ingest_bench.model.results import Summary
from ingest_bench.report.page import flames, html, page
from ingest_bench.report.tables import (
    acknowledged_table,
    direct_memory_table,
    es23185_table,
    forwarding_table,
    machine_table,
    noise_table,
    parquet,
    stall_table,
    text_tables,
)

Files = dict[str, bytes]
_PUBLISHED = "results/reference/published"


def csv_tables(summaries: Sequence[Summary]) -> Files:
    """The tables of every experiment."""
    files = {
        "summary.csv": text_tables.summary_csv(summaries),
        "summary.json": text_tables.summary_json(summaries),
        "histograms.csv": text_tables.histograms_csv(summaries),
        "report/cells.md": text_tables.markdown(text_tables.terminal(summaries), len(cells.varying(summaries)) or 1),
    }
    if any(summary.nodes for summary in summaries):
        files["nodes.csv"] = text_tables.nodes_csv(summaries)
    compared = text_tables.comparisons(summaries)
    if len(compared) > 1:
        files["report/comparisons.csv"] = text_tables.csv_text(compared)
    if any("wire_bytes" in run.histograms for run in summaries):
        files["report/wire.csv"] = text_tables.histograms_csv(summaries, "wire_bytes", "frames")
    stalled = stall_table.rows(summaries)
    if len(stalled) > 1:
        files["report/stalls.csv"] = text_tables.csv_text(stalled)
    return {name: text.encode() for name, text in files.items()}


def issue_tables(summaries: Sequence[Summary]) -> Files:
    """The table of Elasticsearch issue 23185; nothing when no run measured allocations."""
    known = _published()
    rows = es23185_table.table(summaries, known)
    if not rows:
        return {}
    return {
        "report/es-23185.csv": text_tables.csv_text(es23185_table.values(summaries, known)).encode(),
        "report/es-23185.md": text_tables.markdown(rows, len(cells.varying(summaries)) + 1).encode(),
    }


def published_rows(summaries: Sequence[Summary]) -> dict[str, list[list[str]]]:
    """The tables for the screen that have published rows beneath ours, by their titles; none without such a row."""
    found = {
        "beside Elasticsearch issue 23185": es23185_table.table(summaries, _published()),
        "beside JDK-6857566": direct_rows(summaries),
        "beside Data Prepper, pull request 6394": forwarding_rows(summaries),
    }
    return {title: rows for title, rows in found.items() if any(row[0] == "published" for row in rows)}


def direct_tables(summaries: Sequence[Summary]) -> Files:
    """The table of JDK-6857566; nothing when no server told of its direct buffers."""
    rows = direct_rows(summaries)
    if not rows:
        return {}
    return {
        "report/direct-memory.csv": text_tables.csv_text(rows).encode(),
        "report/direct-memory.md": text_tables.markdown(rows, len(cells.varying(summaries)) + 1).encode(),
    }


def direct_rows(summaries: Sequence[Summary]) -> list[list[str]]:
    """The table of JDK-6857566."""
    return direct_memory_table.table(summaries, _published_direct())


def forwarding_tables(summaries: Sequence[Summary]) -> Files:
    """The table of forwarding between nodes; nothing when no server forwards anything."""
    rows = forwarding_rows(summaries)
    if not rows:
        return {}
    return {
        "report/forwarding.csv": text_tables.csv_text(rows).encode(),
        "report/forwarding.md": text_tables.markdown(rows, len(cells.varying(summaries)) + 1).encode(),
    }


def forwarding_rows(summaries: Sequence[Summary]) -> list[list[str]]:
    """The table of forwarding between nodes, with what Data Prepper's pull request 6394 published."""
    text = (data.folder(_PUBLISHED) / "data-prepper-6394.csv").read_text(encoding="utf-8")
    return forwarding_table.table(summaries, forwarding_table.read(text))


def allocation_stacks(summaries: Sequence[Summary]) -> Files:
    """The stacks of each run that allocated anything, whole; nothing when no run looked for them."""
    return {f"report/{flames.file_name(run)}": flames.folded(run).encode() for run in summaries if run.stacks}


def machine_tables(summaries: Sequence[Summary]) -> Files:
    """The table of what settings of the machine did; nothing when none of them varies."""
    rows = machine_table.table(summaries)
    if not rows:
        return {}
    return {
        "report/machine.csv": text_tables.csv_text(rows).encode(),
        "report/machine.md": text_tables.markdown(rows, len(cells.varying(summaries))).encode(),
    }


def acknowledged_tables(summaries: Sequence[Summary]) -> Files:
    """The table of what became of acknowledged documents; nothing when the fault does not vary."""
    rows = acknowledged_table.table(summaries)
    if not rows:
        return {}
    return {
        "report/acknowledged.csv": text_tables.csv_text(rows).encode(),
        "report/acknowledged.md": text_tables.markdown(rows, len(rows[0])).encode(),
    }


def noise_tables(summaries: Sequence[Summary]) -> Files:
    """The table of an A/A test, of every column; nothing when the experiment did not run against itself."""
    rows = noise_table.table(summaries, noise_table.ALL)
    if not rows:
        return {}
    return {
        "report/noise.csv": text_tables.csv_text(rows).encode(),
        "report/noise.md": text_tables.markdown(rows, rows[0].index("column") + 1).encode(),
    }


def _published_direct() -> list[direct_memory_table.Published]:
    return direct_memory_table.read((data.folder(_PUBLISHED) / "jdk-6857566.csv").read_text(encoding="utf-8"))


def _published() -> list[Published]:
    """The issue's tables, which travel with the package."""
    folder = data.folder(_PUBLISHED)
    named = {"es-23185-pmc": "pmc", "es-23185-nyc_taxis": "nyc_taxis", "es-23185-network": None}
    return [
        row
        for name, workload in named.items()
        for row in published.rows((folder / f"{name}.csv").read_text(encoding="utf-8"), workload)
    ]


def pictures(summaries: Sequence[Summary]) -> Files:
    """The pictures, the main one first, and the page that holds them."""
    # matplotlib takes most of a second, and most commands draw nothing.
    from ingest_bench.report.plots import (  # noqa: PLC0415
        plots,
        plots_direct,
        plots_forwarding,
        plots_large,
        plots_layers,
        plots_machine,
        plots_nodes,
        plots_time,
    )

    files, captions = {}, {}
    waits = plots_direct.waits(summaries, _published_direct())
    if waits is not None:
        # Where each buffer is told of, this is what was asked.
        files["direct-memory.png"], captions["direct-memory.png"] = waits, "for each cell: time for each direct buffer"
    forwarded = plots_forwarding.forwarding(summaries)
    if forwarded is not None:
        files["forwarding.png"], captions["forwarding.png"] = forwarded, "what was forwarded and delivered"
    several = plots_nodes.nodes(summaries)
    if several is not None:
        files["nodes.png"], captions["nodes.png"] = several, "for each cell: rate, response time, the node waited for"
    files["reads.png"] = plots.overview(summaries)
    captions["reads.png"] = "for each cell: sizes of socket reads, documents/s, GC pauses"
    layers = plots_layers.layers(summaries)
    if layers is not None:
        files["layers.png"], captions["layers.png"] = layers, "allocations outside TLABs by layer"
    over_time = plots_machine.machine(summaries)
    if over_time is not None:
        files["machine.png"] = over_time
        captions["machine.png"] = "for each setting of the machine: throughput over time, and what the kernel counted"
    asked = plots_large.large(summaries)
    if asked is not None:
        files["large-allocations.png"] = asked
        captions["large-allocations.png"] = "heap over time with its faults, and objects of 1 MiB and more"
    for cell in cells.group(summaries):
        for run in sorted(cell.valid, key=lambda run: (run.instrumented, run.replicate))[:1]:
            content = plots_time.timeline(run)
            if content is not None:
                plain = re.sub("[^A-Za-z0-9.=-]+", "-", cell.name)
                # Another cell may differ in such a letter only.
                differs = f"-{hashlib.sha256(cell.name.encode()).hexdigest()[:12]}" * (f"time-{plain}.png" in files)
                name = f"time-{plain}{differs}.png"
                files[name], captions[name] = content, f"{run.run} over time"
    more = [
        ("What is noise", noise_table.table(summaries)),
        ("Direct buffers, as in JDK-6857566", direct_rows(summaries)),
        ("Forwarding, as in Data Prepper's pull request 6394", forwarding_rows(summaries)),
        ("What became of acknowledged documents", acknowledged_table.table(summaries)),
        ("What settings of the machine did", machine_table.table(summaries)),
        ("The table of Elasticsearch issue 23185", es23185_table.table(summaries, _published())),
    ]
    sections = [(title, html.table(rows)) for title, rows in more if len(rows) > 1]
    shown = {name: page.Picture(content, captions[name]) for name, content in files.items()}
    files["index.html"] = page.index(summaries, shown, sections).encode()
    return {f"report/{name}": content for name, content in files.items()}


def vector(build: Callable[[], Files]) -> Files:
    """The pictures among these files as SVG: an ending of their own, and the same name."""
    from ingest_bench.report.plots import plots_style  # noqa: PLC0415

    with plots_style.vector():
        return {f"{name.removesuffix('.png')}.svg": made for name, made in build().items() if name.endswith(".png")}


def parquet_table(summaries: Sequence[Summary]) -> Files:
    """summary.csv with types; MissingCapability without pyarrow."""
    return {"summary.parquet": parquet.summary_parquet(summaries)}


REPORTS: Mapping[str, Callable[[Sequence[Summary]], Files]] = {
    "tables": csv_tables,
    "es-23185": issue_tables,
    "allocations": allocation_stacks,
    "direct-memory": direct_tables,
    "forwarding": forwarding_tables,
    "machine": machine_tables,
    "noise": noise_tables,
    "acknowledged": acknowledged_tables,
    "pictures": pictures,
}
