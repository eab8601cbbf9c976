"""Children that can forge packets at the ends of links at once: what takes them a second is done before the load."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ingest_bench import system

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ingest_bench.network.act.link import End

_MODULE = "ingest_bench.faults.links.forged_packets"


@dataclass(frozen=True, slots=True)
class Forgers:
    """Those that wait, by the end of a link where they are: its own address and its peer's."""

    waiting: dict[tuple[str, str], list[system.Child]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def at(self, end: End) -> Iterator[system.Child]:
        """One at that end, which waits for a line: one that was prepared, or a new one where none is left."""
        with self.lock:
            own = self.waiting.get(_key(end))
            prepared = own.pop() if own else None
        if prepared is None:
            # It dies with our thread, and is gone with the block.
            with _child(end) as child:
                child.line()
                yield child
            return
        assert own is not None  # noqa: S101 - it came from there
        # One that failed is not asked again: its answer may still come.
        yield prepared
        with self.lock:
            own.append(prepared)


@contextmanager
def prepared(ends: Iterable[End]) -> Iterator[Forgers]:
    """One that waits at each of these ends, two where an end is named twice. Call it from the main thread."""
    with ExitStack() as stack:
        children = [(end, stack.enter_context(_child(end))) for end in ends]
        made = Forgers()
        for end, child in children:
            child.line()
            made.waiting.setdefault(_key(end), []).append(child)
        yield made


def _child(end: End) -> system.Child:
    return system.Child(end.namespace.command(system.python(_MODULE)), name=f"forged packets at {end.address}")


def _key(end: End) -> tuple[str, str]:
    return (end.address, end.peer)
