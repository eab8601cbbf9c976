"""The names of the nodes of a server, and the name server of ours that the load asks for them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ingest_bench import system
from ingest_bench.errors import undone
from ingest_bench.faults.clients import name_server
from ingest_bench.model.experiment import Fault
from ingest_bench.model.target import Endpoint, Place
from ingest_bench.network.act.sandbox import Namespace

_ADDRESS = "127.0.0.1"


@dataclass(slots=True)
class Names:
    """The names of the nodes and who knows them; of several faults that last the latest counts."""

    child: system.Child
    places: tuple[Place, ...]
    """Each node by its name."""
    lasting: list[Fault] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def fail(self, fault: Fault) -> Callable[[], None]:
        """The name server fails as that fault says; what is returned ends it."""

        def end() -> None:
            with self.lock:
                self.lasting.remove(fault)
                self._tell()

        with self.lock, undone(end):
            self.lasting.append(fault)
            self._tell()
        return end

    def counts(self) -> dict[str, int]:
        """How many questions it has "answered" so far, and how many it "failed"."""
        with self.lock:
            return self._tell()

    def _tell(self) -> dict[str, int]:
        state = self.lasting[-1].resolver if self.lasting else "answer"
        counts: dict[str, int] = json.loads(self.child.ask(state))
        return counts


@contextmanager
def names(clients: Namespace, endpoints: Sequence[Endpoint]) -> Iterator[Names]:
    """A name for each node, that of the first one being node-1. Call it from the main thread."""
    own = [Endpoint(f"node-{number}.ingest-bench.test", one.port) for number, one in enumerate(endpoints, 1)]
    argv = [f"{name.host}={one.host}" for name, one in zip(own, endpoints, strict=True)]
    command = clients.command(system.script(name_server.__file__, _ADDRESS, *argv))
    with system.Child(command, name="dns-failure: the name server") as child:
        resolver = Endpoint(_ADDRESS, int(child.line()))
        yield Names(child, tuple(Place(endpoint=name, resolver=resolver) for name in own))
