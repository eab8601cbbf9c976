"""Where the files are that the runs of a cell read, whatever folder they are started from. Pure but for that folder."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from ingest_bench.model.experiment import Cell


def from_anywhere(cell: Cell) -> Cell:
    """The cell with whole paths of its files: its runs may be resumed from another folder."""
    target, load, track = cell.target, cell.load, cell.load.track
    return dataclasses.replace(
        cell,
        target=dataclasses.replace(
            target,
            file=_whole(target.file),
            ca_file=_whole(target.ca_file),
            client_cert=_whole(target.client_cert),
            client_key=_whole(target.client_key),
        ),
        load=dataclasses.replace(
            load,
            workload=_named(load.workload),
            documents=_whole(load.documents),
            track=dataclasses.replace(track, path=absolute(track.path)) if track else None,
            arrivals=dataclasses.replace(load.arrivals, file=_whole(load.arrivals.file)),
            query_arrivals=dataclasses.replace(load.query_arrivals, file=_whole(load.query_arrivals.file)),
        ),
        faults=tuple(
            dataclasses.replace(fault, profile=fault.profile and _named(fault.profile), trace=_whole(fault.trace))
            for fault in cell.faults
        ),
    )


def absolute(path: str | Path) -> str:
    """Return the absolute path; a tilde that the shell left, as in `--track=~/geonames`, is the home folder."""
    # Path.expanduser raises for an unknown user, whose name with the tilde may be a folder's.
    return str(Path(os.path.expanduser(path)).absolute())  # noqa: PTH111


def _whole(path: str | None) -> str | None:
    return None if path is None else absolute(path)


def _named(name: str) -> str:
    """What is shipped by name has no path (`catalog.find`)."""
    return absolute(name) if name.endswith(".toml") else name
