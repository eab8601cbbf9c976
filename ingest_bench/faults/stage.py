"""What faults act on: the links of a run and the nodes of its server, each with the faults that last on it now.

A link or a node has the state of all faults that last: what several of them do begins with the first one and ends with
the last one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from ingest_bench.errors import undone
from ingest_bench.faults.clients.names import Names
from ingest_bench.faults.links.forgers import Forgers
from ingest_bench.host.node_resources import NodeResources
from ingest_bench.model.target import Endpoint
from ingest_bench.network.act.links import Links

Act = Callable[[], object]
What = TypeVar("What", bound=Hashable)


class Server(Protocol):
    """The process of a node: `jvm.process.ServerProcess`."""

    @property
    def jvm_pid(self) -> int:
        """The JVM that runs now."""

    @property
    def listen(self) -> Endpoint:
        """Where it takes connections."""

    def kill(self) -> None:
        """End it at once; nothing of it is left."""

    def start_again(self, timeout_s: float) -> None:
        """Start it where it was; RunFailed unless it is ready in time."""


def hold(counts: Counter[What], what: What, begin: Act, end: Act) -> Act:
    """Begin it unless it lasts already; what is returned ends it unless another fault holds it.

    A beginning that fails is ended, too: what it set before it found that it did not have it is set back.
    """
    if not counts[what]:
        with undone(end):
            begin()
    counts[what] += 1

    def let_go() -> None:
        counts[what] -= 1
        if not counts[what]:
            end()

    return let_go


@dataclass(slots=True)
class Node:
    """A node of the server. While it is killed nothing can be done to it, and it has no process."""

    number: int
    process: Server
    home: Path
    jcmd: Callable[[int, Sequence[str]], str]
    """What the JVM of that pid answered to a command of jcmd."""
    boot_limit_s: float
    resources: NodeResources = field(default_factory=NodeResources)
    """What it has of the machine for itself, where faults need that."""
    counts: Counter[Hashable] = field(default_factory=Counter)
    """How many faults do each thing to it now."""
    is_down: bool = False
    lasting: dict[Hashable, tuple[Act, Act]] = field(default_factory=dict)
    """How each fault that lasts begins on a process that is new, and how it ends."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Of what lasts on it; held for a moment only."""
    starting: threading.Lock = field(default_factory=threading.Lock)
    """Held while it starts: who would kill it waits."""

    @property
    def name(self) -> str:
        """As errors call it."""
        return f"node {self.number}"

    def ask(self, *command: str) -> str:
        """What its JVM answered to a command of jcmd."""
        return self.jcmd(self.process.jvm_pid, command)

    def hold(self, what: Hashable, begin: Act, end: Act) -> Act:
        """As the function `hold`, of its process: a process that is started meanwhile has it too."""

        def begin_and_keep() -> None:
            self.lasting[what] = (begin, end)
            if not self.is_down:
                begin()

        def forget_and_end() -> None:
            _, first_end = self.lasting.pop(what)
            if not self.is_down:
                first_end()

        with self.lock:
            held = hold(self.counts, what, begin_and_keep, forget_and_end)

        def let_go() -> None:
            with self.lock:
                held()

        return let_go


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Everything that faults act on."""

    links: Links | None = None
    forgers: Forgers = field(default_factory=Forgers)
    """Children that were prepared at ends of its links."""
    nodes: tuple[Node, ...] = ()
    names: Names | None = None
    """The names of the nodes, where faults need that."""
    flush: Act | None = None
    """Returns when the nodes have written to files what they have in memory."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set when the load is over: what has not begun by then gives up."""
