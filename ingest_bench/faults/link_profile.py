"""Faults that change the profile of a link: `profile`, `throttle` and `trace`. At the end it has its own again.

`profile`: another network profile. `throttle`: another rate or delay. `trace`: the rate follows a recorded trace, in
one direction or both, and repeats. A trace file has one of two formats:

| format | line | rate |
|---|---|---|
| CSV | `seconds,rate`, such as `0.5,12mbit`, from 0 on | constant until the next; the last as long as the longest |
| Mahimahi (mm-link(1)) | the millisecond at which a packet of 1500 bytes may leave | mean of each half second |
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingest_bench import units
from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog
from ingest_bench.experiment.contradictions import check_profile
from ingest_bench.faults.apply import begin_on_links, begin_profile_change, override_profile
from ingest_bench.faults.kind import ActiveFault, FaultKind, Stage
from ingest_bench.inputs import files, records
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act.link import Link
from ingest_bench.network.measure import check
from ingest_bench.network.plan.link_plan import DIRECTIONS, Direction, impairment_of

_LOOPBACK_ERROR = 'a loopback link has one device for both directions. Use medium = "veth".'


def _replace_profile(_profile: Profile, fault: Fault, _directions: Sequence[Direction]) -> Profile:
    assert fault.profile is not None  # noqa: S101 - `_find_profile_error` refused it
    return catalog.load_profile(fault.profile, {})


def _find_profile_error(cell: Cell, fault: Fault) -> str:
    if fault.profile is None:
        return 'requires profile = "wan-50ms"'
    if cell.network is None or catalog.load_profile(fault.profile, {}).medium == cell.network.medium:
        return ""
    return (
        f'a link of profile "{cell.network.name}" cannot change to "{fault.profile}", because loopback and veth are '
        "different devices"
    )


PROFILE = FaultKind(
    scope="link",
    begin=lambda fault, stage: begin_profile_change(fault, stage, _replace_profile),
    keys=frozenset({"profile"}),
    find_error=_find_profile_error,
    change_profile=_replace_profile,
)


def _change_impairments(profile: Profile, directions: Iterable[Direction], **changes: Any) -> Profile:
    """Return the profile with other values of its impairments in these directions."""
    impairments: dict[str, Any] = {
        direction.replace("-", "_"): dataclasses.replace(impairment_of(profile, direction), **changes)
        for direction in directions
    }
    return dataclasses.replace(profile, **impairments)


def _throttle(profile: Profile, fault: Fault, _directions: Sequence[Direction]) -> Profile:
    throttled = profile
    if fault.rate_bps is not None:
        throttled = set_rate(throttled, fault.rate_bps, DIRECTIONS)
    if fault.delay_ns is not None:
        throttled = _change_impairments(throttled, DIRECTIONS, delay_ns=fault.delay_ns)
    return check_profile(throttled, f'fault {fault.kind} of a link of profile "{profile.name}"')


def _find_throttle_error(cell: Cell, fault: Fault) -> str:
    if fault.rate_bps is None and fault.delay_ns is None:
        return 'requires rate = "10mbit" or delay = "50ms"'
    return _LOOPBACK_ERROR if cell.network is not None and cell.network.medium == "loopback" else ""


THROTTLE = FaultKind(
    scope="link",
    begin=lambda fault, stage: begin_profile_change(fault, stage, _throttle),
    keys=frozenset({"rate_bps", "delay_ns"}),
    find_error=_find_throttle_error,
    change_profile=_throttle,
)

# mm-link(1): each line is an opportunity for a packet of 1500 bytes.
_PACKET_BYTES = 1500
# A change of a link takes some 50 ms on a busy machine.
_STEP_MS = 500
_STEP_NS = _STEP_MS * 10**6
# Replaces a rate of 0, which the kernel does not accept; a packet then takes longer than a step.
_MIN_BPS = 64_000
_MAX_LINES = 1_000_000
# The longest measurement.
_MAX_NS = 24 * 3600 * 10**9
_TOO_LONG = "a trace is at most 24 hours long"


@dataclass(frozen=True, slots=True)
class RateChange:
    """A moment of the trace from which on the link has a rate."""

    at_ns: int
    rate_bps: int


def parse_trace(text: str, name: str) -> tuple[tuple[RateChange, ...], int]:
    """Return the rate changes of a trace and its duration in nanoseconds; raise SpecError if it is not a trace."""
    stripped = (line.strip() for line in text.splitlines())
    lines = [line for line in stripped if line and not line.startswith("#")]
    if not lines:
        raise SpecError(f"{name}: a trace has at least one line")
    if len(lines) > _MAX_LINES:
        raise SpecError(f"{name}: {len(lines):,} lines; a trace has at most {_MAX_LINES:,}")
    changes, duration_ns = _parse_csv(lines, name) if "," in lines[0] else _parse_mahimahi(lines, name)
    fastest = max(changes, key=lambda change: change.rate_bps)
    # Without this check, tc would reject the rate in the middle of a run.
    records.check(Impairment(rate_bps=fastest.rate_bps), f"{name}, at {units.format_time(fastest.at_ns)}")
    return changes, duration_ns


def _parse_csv(lines: Sequence[str], name: str) -> tuple[tuple[RateChange, ...], int]:
    changes: list[RateChange] = []
    for number, line in enumerate(lines, 1):
        at, _, rate = line.partition(",")
        try:
            change = RateChange(round(float(at) * 1e9), units.parse_bps(rate.strip()))
        except (ValueError, OverflowError, SpecError) as error:
            problem = f'"{line[:60]}" is not "seconds,rate" such as 0.5,12mbit ({error})'
            raise SpecError(f"{name}, line {number}: {problem}") from None
        if change.at_ns != 0 if not changes else change.at_ns < changes[-1].at_ns + _STEP_NS:
            raise SpecError(f"{name}, line {number}: the seconds must begin at 0 and grow by at least 0.5 per line")
        if change.at_ns > _MAX_NS:
            raise SpecError(f"{name}, line {number}: {_TOO_LONG}")
        changes.append(RateChange(change.at_ns, max(change.rate_bps, _MIN_BPS)))
    longest_ns = max((later.at_ns - change.at_ns for change, later in itertools.pairwise(changes)), default=10**9)
    return tuple(changes), changes[-1].at_ns + longest_ns


def _parse_mahimahi(lines: Sequence[str], name: str) -> tuple[tuple[RateChange, ...], int]:
    try:
        moments_ms = [int(line) for line in lines]
    except ValueError:
        raise SpecError(f"{name}: a trace is CSV (seconds,rate) or has a millisecond in each line") from None
    if moments_ms != sorted(moments_ms) or moments_ms[0] < 0 or moments_ms[-1] == 0:
        raise SpecError(f"{name}: the milliseconds of a trace must not fall, and the last one is its duration")
    if moments_ms[-1] > _MAX_NS // 10**6:
        raise SpecError(f"{name}: {_TOO_LONG}")
    duration_ms = moments_ms[-1]
    # The remainder at the end belongs to the last step, because it may be too short for its own.
    count = max(1, duration_ms // _STEP_MS)
    packets = Counter(min(at_ms // _STEP_MS, count - 1) for at_ms in moments_ms)
    changes = []
    for number in range(count):
        step_ms = _STEP_MS if number < count - 1 else duration_ms - number * _STEP_MS
        rate_bps = packets[number] * _PACKET_BYTES * 8 * 1000 // step_ms
        changes.append(RateChange(number * _STEP_NS, max(rate_bps, _MIN_BPS)))
    # A trace shorter than a step is repeated within it, at one rate.
    return tuple(changes), duration_ms * -(-_STEP_MS // duration_ms) * 10**6


def repeat_trace(changes: Sequence[RateChange], duration_ns: int) -> Iterator[RateChange]:
    """Yield the changes of a trace that repeats forever."""
    return (
        RateChange(turn * duration_ns + change.at_ns, change.rate_bps)
        for turn in itertools.count()
        for change in changes
    )


@functools.cache
def _read_trace(path: str | None) -> tuple[tuple[RateChange, ...], int]:
    """Read a trace once: the trace that was checked is replayed, even if its file changes meanwhile."""
    assert path is not None  # noqa: S101 - `_find_trace_error` refused it
    return parse_trace(files.read_user_text(Path(path), f"fault trace: {path}"), path)


def _find_trace_error(cell: Cell, fault: Fault) -> str:
    if fault.trace is None:
        return 'requires trace = "FILE"'
    profile = cell.network if fault.link == "clients" else cell.peers
    if profile is not None:
        if profile.medium == "loopback":
            return _LOOPBACK_ERROR
        # Between nodes, either end may be the receiver of the direction.
        directions = (fault.direction,) if fault.link == "clients" and fault.direction != "both" else DIRECTIONS
        unlimited = [direction for direction in directions if impairment_of(profile, direction).rate_bps is None]
        if unlimited:
            return f'profile "{profile.name}" has no rate {" and ".join(unlimited)}. Choose one that has a rate.'
    _read_trace(fault.trace)
    return ""


def set_rate(profile: Profile, rate_bps: int, directions: Iterable[Direction]) -> Profile:
    """Return the profile with another rate in these directions."""
    return _change_impairments(profile, directions, rate_bps=rate_bps, burst_bytes=None)


@contextmanager
def replay_trace(
    link: Link, changes: Sequence[RateChange], duration_ns: int, directions: Sequence[Direction], counts: list[int]
) -> Iterator[None]:
    """Replay a trace on a link for the block, in a thread; then append the number of rate changes to *counts*."""
    present_bps = changes[0].rate_bps
    stopped = threading.Event()

    def run(apply_rate: Callable[[], None]) -> int:
        """Change the rate at each moment until the end. A moment that is missed is skipped."""
        nonlocal present_bps
        count, start_ns = 0, time.monotonic_ns()
        for change in repeat_trace(changes, duration_ns):
            left_ns = start_ns + change.at_ns - time.monotonic_ns()
            if left_ns < -_STEP_NS:
                continue
            if stopped.wait(max(0, left_ns) / 1e9):
                break
            present_bps = change.rate_bps
            apply_rate()
            count += 1
        return count

    with (
        override_profile(link, lambda profile: set_rate(profile, present_bps, directions)) as apply_rate,
        ThreadPoolExecutor(1, thread_name_prefix="trace") as pool,
    ):
        replay = pool.submit(run, apply_rate)
        try:
            yield
        finally:
            stopped.set()
        counts.append(replay.result())


def _begin_trace(fault: Fault, stage: Stage) -> ActiveFault:
    changes, duration_ns = _read_trace(fault.trace)
    counts: list[int] = []
    active = begin_on_links(
        fault,
        stage,
        lambda stack, link, directions: stack.enter_context(
            replay_trace(link, changes, duration_ns, directions, counts)
        ),
        lambda link, _: check.describe_state(link),
        lambda: f"{min(counts)} changes of the rate",
    )
    return dataclasses.replace(active, effect=f"at first {active.effect}")


def _set_slowest_rate(profile: Profile, fault: Fault, directions: Sequence[Direction]) -> Profile:
    """Return a profile that requires everything that any rate of the trace requires."""
    changes, _ = _read_trace(fault.trace)
    return set_rate(profile, min(change.rate_bps for change in changes), directions)


TRACE = FaultKind(
    scope="link",
    begin=_begin_trace,
    keys=frozenset({"trace", "direction"}),
    find_error=_find_trace_error,
    change_profile=_set_slowest_rate,
)
