"""Pool of child processes that forge packets at the ends of links. Each takes a second to start: before the load."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ingest_bench import system

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ingest_bench.network.act.link import End

_MODULE = "ingest_bench.faults.forged_packets"


@dataclass(frozen=True, slots=True)
class Forgers:
    """Idle forgers by the end of a link where they are: its own address and its peer's."""

    idle: dict[tuple[str, str], list[system.Child]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def take(self, end: End) -> Iterator[system.Child]:
        """Yield an idle forger at that end, or a new one if there is none."""
        with self.lock:
            pool = self.idle.get(_make_key(end))
            forger = pool.pop() if pool else None
        if forger is None or pool is None:
            # It dies with our thread, and is killed after the block.
            with _start_forger(end) as child:
                child.read_line()
                yield child
            return
        # One that failed is not used again: its reply may still arrive.
        yield forger
        with self.lock:
            pool.append(forger)


@contextmanager
def start_forgers(ends: Iterable[End]) -> Iterator[Forgers]:
    """Start a forger at each of these ends, several where an end is repeated. Call it from the main thread."""
    with ExitStack() as stack:
        children = [(end, stack.enter_context(_start_forger(end))) for end in ends]
        forgers = Forgers()
        for end, child in children:
            child.read_line()
            forgers.idle.setdefault(_make_key(end), []).append(child)
        yield forgers


def _start_forger(end: End) -> system.Child:
    command = end.namespace.command(system.build_module_argv(_MODULE))
    return system.Child(command, name=f"forged packets at {end.address}")


def _make_key(end: End) -> tuple[str, str]:
    return (end.address, end.peer)
