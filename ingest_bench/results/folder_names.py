"""What a folder of ours may be called, and that a name does not lead out of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ingest_bench.errors import SpecError

# NAME_MAX of Linux (limits.h) is 255, and more is written around a name: "time-NAME.png", "NAME.broken-12".
_LONGEST_NAME_BYTES = 235
_SHOWN = 60
NOT_IN_OPTIONS = ' ,:"\t'


def below(base: Path, name: str) -> Path:
    """Where a name, such as "cell/1", is below one of our folders; SpecError when it leads out of it.

    Every name that comes from a file and becomes a path goes through here.
    """
    for part in name.split("/"):
        check(part, f"{base}:")
    path = base / name
    check_stays(path, base)
    return path


def check(name: str, what: str) -> None:
    """SpecError when no folder of ours may have that name."""
    if name in ("", ".", "..") or "/" in name:
        trouble = "it is not the name of one folder"
    elif not name.isprintable():
        trouble = "it has characters that cannot be printed"
    elif len(name.encode()) > _LONGEST_NAME_BYTES:
        trouble = f"it is longer than {_LONGEST_NAME_BYTES} bytes"
    elif any(letter in f"{NOT_IN_OPTIONS}'" for letter in name):
        trouble = "the JVM's options take no path with a comma, colon, quote or space; rename it"
    else:
        return
    raise SpecError(f"{what} {shown(name)} cannot be a folder: {trouble}")


def check_stays(path: Path, base: Path) -> None:
    """SpecError when a path leads out of the folder that it begins with."""
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(base)):
        raise SpecError(f"{path}: this is a link that leads out of {base}; nothing was read or written there")


def shown(name: str) -> str:
    """A name as an error says it, whatever is in it."""
    return json.dumps(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…", ensure_ascii=not name.isprintable())
