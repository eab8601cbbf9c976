"""`reset`: each established connection of a link is reset at both ends. It has no length."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ingest_bench.errors import RunFailed
from ingest_bench.faults import each
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.links.forgers import Forgers
from ingest_bench.faults.stage import Stage
from ingest_bench.model.experiment import Fault
from ingest_bench.network.act.link import End, Link
from ingest_bench.network.plan.places import Direction

# How long a busy machine may take to reset what answers twice a second.
_LIMIT_S = 20


def reset(link: Link, forgers: Forgers) -> int:
    """How many connections from the client to the server there were; each is reset, at the client's end first.

    A connection that begins meanwhile is spared. RunFailed when one of them stands after all.
    """
    client, server = link.ends
    ports = _reset_at(client, forgers, among=())
    if ports:
        _reset_at(server, forgers, among=ports)
    return len(ports)


def _reset_at(end: End, forgers: Forgers, among: Sequence[int]) -> list[int]:
    task = {"reset": [end.device, end.address, end.peer, _LIMIT_S, [*among]]}
    with forgers.at(end) as child:
        answer = json.loads(child.ask(json.dumps(task), 2 * _LIMIT_S))
    ports: list[int] = answer["ports"]
    if answer["left"]:
        raise RunFailed(
            f"reset: {answer['left']} of {len(ports)} connections of {end.address} with {end.peer} still stand "
            f"after {_LIMIT_S} s of forged resets"
        )
    return ports


def _begin(fault: Fault, stage: Stage) -> Begun:
    down = {node.number: node.name for node in stage.nodes if node.is_down}
    links = dict(each.links(fault, stage))
    count = sum(reset(link, stage.forgers) for link in links.values())
    if not count and all(down.keys() & set(name.nodes) for name in links):
        return Begun(f"not done, {' and '.join(down.values())} is down")
    if not count:
        raise RunFailed("reset: there was no connection to reset")
    return Begun(f"{count} connections")


def _forged_at(_: Fault, link: Link, __: Sequence[Direction]) -> tuple[End, ...]:
    return link.ends


RESET = FaultKind(hits="link", begin=_begin, forged_at=_forged_at)
