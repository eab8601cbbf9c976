"""`trace`: the link's rate changes over time as it was recorded, in one direction or both. Then it has its own again.

A trace is a file of one of two forms. CSV: a line `seconds,rate` for each change, such as `0.5,12mbit`, from 0 on; the
last rate lasts as long as the longest. Mahimahi's (mm-link(1)): a line for each packet of 1500 bytes, the millisecond
at which it may leave; its rate is taken over each half second, and at the end with what is left of one. A trace that
is over begins again.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ingest_bench import units
from ingest_bench.errors import SpecError
from ingest_bench.faults import each
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.links.layers import other_state
from ingest_bench.faults.stage import Stage
from ingest_bench.inputs import files, records
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act.link import Link
from ingest_bench.network.measure import check
from ingest_bench.network.plan import places
from ingest_bench.network.plan.link_plan import impairment_of
from ingest_bench.network.plan.places import Direction

# mm-link(1): each line is an opportunity for a packet of 1500 bytes.
_PACKET_BYTES = 1500
# A change of a link takes some 50 ms on a busy machine.
_STEP_MS = 500
_STEP_NS = _STEP_MS * 10**6
# Where nothing may leave for a step. No bottleneck takes a rate of 0; at this one a packet takes longer than the step.
_SILENT_BPS = 64_000
_MOST_LINES = 1_000_000
# As long as the longest measurement.
_LONGEST_NS = 24 * 3600 * 10**9
_TOO_LONG = "a trace is at most 24 hours long"


@dataclass(frozen=True, slots=True)
class Step:
    """From that moment of the trace on the link has that rate."""

    at_ns: int
    rate_bps: int


def parse(text: str, name: str) -> tuple[tuple[Step, ...], int]:
    """The steps of a trace, and its length in nanoseconds; SpecError for what is none."""
    stripped = (line.strip() for line in text.splitlines())
    lines = [line for line in stripped if line and not line.startswith("#")]
    if not lines:
        raise SpecError(f"{name}: a trace has at least one line")
    if len(lines) > _MOST_LINES:
        raise SpecError(f"{name}: {len(lines):,} lines; a trace has at most {_MOST_LINES:,}")
    steps, length_ns = _csv(lines, name) if "," in lines[0] else _mahimahi(lines, name)
    fastest = max(steps, key=lambda step: step.rate_bps)
    # Of more than a link can have tc says in the middle of a run that it is illegal.
    records.check(Impairment(rate_bps=fastest.rate_bps), f"{name}, at {units.format_time(fastest.at_ns)}")
    return steps, length_ns


def _csv(lines: Sequence[str], name: str) -> tuple[tuple[Step, ...], int]:
    steps: list[Step] = []
    for number, line in enumerate(lines, 1):
        at, _, rate = line.partition(",")
        try:
            step = Step(round(float(at) * 1e9), units.parse_bps(rate.strip()))
        except (ValueError, OverflowError, SpecError) as error:
            said = f'"{line[:60]}" is no "seconds,rate" such as 0.5,12mbit ({error})'
            raise SpecError(f"{name}, line {number}: {said}") from None
        if step.at_ns != 0 if not steps else step.at_ns < steps[-1].at_ns + _STEP_NS:
            raise SpecError(f"{name}, line {number}: the seconds begin at 0 and grow by 0.5 at least from line to line")
        if step.at_ns > _LONGEST_NS:
            raise SpecError(f"{name}, line {number}: {_TOO_LONG}")
        steps.append(Step(step.at_ns, max(step.rate_bps, _SILENT_BPS)))
    longest_ns = max((later.at_ns - one.at_ns for one, later in itertools.pairwise(steps)), default=10**9)
    return tuple(steps), steps[-1].at_ns + longest_ns


def _mahimahi(lines: Sequence[str], name: str) -> tuple[tuple[Step, ...], int]:
    try:
        moments_ms = [int(line) for line in lines]
    except ValueError:
        raise SpecError(f"{name}: a trace is CSV (seconds,rate) or has a millisecond in each line") from None
    if moments_ms != sorted(moments_ms) or moments_ms[0] < 0 or moments_ms[-1] == 0:
        raise SpecError(f"{name}: the milliseconds of a trace never fall, and its last one is its length")
    if moments_ms[-1] > _LONGEST_NS // 10**6:
        raise SpecError(f"{name}: {_TOO_LONG}")
    length_ms = moments_ms[-1]
    # What is left at the end is part of the last step: it may be too short for one of its own.
    count = max(1, length_ms // _STEP_MS)
    packets = Counter(min(at_ms // _STEP_MS, count - 1) for at_ms in moments_ms)
    steps = []
    for number in range(count):
        lasts_ms = _STEP_MS if number < count - 1 else length_ms - number * _STEP_MS
        rate_bps = packets[number] * _PACKET_BYTES * 8 * 1000 // lasts_ms
        steps.append(Step(number * _STEP_NS, max(rate_bps, _SILENT_BPS)))
    # A shorter one has one rate, however often it begins again.
    return tuple(steps), length_ms * -(-_STEP_MS // length_ms) * 10**6


def moments(steps: Sequence[Step], length_ns: int) -> Iterator[Step]:
    """Its steps from its beginning on, again and again."""
    return (Step(turn * length_ns + step.at_ns, step.rate_bps) for turn in itertools.count() for step in steps)


@functools.cache
def _read(trace: str | None) -> tuple[tuple[Step, ...], int]:
    """Once: the trace that was checked is the one that is replayed, also where its file changes meanwhile."""
    assert trace is not None  # noqa: S101 - `_complaint` refused it
    try:
        return parse(files.text(Path(trace)), trace)
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"fault trace: {trace} cannot be read ({error})") from None


def _complaint(cell: Cell, fault: Fault) -> str:
    if fault.trace is None:
        return 'of which file? Add trace = "FILE"'
    profile = cell.network if fault.link == "clients" else cell.peers
    if profile is None:
        _read(fault.trace)
        return ""
    if profile.medium == "loopback":
        return 'a loopback link has one device for both directions; use medium = "veth"'
    # Between nodes each end may be the one that the direction leads to.
    ways = (fault.direction,) if fault.link == "clients" and fault.direction != "both" else places.DIRECTIONS
    without = [way for way in ways if impairment_of(profile, way).rate_bps is None]
    if without:
        return (
            f'a link of profile "{profile.name}" has no rate {" and ".join(without)} that could change; choose one '
            "that has it"
        )
    _read(fault.trace)
    return ""


def with_rate(profile: Profile, rate_bps: int, directions: Sequence[Direction]) -> Profile:
    """The profile with that rate in those directions."""

    def towards(direction: Direction) -> Impairment:
        found = impairment_of(profile, direction)
        return dataclasses.replace(found, rate_bps=rate_bps, burst_bytes=None) if direction in directions else found

    return dataclasses.replace(profile, to_server=towards("to-server"), to_client=towards("to-client"))


class Replay:
    """A trace on a link, step by step in a thread of its own."""

    def __init__(self, steps: Sequence[Step], length_ns: int, directions: Sequence[Direction]) -> None:
        self.rate_bps = steps[0].rate_bps
        self.done = 0
        """How many changes there were."""
        self._directions = directions
        self._moments = moments(steps, length_ns)
        self._over = threading.Event()
        self._error: Exception | None = None

    def changed(self, profile: Profile) -> Profile:
        """The profile at the rate of the moment."""
        return with_rate(profile, self.rate_bps, self._directions)

    def follow(self, settle: Callable[[], None]) -> None:
        """Change the rate at each moment, until it is over. A moment that is missed is left out."""
        began_ns = time.monotonic_ns()
        try:
            for step in self._moments:
                left_ns = began_ns + step.at_ns - time.monotonic_ns()
                if left_ns < -_STEP_NS:
                    continue
                if self._over.wait(max(0, left_ns) / 1e9):
                    return
                self.rate_bps = step.rate_bps
                settle()
                self.done += 1
        except Exception as error:  # noqa: BLE001 - `stop` raises it: nobody would see it in this thread
            self._error = error

    def stop(self, thread: threading.Thread) -> None:
        """Return when it has stopped; its error, where it had one."""
        self._over.set()
        thread.join()
        if self._error is not None:
            raise self._error


@contextmanager
def replayed(link: Link, steps: Sequence[Step], length_ns: int, directions: Sequence[Direction]) -> Iterator[Replay]:
    """The link with the rates of the trace in those directions."""
    replay = Replay(steps, length_ns, directions)
    with other_state(link, replay.changed) as settle:
        thread = threading.Thread(target=replay.follow, args=(settle,), name="trace", daemon=True)
        thread.start()
        try:
            yield replay
        finally:
            replay.stop(thread)


def _begin(fault: Fault, stage: Stage) -> Begun:
    steps, length_ns = _read(fault.trace)
    replays: list[Replay] = []

    @contextmanager
    def layer(link: Link, directions: Sequence[Direction]) -> Iterator[None]:
        with replayed(link, steps, length_ns, directions) as replay:
            replays.append(replay)
            yield

    begun = each.on_links(fault, stage, layer, lambda link, _: check.state(link))

    def end() -> str:
        begun.end()
        return f"{min(replay.done for replay in replays)} changes of the rate"

    return Begun(f"at first {begun.seen}", end)


def _slowest(profile: Profile, fault: Fault, directions: Sequence[Direction]) -> Profile:
    """A state that needs whatever any of its states needs."""
    steps, _ = _read(fault.trace)
    return with_rate(profile, min(step.rate_bps for step in steps), directions)


TRACE = FaultKind(
    hits="link",
    begin=_begin,
    lasts=True,
    takes=frozenset({"trace", "direction"}),
    complaint=_complaint,
    changed=_slowest,
)
