"""`workload show` and `workload write`: the documents, to look at and to keep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ingest_bench.cli import screen
from ingest_bench.documents import export
from ingest_bench.experiment import catalog
from ingest_bench.inputs import records
from ingest_bench.model.load import LoadOptions
from ingest_bench.units import count_of

app = typer.Typer(help="Look at a workload, or write its documents to a file.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A workload by name (see `list`), or your own TOML file.")]


@app.command("show")
def show(name: Name) -> None:
    """Show what a workload sends: sizes, fields and the first document."""
    rows = export.describe(catalog.workload(name))
    width = max(len(key) for key, _ in rows)
    for key, value in rows:
        screen.say(f"{key:<{width}}  {value}")


@app.command("write")
def write(
    name: Name,
    out: Annotated[Path, typer.Option(help="The file to write: NDJSON, compressed when it ends in .gz or .zst.")],
    documents: Annotated[int, typer.Option(help="How many documents.", min=1)] = 10_000,
    seed: Annotated[int, typer.Option(help="Another seed gives other documents of the same kind.")] = 1,
) -> None:
    """Write the documents of a workload to a file."""
    records.at(LoadOptions, ("seed",), seed, "--seed")
    written = export.write(catalog.workload(name), documents, out, seed)
    screen.say(f"{out}: {count_of(documents, 'document')}, {written:,} bytes of JSON")
