"""What a worker's users send: each user has bodies of its own, so that none is sent by two."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ingest_bench.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest_bench.load.plan import LoadPlan


class Body(NamedTuple):
    """What one bulk request sends."""

    data: bytes
    documents: int


class Bodies(Protocol):
    """Where users get their bodies from."""

    def cycle(self, user: int, users: int) -> Iterator[Body]:
        """The bodies of one of several users."""


class FileBodies:
    """The documents of a small file, again and again."""

    def __init__(self, path: Path, bulk_documents: int) -> None:
        lines = path.read_bytes().splitlines()
        self._bodies = [
            Body(
                b"".join(b'{"index":{}}\n%s\n' % line for line in lines[first : first + bulk_documents]), bulk_documents
            )
            for first in range(0, len(lines) - bulk_documents + 1, bulk_documents)
        ]

    def cycle(self, user: int, users: int) -> Iterator[Body]:
        """Every `users`-th body."""
        return cycle(self._bodies[user::users])


def bodies_for(plan: LoadPlan) -> Bodies:
    """The bodies of a load."""
    if plan.options.documents is None:
        raise SpecError(f'workload "{plan.workload.name}": no documents; give a file: --documents FILE')
    return FileBodies(Path(plan.options.documents), plan.options.bulk_documents or plan.workload.bulk_documents)
