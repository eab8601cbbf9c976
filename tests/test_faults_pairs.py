"""Every pair of faults, nested and crossing: what both do together to link, node, host and clients, and after.

The kinds are those of the table, so a new one is included automatically. The test fails if it needs a key, or if its
effect is not part of `World.read_state`. Kinds with the same begin function share one effect, such as the clients that
misbehave: they take turns.

The node's process does nothing, so most faults fail at their end because they had no effect. That is accepted here: the
test compares what the kernel shows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import re
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fault_lab import NodeProcess, build_query, make_cell, make_fault, make_links_stage, make_stage, open_link_for
from test_slow_disk import list_limits

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.experiment import catalog
from ingest_bench.faults import FAULTS, checks, timeline
from ingest_bench.faults.kind import ActiveFault, Stage
from ingest_bench.faults.new_connections import serve_names
from ingest_bench.host import fragments, node_resources
from ingest_bench.host.node_resources import NodeResources
from ingest_bench.model.experiment import Fault
from ingest_bench.model.target import Endpoint
from ingest_bench.network.act.link import Link

pytestmark = pytest.mark.machine

Begin = Callable[[Fault, Stage], ActiveFault]
State = dict[Any, Any]
NEEDS: frozenset[node_resources.Need] = frozenset({"cpu", "memory", "disk", "throttle", "syncs"})
SYNC_MS = 30
KEYS: dict[str, dict[str, Any]] = {
    "mtu-blackhole": {"mtu_bytes": 1400},
    "profile": {"profile": "ethernet-100m"},
    "throttle": {"rate_bps": 50_000_000},
    "cpu": {"cores": 0.5},
    "slow-disk": {"rate_bps": 800_000_000},
    "slow-fsync": {"delay_ns": SYNC_MS * 10**6},
    **{name: {"connections": 2} for name, kind in FAULTS.items() if "connections" in kind.keys},
}
# In the node: prints the seconds of a sync for each line. Its file is in memory, so that no disk delays it.
SYNCER = """
import os, sys, time
file = os.memfd_create("synced")
for _ in sys.stdin:
    start = time.monotonic()
    os.fsync(file)
    print(time.monotonic() - start, flush=True)
"""
# In the clients' namespace: prints the name server's code and the reserved ports for each line. It has its own port
# from the start.
CLIENT = """
import json, socket, sys
query, server = bytes.fromhex(sys.argv[1]), (sys.argv[2], int(sys.argv[3]))
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.bind(("", 0))
client.settimeout(60)
for _ in sys.stdin:
    client.sendto(query, server)
    code = client.recv(1500)[3] & 15
    print(json.dumps([code, open("/proc/sys/net/ipv4/ip_local_reserved_ports").read().strip()]), flush=True)
"""
# Of a device: receivers of frames, filters, and queues.
SHOW = """
ip -j neigh show dev "$1"; printf '\\n--\\n'
tc filter show dev "$1" ingress; printf '\\n--\\n'
tc -j qdisc show dev "$1"
"""
# Replaces the program that takes a part of the memory.
FAKE_FRAGMENTS = """
import json, sys
names = ("taken_bytes", "before_bytes", "after_bytes", "duration_s", "free_bytes", "min_free_bytes")
print(json.dumps(dict(zip(names, (9, 9, 1, 0.1, 99, 1)))), flush=True)
sys.stdin.read()
"""
# Errors of faults that had no effect on the idle node.
WITHOUT_EFFECT = (
    "never wanted more",
    "never reached its limit",
    "neither read nor wrote",
    "made no sync call",
    "none of its clients had a connection",
    "has no pending handshake",
)
# What version 1 of cgroups shows for no limit (PAGE_COUNTER_MAX pages).
NO_MEMORY_LIMIT = str((2**63 - 1) // resource.getpagesize() * resource.getpagesize())


def list_pairs() -> list[tuple[str, str]]:
    """Return every pair of effects, also of one with itself."""
    kinds: dict[Begin, list[str]] = {}
    for name, kind in FAULTS.items():
        if kind.has_duration:
            kinds.setdefault(kind.begin, []).append(name)
    turns = {begin: itertools.cycle(names) for begin, names in kinds.items()}
    pairs = itertools.combinations_with_replacement(kinds, 2)
    return [(next(turns[first]), next(turns[second])) for first, second in pairs]


@dataclass
class World:
    """Everything that faults act on."""

    link: Link
    resources: NodeResources
    process: NodeProcess
    stage: Stage
    syncer: system.Child
    client: system.Child

    def read_state(self) -> State:
        """Return everything that shows any fault."""
        node = self.stage.nodes[0]
        dns_code, reserved_ports = json.loads(self.client.request("?"))
        assert self.resources.cgroups is not None
        assert self.resources.volume is not None
        cpu, memory = (self.resources.cgroups.by_controller[name].folder for name in ("cpu", "memory"))
        state: State = {
            **read_link_state(self.link),
            "is down": node.is_down,
            "programs": sorted(list_programs()),
            "cpu quota": read_limit(cpu, "cpu.cfs_quota_us", "cpu.max"),
            "memory limit": read_limit(memory, "memory.limit_in_bytes", "memory.high") not in ("max", NO_MEMORY_LIMIT),
            "full": os.statvfs(node.home).f_bavail == 0,
            "disk limits": list_limits(self.resources.volume.device),
            # One fast call shows that none is delayed; one slow call may have another cause on a busy machine.
            "delayed syncs": all(float(self.syncer.request("?")) * 1000 >= SYNC_MS for _ in range(5)),
            "DNS code": dns_code,
            "reserved ports": reserved_ports,
        }
        assert node.is_down == (self.process.popen.poll() is not None)
        if not node.is_down:
            soft_limit = resource.prlimit(self.process.jvm_pid, resource.RLIMIT_NOFILE)[0]
            state |= {"paused": self.process.is_paused(), "few descriptors": soft_limit < 100}
        return state


def read_link_state(link: Link) -> State:
    """Return what the kernel shows of a link: receivers of frames, filters, and queues."""
    state: State = {}
    for end in link.ends:
        neighbours, filters, qdiscs = end.namespace.run(("sh", "-c", SHOW, "sh", end.device)).split("\n--\n")
        for entry in json.loads(neighbours):
            if "PERMANENT" in entry["state"]:
                state[end.device, entry["dst"]] = entry["lladdr"]
        for line in filters.splitlines():
            if "pref" in line and "handle" in line:
                state[end.device, "pref " + line.partition(" pref ")[2].split()[0]] = re.sub(" id [0-9]+", "", line)
        state[end.device, "queues"] = [
            (qdisc["kind"], qdisc["options"])
            for qdisc in json.loads(qdiscs)
            if qdisc["kind"] not in ("clsact", "noqueue")
        ]
    return state


def read_limit(folder: Path, version_1: str, version_2: str) -> str:
    path = folder / version_1
    return (path if path.exists() else folder / version_2).read_text().strip()


def list_programs() -> Iterator[str]:
    """Yield the programs that faults have started."""
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            with contextlib.suppress(OSError):
                argv = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                scripts = ("misbehaving_clients.py", "fragments.py")
                starts = [place for place, word in enumerate(argv) if word.endswith(scripts)]
                if starts:
                    yield " ".join(argv[starts[0] : starts[0] + 2])


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    try:
        node_resources.require_resources(NEEDS)
    except MissingCapability as error:
        pytest.skip(f"needs root: {error}")
    monkeypatch.setenv("INGEST_BENCH_STATE", str(tmp_path / "state"))
    (tmp_path / "fragments.py").write_text(FAKE_FRAGMENTS)
    monkeypatch.setattr(fragments, "__file__", str(tmp_path / "fragments.py"))
    (tmp_path / "trace").write_text("0,20mbit\n")
    monkeypatch.setitem(KEYS, "trace", {"trace": str(tmp_path / "trace")})
    home = tmp_path / "home"
    home.mkdir()
    faults = [fault_of(name) for name, kind in FAULTS.items() if kind.has_duration]
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(open_link_for(catalog.load_profile("ethernet"), *faults))
        created = node_resources.create_resources(NEEDS | checks.list_needs(make_cell(*faults)), [home])
        (resources,) = stack.enter_context(created)
        names = stack.enter_context(serve_names(link.client, [Endpoint(link.server_address, 9200)]))
        (address,) = names.addresses
        assert address.resolver is not None
        assert resources.sync_supervisor is not None
        python = (sys.executable, "-S", "-c")
        syncer = stack.enter_context(system.Child(resources.sync_supervisor.wrap((*python, SYNCER)), name="syncer"))
        query = build_query(address.endpoint.host, 1).hex()
        client_argv = (*python, CLIENT, query, address.resolver.host, str(address.resolver.port))
        client = stack.enter_context(system.Child(link.client.command(client_argv), name="client"))
        # A node that does nothing, in the namespace of the link's server, with its resources.
        process = NodeProcess(link.server.command(resources.wrap(("cat",))))
        stack.callback(process.kill)
        nodes = make_stage([process]).nodes
        nodes[0].home, nodes[0].resources = home, resources
        stage = dataclasses.replace(make_links_stage(link), nodes=nodes, names=names)
        yield World(link, resources, process, stage, syncer, client)


def fault_of(kind: str) -> Fault:
    return make_fault(kind, **KEYS.get(kind, {}))


def end(active: ActiveFault) -> None:
    try:
        active.end()
    except RunFailed as error:
        if not any(text in str(error) for text in WITHOUT_EFFECT):
            raise


def combine(base: State, *states: State) -> State:
    """Return the state under several faults: each changes what it changes alone. A down node has no process state."""
    combined = dict(base)
    for state in states:
        for key, value in state.items():
            if base.get(key) != value:
                is_list = key == "programs"
                combined[key] = sorted([*base[key], *combined[key], *value]) if is_list else value
    if combined["is down"]:
        for key in ("paused", "few descriptors"):
            combined.pop(key, None)
    return combined


@pytest.mark.nightly
@pytest.mark.netns
def test_every_pair_of_faults_nests_and_crosses(world: World) -> None:
    base, alone = world.read_state(), {}
    pairs = list_pairs()
    for kind in dict.fromkeys(itertools.chain.from_iterable(pairs)):
        active = timeline.begin_fault(fault_of(kind), world.stage)
        alone[kind] = world.read_state()
        end(active)
        assert alone[kind] != base, f"{kind}: its effect is not visible; add it to `World.read_state`"
        assert world.read_state() == base, kind
    for first, second in pairs:
        # The first ends before the second, begins again within it, and ends after it. The later fault determines what
        # both change.
        active, other = (timeline.begin_fault(fault_of(kind), world.stage) for kind in (first, second))
        assert world.read_state() == combine(base, alone[first], alone[second]), (first, second)
        end(active)
        assert world.read_state() == combine(base, alone[second]), (first, second)
        active = timeline.begin_fault(fault_of(first), world.stage)
        assert world.read_state() == combine(base, alone[second], alone[first]), (first, second)
        end(other)
        assert world.read_state() == combine(base, alone[first]), (first, second)
        end(active)
        assert world.read_state() == base, (first, second)
