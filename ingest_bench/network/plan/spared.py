"""The SSH connections of our terminal, led past all that is done to an interface, and what counts their packets. Pure.

    leaving, arriving:  clsact ── first filter, one connection each ──▶ its own way, as if no other filter were there
                                          └─ a copy ──▶ ifb, which drops it (the filter has counted it)

The filters stand before any other one does, so it is known that they meet the connection's packets while nothing else
is changed yet. A mirror is the one action that counts and that every kernel has which can shape an interface at all:
u32 itself counts where it was built with CLS_U32_PERF, and `pass` needs act_gact. An ifb drops all that was not
redirected to it (drivers/net/ifb.c, ifb_xmit).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest_bench.ledger.steps import Action, Step
from ingest_bench.network.plan import commands, flows
from ingest_bench.network.plan.flows import SIDES, Side
from ingest_bench.network.plan.interface_plan import clsact, made, up

if TYPE_CHECKING:
    from ingest_bench.network.plan.interface_plan import Marks
    from ingest_bench.network.plan.interface_rules import Found

# Before those of the flows that are shaped.
_PRIORITIES = {"ip": 1, "ipv6": 2}
NEEDS = ("clsact", "u32", "mirred", "ifb")


def steps(found: Found, marks: Marks) -> tuple[Step, ...]:
    """What leads them past; nothing where the interface carries none."""
    if not found.ssh:
        return ()
    counted = marks.counted
    mirror = ("action", "mirred", "egress", "mirror", "dev", counted.word)
    filters = []
    for side in SIDES:
        for connection in found.ssh:
            protocol = flows.protocol(connection.flow)
            where = ("block", marks.block(side), "protocol", protocol, "prio", str(_PRIORITIES[protocol]), "u32")
            (match,) = flows.matches(connection.flow, side)
            do = Action(argv=("tc", "filter", "add", *where, *match, *mirror))
            filters.append(Step(name=f"spare ssh {side}", do=do))
    return (made("ifb ssh", counted), up("ifb ssh", counted), clsact(found, marks), *filters)


def show(marks: Marks, side: Side) -> tuple[str, ...]:
    """The argv that shows the filters of a side, with what they counted."""
    return ("tc", "-s", "-j", "filter", "show", "block", marks.block(side))


def packets(found: Found, listed: str) -> tuple[int, ...]:
    """How many packets of each connection its filter met, of what `show` said; a packet of TCP's is a segment."""
    met: dict[int, list[int]] = {priority: [] for priority in _PRIORITIES.values()}
    for entry in commands.parse_json("tc -j filter show", listed):
        for action in entry.get("options", {}).get("actions", ()):
            if entry["pref"] in met:
                met[entry["pref"]].append(int(action["stats"]["packets"]))
    # The kernel lists the filters of a priority in the order in which they were made.
    return tuple(met[_PRIORITIES[flows.protocol(connection.flow)]].pop(0) for connection in found.ssh)
