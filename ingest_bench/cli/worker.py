"""`worker`: this machine sends a part of the loads of `run --workers` elsewhere; and what `run` needs for that."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ingest_bench import load
from ingest_bench.cli import screen
from ingest_bench.errors import SpecError
from ingest_bench.load import Remote, RemoteWorker, agent, wire
from ingest_bench.model.experiment import Plan

SECRET = "INGEST_BENCH_SECRET"  # noqa: S105 - the name of an environment variable

Workers = Annotated[
    int | None,
    typer.Option(help="Let so many `ingest-bench worker` send the load, from other machines; needs --url.", min=1),
]
Bind = Annotated[
    str | None,
    typer.Option(
        help=f"Where they join: HOST or HOST:PORT. 127.0.0.1:{wire.PORT} when not given. "
        f"Beyond this machine the environment needs {SECRET}."
    ),
]


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


def asked(workers: int | None, bind: str | None) -> Remote | None:
    """How `run` waits for workers; None: it does not. SpecError when anybody could join."""
    if workers is None:
        if bind is not None:
            raise SpecError("--bind is where --workers N join; how many?")
        return None
    remote = Remote(bind=wire.endpoint(bind or "127.0.0.1"), workers=workers, secret=os.environ.get(SECRET, ""))
    wire.check_bind(remote.bind, remote.secret)
    return remote


def check(remote: Remote | None, plans: Sequence[Plan]) -> None:
    """SpecError for what workers on other machines cannot send."""
    for cell in (run.cell for plan in plans for run in plan.runs) if remote else ():
        if cell.target.url is None:
            raise SpecError(
                "--workers: a server of ours stands in a network of its own, which other machines do not reach; "
                "measure one that runs already: --url URL"
            )
        if cell.load.processes != 1:
            raise SpecError("--workers: each worker is one process; take out processes, and start more workers")


def joined(remote: Remote | None) -> contextlib.AbstractContextManager[tuple[RemoteWorker, ...]]:
    """The workers that joined, for the block's time; none when nobody was asked for."""
    return load.joined(remote, screen.say) if remote else contextlib.nullcontext(())
