"""Begin a fault on every link or node that it selects, and end it there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from ingest_bench.errors import RunFailed, SpecError, undo_on_error
from ingest_bench.faults.kind import ActiveFault, ChangeProfile, Node, Stage
from ingest_bench.model.experiment import Fault
from ingest_bench.model.network import LinkName, Profile
from ingest_bench.network.act.link import Link
from ingest_bench.network.measure import check
from ingest_bench.network.plan.link_plan import DIRECTIONS, Direction


def selects_link(fault: Fault, name: LinkName) -> bool:
    """Return True if a fault of links acts on that link."""
    return fault.link == name.kind and (fault.node is None or fault.node in name.nodes)


def select_links(fault: Fault, stage: Stage) -> Iterator[tuple[LinkName, Link]]:
    """Return the links that a fault acts on."""
    if stage.links is None:
        raise SpecError(f"fault {fault.kind} requires a link that ingest-bench made")
    return ((name, link) for name, link in stage.links.by_name.items() if selects_link(fault, name))


def select_directions(fault: Fault, name: LinkName) -> tuple[Direction, ...]:
    """Return the directions of a link that a fault acts on. Between nodes, the second one is at the server's end."""
    if fault.direction == "both":
        return DIRECTIONS
    if name.kind == "peers" and name.nodes[0] == fault.node:
        return tuple(direction for direction in DIRECTIONS if direction != fault.direction)
    return (fault.direction,)


def begin_on_links(
    fault: Fault,
    stage: Stage,
    begin: Callable[[ExitStack, Link, tuple[Direction, ...]], object],
    verify: Callable[[Link, tuple[Direction, ...]], str],
    describe_end: Callable[[], str] = lambda: "",
) -> ActiveFault:
    """Call `begin(stack, link, directions)` for each selected link; *stack* ends it. If one fails, all end.

    *verify* returns what the kernel shows of the effect, and raises RunFailed if it is missing. It is called at the
    begin and before the end. *describe_end* returns what is known after the end.
    """
    selected = [(name, link, select_directions(fault, name)) for name, link in select_links(fault, stage)]

    def verify_all() -> str:
        texts = []
        for name, link, directions in selected:
            try:
                texts.append(f"{name}: {verify(link, directions)}")
            except RunFailed as error:
                raise RunFailed(f"link {name} {error}") from None
        return "; ".join(texts)

    with ExitStack() as stack:
        for _, link, directions in selected:
            begin(stack, link, directions)
        effect, active = verify_all(), stack.pop_all()

    def end() -> str:
        # After an error the undo may fail as well, because its object is gone.
        with undo_on_error(active.close):
            verify_all()
        active.close()
        return describe_end()

    return ActiveFault(effect, end)


def begin_profile_change(fault: Fault, stage: Stage, change: ChangeProfile) -> ActiveFault:
    """Change the profile of each selected link."""
    return begin_on_links(
        fault,
        stage,
        lambda stack, link, directions: stack.enter_context(
            override_profile(link, lambda profile: change(profile, fault, directions))
        ),
        lambda link, _: check.describe_state(link),
    )


@contextmanager
def override_profile(link: Link, change: Callable[[Profile], Profile]) -> Iterator[Callable[[], None]]:
    """Change the profile of a link for the block.

    The yielded function applies *change* again, from any thread, because its result may vary over time.
    """

    def apply_overrides() -> None:
        with link.lock:
            profile = link.base_profile
            for override in link.overrides:
                profile = override(profile)
            link.set_profile(profile)

    with link.lock:
        if not link.overrides:
            link.base_profile = link.profile
        link.overrides.append(change)
    try:
        apply_overrides()
        yield apply_overrides
    finally:
        with link.lock:
            link.overrides.remove(change)
            apply_overrides()


def select_nodes(fault: Fault, stage: Stage) -> tuple[Node, ...]:
    """Return the nodes that a fault acts on."""
    if not stage.nodes:
        raise SpecError(f"fault {fault.kind} requires the server's process on this machine")
    return tuple(node for node in stage.nodes if fault.node in (None, node.number))


def begin_on_nodes(fault: Fault, stage: Stage, begin: Callable[[Node], ActiveFault]) -> ActiveFault:
    """Begin a fault on each selected node, one after the other; if one fails, end it on the others.

    All nodes end at the same time, even if one fails: a killed one may need the others to become ready.
    """
    active: dict[str, ActiveFault] = {}

    def end() -> str:
        with ThreadPoolExecutor(max(1, len(active))) as pool:
            ends = {name: pool.submit(fault.end) for name, fault in active.items()}
        return _join_texts({name: future.result() for name, future in ends.items()})

    # An end this early may fail because the fault had no effect yet, which is not the cause.
    with undo_on_error(end):
        for node in select_nodes(fault, stage):
            active[node.name] = begin(node)
    return ActiveFault(_join_texts({name: fault.effect for name, fault in active.items()}), end)


def _join_texts(texts: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {text}" for name, text in texts.items() if text)


def act_on_nodes(fault: Fault, stage: Stage, act: Callable[[Node], str]) -> ActiveFault:
    """Call *act* for each selected node that runs, one after the other; it returns its effect."""
    texts: dict[str, str] = {}
    for node in select_nodes(fault, stage):
        try:
            texts[node.name] = "skipped: it is down" if node.is_down else act(node)
        except RunFailed:
            if not node.is_down:
                raise
            texts[node.name] = "skipped: it was killed meanwhile"
    return ActiveFault(_join_texts(texts))
