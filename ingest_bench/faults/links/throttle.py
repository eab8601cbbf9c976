"""`throttle`: the link has another rate or delay, and all else as before. After its end it has its own again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ingest_bench.experiment.contradictions import consistent
from ingest_bench.faults import each
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Stage
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.plan.places import Direction


def _changed(profile: Profile, fault: Fault, _directions: Sequence[Direction]) -> Profile:
    def throttled(impairment: Impairment) -> Impairment:
        found = impairment
        if fault.rate_bps is not None:
            found = dataclasses.replace(found, rate_bps=fault.rate_bps, burst_bytes=None)
        return found if fault.delay_ns is None else dataclasses.replace(found, delay_ns=fault.delay_ns)

    found = dataclasses.replace(profile, to_server=throttled(profile.to_server), to_client=throttled(profile.to_client))
    return consistent(found, f'fault {fault.kind} of a link of profile "{profile.name}"')


def _complaint(cell: Cell, fault: Fault) -> str:
    if fault.rate_bps is None and fault.delay_ns is None:
        return 'to what? Add rate = "10mbit" or delay = "50ms"'
    if cell.network is not None and cell.network.medium == "loopback":
        return 'a loopback link has one device for both directions; use medium = "veth"'
    return ""


def _begin(fault: Fault, stage: Stage) -> Begun:
    return each.in_other_state(fault, stage, _changed)


THROTTLE = FaultKind(
    hits="link",
    begin=_begin,
    lasts=True,
    takes=frozenset({"rate_bps", "delay_ns"}),
    complaint=_complaint,
    changed=_changed,
)
