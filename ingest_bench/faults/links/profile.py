"""`profile`: the link has the state of another profile. After its end it has its own again."""

from __future__ import annotations

from collections.abc import Sequence

from ingest_bench.experiment import catalog
from ingest_bench.faults import each
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Stage
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.network import Profile
from ingest_bench.network.plan.places import Direction


def _changed(_profile: Profile, fault: Fault, _directions: Sequence[Direction]) -> Profile:
    assert fault.profile is not None  # noqa: S101 - `checks.check` refused it
    return catalog.profile(fault.profile, {})


def _complaint(cell: Cell, fault: Fault) -> str:
    if fault.profile is None:
        return 'which one? Add profile = "wan-50ms"'
    if cell.network is None or catalog.profile(fault.profile, {}).medium == cell.network.medium:
        return ""
    return (
        f'a link of profile "{cell.network.name}" cannot turn into "{fault.profile}"; loopback and veth are different '
        "devices"
    )


def _begin(fault: Fault, stage: Stage) -> Begun:
    return each.in_other_state(fault, stage, _changed)


PROFILE = FaultKind(
    hits="link",
    begin=_begin,
    lasts=True,
    takes=frozenset({"profile"}),
    complaint=_complaint,
    changed=_changed,
)
