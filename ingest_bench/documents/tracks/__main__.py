"""A track read by a process of its own: `python -m ingest_bench.documents.tracks`, within limits of time and memory.

The templates of a track are programs of somebody else's. In their sandbox they reach nothing, but they may loop or grow
without end, and no limit inside one process stops that. What is to be read comes as JSON on the standard input.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ingest_bench.documents import tracks
from ingest_bench.errors import SpecError
from ingest_bench.inputs.records import to_json

# Of all published tracks elastic/security takes most: 26 MB more than this program.
_MEMORY_BYTES = 1024**3


def main() -> None:
    """The track, or why it is refused, as JSON on the standard output."""
    wanted = json.loads(sys.stdin.buffer.read())
    resource.setrlimit(resource.RLIMIT_CPU, (wanted["cpu_s"], wanted["cpu_s"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    sys.stdout.write(json.dumps(answer(wanted)))


def answer(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The track, or why it is refused."""
    try:
        found = tracks.read(
            Path(wanted["folder"]),
            parameters=wanted["parameters"],
            procedure=wanted["procedure"],
            test_mode=wanted["test_mode"],
            downloads=Path(wanted["downloads"]),
            tool_caches=tuple(map(Path, wanted["tool_caches"])),
            include_tasks=wanted["include_tasks"],
            exclude_tasks=wanted["exclude_tasks"],
        )
        return {"track": to_json(found)}
    except SpecError as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"refused": f"{wanted['folder']}: its templates take more than 1 GiB of memory; one of them grows"}
    except Exception as error:  # noqa: BLE001 - whatever it is, somebody else's file is its cause
        said = " ".join(str(error).split())[:300]
        return {"refused": f"{wanted['folder']}: cannot be read: {type(error).__name__}: {said}"}


if __name__ == "__main__":
    main()
