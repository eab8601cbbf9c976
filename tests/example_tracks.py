"""A track with one index, one file of ten documents and one bulk operation; each test changes what it is about."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ingest_bench.documents.tracks import reader
from ingest_bench.model.load import Step, Track

BULK = {"name": "bulk", "operation-type": "bulk", "bulk-size": 5}
SEND = {"operation": "bulk"}
DOCUMENTS = {"source-file": "docs.json", "document-count": 10}


def write_track(
    folder: Path, schedule: Sequence[Any] = (SEND,), documents: Sequence[Any] = (DOCUMENTS,), **more: Any
) -> Path:
    """Write the track, with *more* keys of its main file, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "docs.json").write_text('{"n": 1}\n' * 10)
    table = {
        "version": 2,
        "indices": [{"name": "i"}],
        "corpora": [{"name": "c", "documents": documents}],
        "operations": [BULK],
        "schedule": schedule,
    }
    # A track may have a number that is too large for a float.
    (folder / "track.json").write_text(json.dumps({**table, **more}).replace("Infinity", "1e999"))
    return folder


def read_track(
    folder: Path, schedule: Sequence[Any] = (SEND,), documents: Sequence[Any] = (DOCUMENTS,), **more: Any
) -> Track:
    """Write the track and read it."""
    return reader.read_track(write_track(folder, schedule, documents, **more))


def bulk_task(**keys: Any) -> list[Any]:
    """Return a schedule of one bulk whose task has these keys, with hyphens for underscores."""
    return [{**SEND, **{key.replace("_", "-"): value for key, value in keys.items()}}]


def bulk_operation(**keys: Any) -> list[Any]:
    """Return a schedule of one bulk whose operation has these keys, with hyphens for underscores."""
    return [{"operation": {**BULK, **{key.replace("_", "-"): value for key, value in keys.items()}}}]


def bulk_steps(track: Track) -> list[Step]:
    """Return the bulk steps of a track."""
    return [step for step in track.steps if step.operation == "bulk"]
