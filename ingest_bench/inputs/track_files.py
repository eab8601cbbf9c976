"""Name of a track and the files that it may read. A track is a folder, or one .json file of any name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path


def name_of(path: Path) -> str:
    """Return the name of the track's folder, or of its file without ".json"."""
    return path.name.removesuffix(".json") if path.is_file() else path.name


def files_of(path: Path) -> Iterator[Path]:
    """Yield what is in the folder of a track.

    Of a track in one file, which may be in a home folder, only JSON files beside it and one folder deeper. None
    is hidden: those are of other programs.
    """
    if not path.is_file():
        return path.rglob("*")
    return itertools.chain(path.parent.glob("[!.]*.json*"), path.parent.glob("[!.]*/[!.]*.json*"))
