"""`dns-failure`: the clients cannot look up the name of the server: a new connection fails, those that are open go on.

A load knows the addresses of its server from the start, and no failure of a name server would reach it. So in a cell
with this fault each node has a name, and each new connection of the load looks it up at a name server of ours, as a
client that remembers nothing does. The name server says SERVFAIL at once, or is silent: then a lookup takes until its
own time is over. Bind mounts over /etc/resolv.conf were rejected: what libc asks first, such as nscd or
systemd-resolved, is of the machine and knows nothing of them.
"""

from __future__ import annotations

from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Stage
from ingest_bench.model.experiment import Fault


def _begin(fault: Fault, stage: Stage) -> Begun:
    known = stage.names
    assert known is not None  # noqa: S101 - a cell with this fault has them
    before = known.counts()
    let_go = known.fail(fault)

    def end() -> str:
        failed = known.counts()["failed"] - before["failed"]
        let_go()
        # No failure of the run: that nobody notices, as long as connections stay open, is a result.
        return f"{failed} lookups failed" if failed else "nobody looked the name up"

    return Begun("", end)


DNS_FAILURE = FaultKind(hits="server", begin=_begin, lasts=True, takes=frozenset({"resolver"}), needs_names=True)
