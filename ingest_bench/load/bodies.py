"""What is sent: prebuilt bulk bodies, dealt to the users of all workers."""

from __future__ import annotations

from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ingest_bench.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest_bench.load.plan import LoadPlan

_ACTION = b'{"index":{}}\n'


class Body(NamedTuple):
    """The body of one bulk request."""

    data: bytes
    documents: int


def bodies_for(plan: LoadPlan) -> Iterator[Body]:
    """The bodies of one worker: every n-th of all."""
    if plan.options.documents is None:
        raise SpecError(f'workload "{plan.workload.name}": no documents; give a file: --documents FILE')
    lines = Path(plan.options.documents).read_bytes().splitlines()
    bulk_documents = plan.options.bulk_documents or plan.workload.bulk_documents
    bodies = [
        Body(b"".join(_ACTION + line + b"\n" for line in lines[first : first + bulk_documents]), bulk_documents)
        for first in range(0, len(lines) - bulk_documents + 1, bulk_documents)
    ]
    return islice(cycle(bodies), plan.worker, None, plan.workers)
