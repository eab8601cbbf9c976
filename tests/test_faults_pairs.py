"""Each two faults that last, of whatever families: what both together do to link, node, host and clients, and after.

The kinds are those of the table, so a new one is here by itself; where it needs a key, or where nothing below shows
what it does, the test says so. Kinds that begin by the same function are one layer with several names, such as the
clients that misbehave: they take turns. The pairs of two faults of a link, and of a process, are in
`test_faults_nested`.

A node is a process that does nothing. So most faults say at their end that nobody noticed them, which is no matter
here: what counts is what the kernel shows.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from test_dns_failure import question
from test_faults import Sleeper, lasting
from test_faults_nested import state as state_of_link
from test_throttle import rules

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.experiment import catalog
from ingest_bench.faults import FAULTS, checks, timeline
from ingest_bench.faults.clients.names import Names, names
from ingest_bench.faults.kind import Begun
from ingest_bench.faults.stage import Node, Stage
from ingest_bench.host import fragments, node_resources
from ingest_bench.host.node_resources import NodeResources
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import LinkName
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.network.act.link import Link, link
from ingest_bench.network.act.links import Links

pytestmark = pytest.mark.machine

Begin = Callable[[Fault, Stage], Begun]
NEEDS: frozenset[node_resources.Need] = frozenset({"cpu", "memory", "disk", "throttle", "syncs"})
SYNC_MS = 30
KEYS: dict[str, dict[str, Any]] = {
    "mtu-blackhole": {"mtu_bytes": 1400},
    "profile": {"profile": "ethernet-100m"},
    "throttle": {"rate_bps": 50_000_000},
    "cpu": {"cores": 0.5},
    "slow-disk": {"rate_bps": 800_000_000},
    "slow-fsync": {"delay_ns": SYNC_MS * 10**6},
    **{kind: {"connections": 2} for kind, its in FAULTS.items() if "connections" in its.takes},
}
# Of a node: how long a sync takes, in seconds, each time it is asked. Its file is in memory, so that no disk delays it.
SYNC = """
import os, sys, time
file = os.memfd_create("synced")
for _ in sys.stdin:
    began = time.monotonic()
    os.fsync(file)
    print(time.monotonic() - began, flush=True)
"""
# Of the clients: what the name server says, and which ports nobody may have. Its own port it has from the start.
CLIENT = """
import json, socket, sys
question, there = bytes.fromhex(sys.argv[1]), (sys.argv[2], int(sys.argv[3]))
asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asking.bind(("", 0))
asking.settimeout(60)
for _ in sys.stdin:
    asking.sendto(question, there)
    code = asking.recv(1500)[3] & 15
    print(json.dumps([code, open("/proc/sys/net/ipv4/ip_local_reserved_ports").read().strip()]), flush=True)
"""
# In place of one that takes a part of the memory.
IN_PIECES = """
import sys
print('{"taken": 9, "before": 9, "after": 1, "s": 0.1, "free": 99, "left": 1}', flush=True)
sys.stdin.read()
"""
# What a fault says at its end when nobody noticed it.
UNNOTICED = (
    "never wanted more",
    "was never at its limit",
    "neither read nor wrote",
    "synced no file",
    "none of its clients had a connection",
    "has no handshake",
)


def family(begin: Begin) -> str:
    return begin.__module__.split(".")[2]


def layers() -> dict[Begin, Iterator[str]]:
    """Each layer that lasts, with its kinds in turn."""
    found: dict[Begin, list[str]] = {}
    for name, kind in FAULTS.items():
        if kind.lasts:
            found.setdefault(kind.begin, []).append(name)
    return {begin: itertools.cycle(kinds) for begin, kinds in found.items()}


def pairs() -> list[tuple[str, str]]:
    """Each two layers that are not both of a link, or both of a process."""
    every, found = layers(), []
    for first, second in itertools.combinations(every, 2):
        if family(first) != family(second) or family(first) not in ("links", "processes"):
            found.append((next(every[first]), next(every[second])))
    return found


class Idle(Sleeper):
    """A node that does nothing, where the server of a link is, with its share of the machine."""

    def __init__(self, made: Link, share: NodeResources) -> None:
        self._argv = made.server.command(share.command(("cat",)))
        self.popen = self._started_there()

    def _started_there(self) -> subprocess.Popen[bytes]:
        popen = subprocess.Popen(self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert popen.stdin is not None
        assert popen.stdout is not None
        popen.stdin.write(b"ready\n")
        popen.stdin.flush()
        assert popen.stdout.readline() == b"ready\n"
        return popen

    def start_again(self, timeout_s: float) -> None:
        assert timeout_s == 60
        self.popen = self._started_there()


@dataclass
class World:
    """All that faults act on, and what the kernel shows of it."""

    made: Link
    share: NodeResources
    process: Idle
    known: Names
    stage: Stage
    syncs: system.Child
    client: system.Child

    def state(self) -> dict[Any, Any]:
        """What is there of any fault, whichever it is."""
        node, home = self.stage.nodes[0], self.stage.nodes[0].home
        code, reserved = json.loads(self.client.ask("?"))
        group, disk = self.share.group, self.share.disk
        assert group is not None
        assert disk is not None
        cpu, memory = group.places["cpu"], group.places["memory"]
        found: dict[Any, Any] = {
            **state_of_link(self.made),
            "down": node.is_down,
            "programs": sorted(programs()),
            "quota": text(cpu.folder, "cpu.cfs_quota_us", "cpu.max"),
            "limited": text(memory.folder, "memory.limit_in_bytes", "memory.high") not in ("max", NO_LIMIT),
            "full": os.statvfs(home).f_bavail == 0,
            "rules": rules(disk.device),
            "syncs wait": self.syncs_wait(),
            "name server": code,
            "reserved ports": reserved,
        }
        assert node.is_down == (self.process.popen.poll() is not None)
        if not node.is_down:
            most = resource.prlimit(self.process.jvm_pid, resource.RLIMIT_NOFILE)[0]
            found |= {"stands still": self.process.stands_still(), "few files": most < 100}
        return found

    def syncs_wait(self) -> bool:
        """One that is quick says that none waits; one that is slow may be so on a busy machine."""
        return all(float(self.syncs.ask("?")) * 1000 >= SYNC_MS for _ in range(5))


# What version 1 of cgroups shows where there is no limit (PAGE_COUNTER_MAX pages).
NO_LIMIT = str((2**63 - 1) // resource.getpagesize() * resource.getpagesize())


def text(folder: Path, version_1: str, version_2: str) -> str:
    path = folder / version_1
    return (path if path.exists() else folder / version_2).read_text().strip()


def programs() -> Iterator[str]:
    """Those that faults have started."""
    for listed in Path("/proc/self/task").glob("*/children"):
        for pid in listed.read_text().split():
            with contextlib.suppress(OSError):
                argv = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                own = [place for place, word in enumerate(argv) if word.endswith(("rude_clients.py", "fragments.py"))]
                if own:
                    yield " ".join(argv[own[0] : own[0] + 2])


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    try:
        node_resources.require(NEEDS)
    except MissingCapability as error:
        pytest.skip(f"needs root: {error}")
    monkeypatch.setenv("INGEST_BENCH_STATE", str(tmp_path / "state"))
    (tmp_path / "fragments.py").write_text(IN_PIECES)
    monkeypatch.setattr(fragments, "__file__", str(tmp_path / "fragments.py"))
    (tmp_path / "trace").write_text("0,20mbit\n")
    monkeypatch.setitem(KEYS, "trace", {"trace": str(tmp_path / "trace")})
    (tmp_path / "home").mkdir()
    ethernet = catalog.profile("ethernet")
    every = tuple(fault_of(kind) for kind, its in FAULTS.items() if its.lasts)
    cell = Cell(name="c", levels={}, network=ethernet, target=TargetOptions(), load=LoadOptions(), faults=every)
    checks.check(cell)
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(link(ethernet, later=tuple(checks.states(cell)[LinkName((1,))])))
        (share,) = stack.enter_context(node_resources.shares(NEEDS | checks.needs(cell), [tmp_path / "home"]))
        known = stack.enter_context(names(made.client, [Endpoint(made.server_address, 9200)]))
        resolver = known.places[0].resolver
        assert resolver is not None
        assert share.syncs is not None
        ask = question(known.places[0].endpoint.host, 1).hex()
        python = (sys.executable, "-S", "-c")
        syncs = system.Child((*share.syncs.command((*python, SYNC)),), name="syncs")
        stack.enter_context(syncs)
        asking = (*python, CLIENT, ask, resolver.host, str(resolver.port))
        client = stack.enter_context(system.Child(made.client.command(asking), name="client"))
        process = Idle(made, share)
        stack.callback(process.kill)
        node = Node(
            number=1,
            process=process,
            home=tmp_path / "home",
            jcmd=lambda *_: "",
            boot_limit_s=60,
            resources=share,
        )
        stage = Stage(links=Links(by_name={LinkName((1,)): made}), nodes=(node,), names=known)
        yield World(made, share, process, known, stage, syncs, client)


def fault_of(kind: str) -> Fault:
    return lasting(kind, **KEYS.get(kind, {}))


def end(begun: Begun) -> None:
    try:
        begun.end()
    except RunFailed as error:
        if not any(words in str(error) for words in UNNOTICED):
            raise


def together(base: dict[Any, Any], *alone: dict[Any, Any]) -> dict[Any, Any]:
    """What several do at once: each changes what it changes alone. A node that is down has no state of its own."""
    found = dict(base)
    for one in alone:
        for what, value in one.items():
            if base.get(what) != value:
                found[what] = sorted([*base["programs"], *found["programs"], *value]) if what == "programs" else value
    if found["down"]:
        for what in ("stands still", "few files"):
            found.pop(what, None)
    return found


@pytest.mark.nightly
@pytest.mark.netns
def test_each_two_faults_of_any_families_nest_and_cross(world: World) -> None:
    base, alone = world.state(), {}
    for kind in dict.fromkeys(itertools.chain.from_iterable(pairs())):
        begun = timeline.begin(fault_of(kind), world.stage)
        alone[kind] = world.state()
        end(begun)
        assert alone[kind] != base, f"{kind}: nothing shows it; add to `World.state` what does"
        assert world.state() == base, kind
    for first, second in pairs():
        both = together(base, alone[first], alone[second])
        # The first one ends before the second, begins again within it, and lasts longer than it.
        one, other = (timeline.begin(fault_of(kind), world.stage) for kind in (first, second))
        assert world.state() == both, (first, second)
        end(one)
        assert world.state() == together(base, alone[second]), (first, second)
        one = timeline.begin(fault_of(first), world.stage)
        assert world.state() == both, (first, second)
        end(other)
        assert world.state() == together(base, alone[first]), (first, second)
        end(one)
        assert world.state() == base, (first, second)
