"""What the files of a plan hold, in short: runs of other documents, traces or profiles are no replicates."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ingest_bench.errors import SpecError
from ingest_bench.inputs import files, records, track_files
from ingest_bench.model.experiment import Plan

# Of a file of any size so much is read: pieces at even distances, the first and the last bytes among them.
_PIECES, _PIECE_BYTES = 64, 1 << 16
# A track has some corpora; a folder with more is none.
_MOST_FILES = 1000
# The keys of what decides what is sent, what happens and who is measured. Other texts may be paths, too: of a server's
# own, such as "/".
_KEYS = frozenset({"documents", "workload", "profile", "trace", "file", "jar", "source", "classpath"})


# What can only be a path.
_PATHS = _KEYS - {"workload", "profile"}


def of(plan: Plan) -> dict[str, str]:
    """The fingerprint of each file that its runs read, by its path. A folder is each file in it."""
    given = dict.fromkeys(_given(records.to_json(plan)))
    return {str(path): _fingerprint(path) for one in given for path in _files(one)}


def check(kept: Mapping[str, str], plan: Plan) -> None:
    """SpecError where a file is not what it was when the first runs of this plan were made."""
    now = of(plan)
    for path in now.keys() - kept.keys() if kept else ():
        raise SpecError(
            f"{path}: it was not there when the first runs of this folder were made; the rest would be of something "
            "else. Take it away, or begin anew without --resume"
        )
    for path, was in kept.items():
        if (found := now.get(path)) != was:
            raise SpecError(
                f"{path}: it {'is gone' if found is None else 'has changed'} since the first runs of this folder; the "
                f"rest would be of something else. Bring it back ({was}), or begin anew without --resume"
            )


def _given(value: Any, key: str = "") -> Iterator[Path]:
    """What stands at these keys, and at the `path` of a track."""
    if isinstance(value, str):
        # Else it may be the name of what we ship; of a file of the user's own it is the path, with or without a folder.
        if key in _KEYS and (key in _PATHS or os.sep in value or value.endswith(".toml")):
            yield Path(value)
    elif isinstance(value, Mapping):
        for name, each in value.items():
            if (key, name) == ("track", "path"):
                yield from _of_track(Path(each))
            else:
                yield from _given(each, name)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _given(each, key)


def _of_track(path: Path) -> Iterator[Path]:
    """Yield the folder of a track; for a track in one file, each file that it may read."""
    return iter(sorted(track_files.files_of(path))[:_MOST_FILES]) if path.is_file() else iter((path,))


def _files(path: Path) -> Iterator[Path]:
    try:
        if path.is_dir():
            below = sorted(one for one in path.rglob("*") if _is_readable(one))
            yield from below[:_MOST_FILES]
        elif _is_readable(path):
            yield path
    except OSError:
        # A text that is no path: too long, or of a folder that nobody may read.
        return


def _is_readable(path: Path) -> bool:
    """True for a file that a run can read: beside a track there may be files of others."""
    return path.is_file() and os.access(path, os.R_OK)


def _fingerprint(path: Path) -> str:
    size_bytes = path.stat().st_size
    found = hashlib.sha256()
    last = max(0, size_bytes - _PIECE_BYTES)
    files.check(path)
    with path.open("rb") as file:
        for at in sorted({last * number // (_PIECES - 1) for number in range(_PIECES)}):
            file.seek(at)
            found.update(file.read(_PIECE_BYTES))
    return f"{size_bytes} bytes, {found.hexdigest()[:16]}"
