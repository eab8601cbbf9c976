"""`worker`: this machine sends a part of the loads of a supervisor elsewhere."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ingest_bench.cli import screen
from ingest_bench.load import agent, wire

SECRET = "INGEST_BENCH_SECRET"  # noqa: S105 - the name of an environment variable


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("worker")(worker)


def worker(
    connect: Annotated[
        str,
        typer.Option(help=f"Where `run --workers` waits: HOST or HOST:PORT, port {wire.PORT} when none is given."),
    ],
) -> None:
    """Send a part of the loads of an experiment that runs on another machine, as one process.

    It ends with the experiment. Several on one machine are fine: start one for each core that may send.

    Both sides must have the same secret in the environment variable INGEST_BENCH_SECRET.

    A corpus (--documents, --track) must be here at the same path as there.
    """
    supervisor = wire.endpoint(connect)
    with tempfile.TemporaryDirectory(prefix="ingest-bench-worker-") as folder:
        agent.join(supervisor, os.environ.get(SECRET, ""), Path(folder), screen.say)
