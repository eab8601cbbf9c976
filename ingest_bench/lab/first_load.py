"""The first load of a run: its workers prepare it while the server boots, for they take a second or two."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from ingest_bench import targets
from ingest_bench.lab import steps
from ingest_bench.lab.server.running_server import Enter
from ingest_bench.lab.steps.parts import Ask, Procedure, Send
from ingest_bench.load import supervisor
from ingest_bench.load.fleet.roster import Fleet
from ingest_bench.load.supervisor import LoadProcess
from ingest_bench.model.experiment import Cell
from ingest_bench.model.target import Place


class FirstLoad:
    """What is done with a server of ours, known before it runs, and the first load of it."""

    def __init__(self, cell: Cell, out: Path, fleet: Fleet, *, tells_figures: bool) -> None:
        self._cell, self._out, self._fleet, self._tells_figures = cell, out, fleet, tells_figures
        self._sender: LoadProcess | None = None
        self.procedure: Procedure | None = None
        """None until it is known where the server will be."""

    @contextlib.contextmanager
    def prepared(self, place: Place, enter: Enter) -> Iterator[Callable[[], None]]:
        """Its workers prepare it, and are gone after the block. It gives what they are heard by, again and again.

        Several loads at a time have masters of their own, and machines that joined wait until they are asked.
        """
        self.procedure = steps.of(self._cell, place, self._out, may_delete=True, target=targets.of(self._cell.target))
        first = next((part for part in self.procedure.parts if not isinstance(part, Ask)), None)
        if self._fleet.is_far or not isinstance(first, Send):
            yield lambda: None
            return
        self._sender = sender = supervisor.start(first.plan, enter, self._fleet, tells_figures=self._tells_figures)
        try:
            yield sender.hear
        finally:
            sender.stop()

    def taken(self) -> LoadProcess | None:
        """The load, once; None where it was not prepared, and for all that come after it."""
        sender, self._sender = self._sender, None
        return sender
