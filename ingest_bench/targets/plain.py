"""What a server answers that has no indices, and that nobody can ask for more than its documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ingest_bench.errors import SpecError
from ingest_bench.model.target import Listens, Preparation

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest_bench.jvm.attach import Attached
    from ingest_bench.model.target import TargetOptions
    from ingest_bench.model.track import AdminRequest, Operation
    from ingest_bench.targets.http import Http


class Plain:
    """The part of a `Target` that such a server has in common with others."""

    name: str
    keeps_files: bool = False
    flush: Callable[[Sequence[Http], Sequence[Attached], Sequence[str]], None] | None = None
    """None: it keeps nothing in files, or cannot be told to."""
    jvm_stats: Callable[[Http], Any] | None = None
    """None: it has no API that tells of its JVM."""

    def listens(self, asked: TargetOptions) -> Listens:
        """On the usual port, within the usual time."""
        del asked
        return Listens()

    def prepare(self, asked: TargetOptions, indices: Sequence[str], mapping: Mapping[str, Any]) -> Preparation:
        """Nothing is asked of it before documents go there."""
        del asked, indices, mapping
        return Preparation()

    def track_request(self, asked: TargetOptions, operation: Operation, request: AdminRequest) -> AdminRequest:
        """SpecError: what a track says is for servers with indices."""
        del asked, request
        raise SpecError(
            f"load.track: {operation}: {self.name} has no indices; send the track's documents by --documents"
        )

    def ask(self, http: Http, request: AdminRequest) -> None:
        """Never: it prepares nothing, and takes no track."""
        raise AssertionError(f"{http.origin} is asked nothing of a track: {request}")

    def counters(self, nodes: Sequence[Http]) -> dict[str, Any]:
        """Nothing: it counts no socket reads."""
        del nodes
        return {}

    def read_back(self, nodes: Sequence[Http]) -> tuple[bytes, ...] | None:
        """Nothing by numbers of ours: its documents have none."""
        del nodes
        return None
