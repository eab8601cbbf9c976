"""Kinds of faults, and the stage that they act on: the links of a run and the nodes of its server.

A link or a node has the state of all active faults. An effect that several faults share begins with the first and ends
with the last.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from ingest_bench import system
from ingest_bench.errors import undo_on_error
from ingest_bench.host.node_resources import Need, NodeResources
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.network import Profile
from ingest_bench.model.target import Endpoint
from ingest_bench.network.act.link import Links
from ingest_bench.network.plan.link_plan import Direction

if TYPE_CHECKING:
    from ingest_bench.faults.new_connections import NodeNames

Act = Callable[[], object]
EndFault = Callable[[], str | None]
"""Ends a fault and may return its effect as text."""
ChangeProfile = Callable[[Profile, Fault, Sequence[Direction]], Profile]
Forgers = Mapping[tuple[str, str], system.Child]
"""Programs that forge packets, by the address of the end where they run and that of its peer."""
Effect = TypeVar("Effect", bound=Hashable)


@dataclass(frozen=True, slots=True)
class ActiveFault:
    """A fault that has begun."""

    effect: str = ""
    """What was measured at its begin, for the report."""
    end_fault: EndFault = lambda: None

    def end(self) -> str:
        """End it and return its effect as measured at the end, or ""."""
        return self.end_fault() or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """One kind of fault: one line in `FAULTS`."""

    scope: Literal["link", "node", "server"]
    begin: Callable[[Fault, Stage], ActiveFault]
    """Raises RunFailed if the fault has no effect or cannot begin."""
    has_duration: bool = True
    """True: it requires the key `for`. False: it is over when it has begun."""
    keys: frozenset[str] = frozenset()
    """Fields of `Fault` that it uses of those that not every fault has: see `checks`."""
    needs: Callable[[Fault], frozenset[Need]] = lambda _fault: frozenset()
    """Resources that each node needs for it."""
    needs_http: bool = False
    """It requires a server that speaks HTTP."""
    needs_names: bool = False
    """The load must resolve the server's name for each new connection."""
    is_slow_to_begin: bool = False
    """Its begin may take seconds: its duration counts from the end of its begin."""
    prepare: Callable[[Fault, Stage], AbstractContextManager[Stage]] = lambda _fault, stage: nullcontext(stage)
    """Entered before the first begin, for all of them: yields the stage with what would make each begin late."""
    find_error: Callable[[Cell, Fault], str] = lambda _cell, _fault: ""
    """Returns why it cannot happen in a cell; "" if it can."""
    change_profile: ChangeProfile | None = None
    """Returns the profile of a link under this fault; None: the profile does not change."""


class Server(Protocol):
    """The process of a node: `jvm.process.ServerProcess`."""

    @property
    def jvm_pid(self) -> int:
        """Pid of the present JVM."""

    @property
    def listen(self) -> Endpoint:
        """The endpoint that accepts connections."""

    def kill(self) -> None:
        """Kill it and reap all of its processes."""

    def restart(self, timeout_s: float) -> None:
        """Restart it; raise RunFailed unless it is ready in time."""


@dataclass(slots=True)
class Node:
    """A node of the server. While it is killed it has no process, and faults skip it."""

    number: int
    process: Server
    home: Path
    jcmd: Callable[[int, Sequence[str]], str]
    """Runs a jcmd command in the JVM of a pid and returns its output."""
    boot_limit_s: float
    resources: NodeResources = field(default_factory=NodeResources)
    counts: Counter[Hashable] = field(default_factory=Counter)
    """Number of active faults by effect."""
    is_down: bool = False
    active: dict[Hashable, tuple[Act, Act]] = field(default_factory=dict)
    """Begin and end of each active effect on the process, so that a restarted process gets it too."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Guards the fields above; held for a moment only."""
    starting: threading.Lock = field(default_factory=threading.Lock)
    """Held while the node starts: a kill waits for it."""

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"node {self.number}"

    def run_jcmd(self, *command: str) -> str:
        """Run a jcmd command in its JVM and return the output."""
        return self.jcmd(self.process.jvm_pid, command)

    def hold(self, effect: Hashable, begin: Act, end: Act) -> Callable[[], None]:
        """Hold an effect on its process as `hold_effect` does; a process that is restarted meanwhile gets it too."""

        def begin_and_keep() -> None:
            self.active[effect] = (begin, end)
            if not self.is_down:
                begin()

        def forget_and_end() -> None:
            _, first_end = self.active.pop(effect)
            if not self.is_down:
                first_end()

        return hold_effect(self.lock, self.counts, effect, begin_and_keep, forget_and_end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Everything that the faults of a run act on."""

    links: Links | None = None
    forgers: Forgers = field(default_factory=dict)
    """Those of one fault, which it has prepared."""
    nodes: tuple[Node, ...] = ()
    names: NodeNames | None = None
    """Names of the nodes, if a fault needs them."""
    flush: Act | None = None
    """Returns when the nodes have written their in-memory data to files."""
    load_ended: threading.Event = field(default_factory=threading.Event)
    """Set at the end of the load: a fault that has not begun by then gives up."""


def hold_effect(
    lock: threading.RLock, counts: Counter[Effect], effect: Effect, begin: Act, end: Act
) -> Callable[[], None]:
    """Begin an effect unless it is active; return the function that ends it unless another fault holds it.

    Faults run in threads: *lock* is held during begin and end. If *begin* fails, *end* is called: it must restore what
    *begin* changed in part.
    """
    with lock:
        if not counts[effect]:
            with undo_on_error(end):
                begin()
        counts[effect] += 1

    def release() -> None:
        with lock:
            counts[effect] -= 1
            if not counts[effect]:
                end()

    return release
