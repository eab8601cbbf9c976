"""The named parts of a run, with how long each took."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ingest_bench.model.results import Stage


@dataclass(slots=True)
class Stages:
    """The named parts of a run with their durations; tells whoever watches when one begins."""

    tell: Callable[[str], None]
    done: list[Stage] = field(default_factory=list)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time what happens inside under that name."""
        self.tell(name)
        started = time.monotonic()
        try:
            yield
        finally:
            self.done.append(Stage(name=name, seconds=round(time.monotonic() - started, 3)))
