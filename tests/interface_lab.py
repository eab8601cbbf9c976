"""A stand-in for a real interface: `eth0` of a namespace, with a server behind it in a second namespace."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.network.plan import link_plan

CLIENT, SERVER, PORT = "198.18.40.1", "198.18.40.2", 9200
HAS_IPV6 = Path("/proc/sys/net/ipv6").exists()
NEEDS_IPV6 = pytest.mark.skipif(not HAS_IPV6, reason="this kernel has no IPv6")
DRIVER = Path(__file__).with_name("interface_driver.py")

# If both ends of a link have the same index, its carrier is reported up to a second later (net/core/link_watch.c).
# Indices of two labs differ, too: upper devices in other namespaces are known by the index of eth0 only.
_SET_UP = f"""
set -e
sysctl -e -q -w net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.default.router_solicitations=0
ip link set lo up
number=$((1000 + 2 * $$))
ip link add eth0 index $number numtxqueues 2 address 02:00:00:00:40:01 \\
    type veth peer name eth0 address 02:00:00:00:40:02 netns $1
ip link add eth1 index $((number + 1)) type veth peer name eth1 netns $1
ip addr add {CLIENT}/24 dev eth0
[ ! -e /proc/sys/net/ipv6 ] || ip addr add fd00:40::1/64 dev eth0
ip link set eth0 up
ip link set eth1 up
"""
_SET_UP_SERVER = f"""
set -e
sysctl -e -q -w net.ipv6.conf.eth0.accept_dad=0 net.ipv6.conf.eth1.accept_dad=0
ip link set lo up
ip addr add {SERVER}/24 dev eth0
[ ! -e /proc/sys/net/ipv6 ] || ip addr add fd00:40::2/64 dev eth0
ip link set eth0 up
ip link set eth1 up
"""
# All output of ip, tc and sysctl about a namespace, and the features of eth0.
_SNAPSHOT = f"""
ip -j -d link show; ip -j addr show; ip -j -4 route show table all; ip -j -6 route show table all; ip -j rule show
tc -j qdisc show; tc -j filter show dev eth0; tc -j filter show dev eth0 ingress; tc -j filter show dev eth0 egress
{shlex.join(link_plan.offloads_argv("eth0", {}))}; sysctl -e net.ipv4.tcp_rmem net.ipv4.tcp_wmem net.ipv6.conf.eth0.mtu
"""


@dataclass(frozen=True)
class Lab:
    client: tuple[str, ...]
    """Prefix of a command that runs it in the client's namespace."""
    server: tuple[str, ...]
    state: Path

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "INGEST_BENCH_STATE": str(self.state)}

    def run(self, *argv: str) -> str:
        return subprocess.run((*self.client, *argv), capture_output=True, text=True, check=True, timeout=60).stdout

    def snapshot(self) -> str:
        return self.run("sh", "-c", _SNAPSHOT)

    def drive(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """Start the driver in the client's namespace."""
        argv = (*self.client, sys.executable, str(DRIVER), *words)
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env={**self.env, **env})

    def running(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """Start the driver and wait until its changes are made."""
        process = self.drive("tool", *words, **env)
        assert process.stdout is not None
        while process.stdout.readline() != "running\n":
            assert process.poll() is None, process.communicate()
        return process

    def leave_behind(self, watchdog_stage: int, variant: str) -> None:
        """Leave a session behind: its watchdog ended at that stage, and its tool was killed while it ran."""
        process = self.running("-1", str(watchdog_stage), variant)
        process.kill()
        process.communicate()
        self.wait_until_free()
        assert self.leftovers()

    @contextmanager
    def shaped(self, *words: str, **env: str) -> Iterator[subprocess.Popen[str]]:
        """Run a session of the driver during the block; it ends normally, and its watchdog too."""
        with self.running("-1", "-1", *words, **env) as process:
            try:
                yield process
            finally:
                _, errors = process.communicate("\n", timeout=120)
        assert process.returncode == 0, errors
        self.wait_until_free()

    def index(self, device: str) -> int:
        return int(json.loads(self.run("ip", "-j", "link", "show", "dev", device))[0]["ifindex"])

    def ifbs(self) -> list[str]:
        """Return the ifb devices of a session: to the client, to the server."""
        links = json.loads(self.run("ip", "-j", "link", "show", "type", "ifb"))
        return [str(link["ifname"]) for link in sorted(links, key=lambda link: int(link["ifindex"]))]

    def swap_ends(self) -> Lab:
        """Return the same two machines with client and server swapped."""
        return replace(self, client=self.server, server=self.client)

    def with_state_folder(self, folder: Path) -> Lab:
        """Return the same machine with another state folder."""
        folder.mkdir(mode=0o700, exist_ok=True)
        return replace(self, state=folder)

    def run_driver(self, *words: str, **env: str) -> tuple[int, str, str]:
        """Run the driver to its end; return its exit status and output."""
        with self.drive(*words, **env) as process:
            output, errors = process.communicate(timeout=120)
        return process.returncode, output, errors

    def wait_until_free(self) -> None:
        """Wait until tool and watchdog have exited."""
        limit = time.monotonic() + 90
        while any(map(_is_held, self.state.glob("*.lock"))):
            assert time.monotonic() < limit, "a watchdog does not exit"
            time.sleep(0.02)

    def leftovers(self) -> list[str]:
        return [path.name for path in self.state.glob("*.jsonl")]

    def assert_restored(self, before: str, when: str = "") -> None:
        """Assert that no process and no journal is left, and that everything is as before."""
        self.wait_until_free()
        assert self.leftovers() == [], when
        assert self.snapshot() == before, when


def _is_held(path: Path) -> bool:
    try:
        with path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def lab(state: Path) -> Iterator[Lab]:
    state.mkdir(mode=0o700, exist_ok=True)
    user = () if os.geteuid() == 0 else ("--user", "--preserve-credentials")
    make = ("unshare", "--net") if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user", "--net")
    with holder(make) as client_pid:
        client = ("nsenter", "--target", str(client_pid), *user, "--net", "--")
        with holder((*client, "unshare", "--net")) as server_pid:
            server = ("nsenter", "--target", str(server_pid), *user, "--net", "--")
            for prefix, script in ((client, _SET_UP), (server, _SET_UP_SERVER)):
                subprocess.run((*prefix, "sh", "-c", script, "sh", str(server_pid)), check=True, timeout=60)
            opened = Lab(client, server, state)
            for machine in (opened, opened.swap_ends()):
                _wait_for_carrier(machine)
            yield opened


def _wait_for_carrier(machine: Lab) -> None:
    """Wait until both interfaces are up and have their IPv6 addresses: afterwards nothing changes by itself."""
    limit = time.monotonic() + 60
    while True:
        links = json.loads(machine.run("ip", "-j", "addr", "show", "up"))
        ready = [link for link in links if link["operstate"] == "UP" and (link["addr_info"] or not HAS_IPV6)]
        if len(ready) == 2 and "tentative" not in machine.run("ip", "addr", "show"):
            return
        assert time.monotonic() < limit, links
        time.sleep(0.02)


@contextmanager
def holder(make: Sequence[str]) -> Iterator[int]:
    with system.Child((*make, "setpriv", "--pdeathsig", "KILL", "cat"), name="holder") as child:
        try:
            child.request("ready")
        except RunFailed as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield child.pid
