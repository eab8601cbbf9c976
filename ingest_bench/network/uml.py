"""The box for kernels without netem: a User-Mode Linux guest as the router between the two namespaces.

Load and server keep native speed, and their packets cross the guest's netem. The guest is a process: no root, no KVM
and no /dev/net/tun is needed. Its two devices are packet sockets of ours on veth pairs. Taps were rejected, because
ordinary users may rarely open /dev/net/tun, and so was User-Mode Linux's own "raw" transport: its buffers are small,
and lost up to 1% of the packets of a stream of 50 to 300 Mbit/s on a busy machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.network import commands, netem, packet_sockets, places
from ingest_bench.network import sandbox as sandboxes
from ingest_bench.network.console import Console

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ingest_bench.model.network import Impairment, Profile
    from ingest_bench.network.sandbox import Namespace, Sandbox

REMEDY = "Install it: apt-get install user-mode-linux busybox-static"
MODULES = Path("/usr/lib/uml/modules")
# The largest that the guest's driver takes as its mtu=: 65534 passed, 65535 was ignored. It is set at boot for good:
# the driver's own maximum for `ip link set mtu` is 1500.
LARGEST_MTU_BYTES = 65534

# Only what is used is taken, so this is a bound: netem's delay line holds whole packets.
_MEMORY = "256M"
# How late a timer of the guest may be before a token bucket misses its rate. Medians of 6 streams on two cores with 5
# to 9 busy processes: a bucket of 0.5 ms gave 54 to 88% of 50 to 300 Mbit/s; one of 10 ms gave 96 to 101% of 50 to
# 200 Mbit/s, and 92% of 300 Mbit/s. Where the rate is missed, `check` says so.
_BURST_NS = 10 * 10**6
_BOOT_TIMEOUT_S = 60
_END_TIMEOUT_S = 10
_ERRORS = "/run/errors"


class Side(NamedTuple):
    """One device of the guest: its names inside and outside, and who is at its end."""

    direction: places.Direction
    mac: str
    outside: str
    end_mac: str


# vec0 and vec1 of the guest.
SIDES = (
    Side("to-server", places.SERVER_GATEWAY_MAC, "box-server", places.SERVER_MAC),
    Side("to-client", places.CLIENT_GATEWAY_MAC, "box-client", places.CLIENT_MAC),
)

# Pid 1 of a pid namespace: when it dies, the kernel ends the guest and all its helper processes. The tmpfs is in a
# mount namespace of its own and goes with it; the guest's memory and pid file are there, and nothing is anywhere else.
# It tells its number outside, and starts nothing before we answer: then we were alive after its death signal was set.
_PID_1 = """\
set -e
mount -t tmpfs none /dev/shm
read -r pid _ < /proc/self/stat
echo "ready $pid"
read -r _
set +e
TMPDIR=/dev/shm "$@"
echo "User-Mode Linux ended with status $?"
"""


def guest_argv(mtu_bytes: int) -> tuple[str, ...]:
    """The argv that boots the guest: a shell on the host's own files, read-only. "@N": the packet socket of side N.

    `loglevel=0`: only the shell writes on the console. `nohz=off` was tried against missed packets and keys: 600
    round trips and 300 commands with it were like those without.
    """
    devices = (f"vec{number}:transport=fd,fd=@{number},mtu={mtu_bytes},depth=128" for number in range(len(SIDES)))
    root = ("rootfstype=hostfs", "rootflags=/", "root=98:0", "ro", "init=/bin/sh")
    console = ("con=null", "con0=fd:0,fd:1", "quiet", "loglevel=0")
    return (
        "linux.uml", f"mem={_MEMORY}", *root, *console, "panic=-1", "uml_dir=/dev/shm", "umid=box", *devices
    )  # fmt: skip


def setup_script() -> str:
    """What the guest's shell runs once: modules, names of the devices, forwarding.

    Without gro: with it netem saw aggregates, and dropped 4 of 4147 segments of a TCP stream where it promised 21. No
    aggregate becomes as large as gro_max_size (net/core/gro.c, skb_gro_receive), so 1 byte ends them; the driver's own
    gro=0 says only how large its buffers are (arch/um/drivers/vector_kern.c, get_req_size).
    """
    names = (
        f"ip link set dev vec{number} name {places.BOX_DEVICES[side.direction]} address {side.mac} gro_max_size 1"
        for number, side in enumerate(SIDES)
    )
    lines = (
        "busybox mount -t proc none /proc",
        f"modules={MODULES}/$(busybox uname -r)/kernel/net/sched",
        "busybox insmod $modules/sch_netem.ko",
        "busybox insmod $modules/sch_tbf.ko",
        *names,
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        "echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet",
    )
    return " && ".join(lines)


def wiring(side: Side, device: str, netns: str, *, has_ipv6: bool) -> tuple[str, ...]:
    """The lines of `ip -batch` for one side's pair, whose outer end is born as `device` in the namespace `netns`."""
    peer = f"peer name {device} address {side.end_mac} netns {netns}"
    return (
        # 65535 is veth's largest: the guest's own MTU is what counts.
        f"link add name {side.outside} mtu 65535 type veth {peer}",
        *commands.no_solicitations(side.outside, has_ipv6=has_ipv6),
        f"link set dev {side.outside} up",
    )


def refusal(profile: Profile) -> str:
    """Why this box cannot carry such a profile; empty when it can."""
    if profile.mtu_bytes > LARGEST_MTU_BYTES:
        return f"mtu {profile.mtu_bytes}: the User-Mode Linux box passes at most {LARGEST_MTU_BYTES}."
    if profile.gso_max_segs not in (None, 1):
        return (
            f"gso_max_segs {profile.gso_max_segs}: the User-Mode Linux box takes single segments only. "
            "Leave the key out, or make it 1."
        )
    checksums = [name for name, on in profile.offloads.items() if on and _is_checksum(name)]
    if checksums:
        return f"offloads: {checksums[0]} is off on the User-Mode Linux box, whose frames need whole checksums."
    return ""


def carried(profile: Profile) -> Profile:
    """The profile with what this box decides: single segments, whole checksums, and buckets for its late timers.

    A packet socket sees a frame before an offloaded checksum would be made, and super-packets whole.
    """
    frame_bytes = profile.mtu_bytes + netem.ETHERNET_HEADER_BYTES
    return replace(
        profile,
        gso_max_segs=1,
        offloads={**profile.offloads, "tx": False},
        to_server=_with_burst(profile.to_server, frame_bytes),
        to_client=_with_burst(profile.to_client, frame_bytes),
    )


def _with_burst(impairment: Impairment, frame_bytes: int) -> Impairment:
    if impairment.rate_bps is None or impairment.burst_bytes is not None:
        return impairment
    return replace(impairment, burst_bytes=max(2 * frame_bytes, impairment.rate_bps * _BURST_NS // (8 * 10**9)))


def _is_checksum(offload: str) -> bool:
    return offload == "tx" or offload.startswith("tx-checksum")


@dataclass(frozen=True, slots=True)
class Guest:
    """A running guest: a `places.Box`."""

    console: Console

    def run(self, argv: Sequence[str], *, stdin: str | None = None, check: bool = True) -> str:
        """What the command, run in the guest, wrote to its standard output; as `system.run`."""
        answer = self.console.ask(argv, stdin=stdin or "", errors=_ERRORS)
        if not check:
            return answer.stdout + answer.stderr
        if answer.status:
            said = (answer.stderr.strip() or answer.stdout.strip() or "nothing")[-2000:]
            raise RunFailed(f"User-Mode Linux: {' '.join(argv)}: exit {answer.status}, it said: {said}")
        return answer.stdout


@contextmanager
def uml_box(
    opened: Sandbox, client: Namespace, server: Namespace, ends: places.Ends, *, mtu_bytes: int
) -> Iterator[Guest]:
    """A guest that routes between the two, with netem on its egresses. It dies with us, and leaves no file."""
    middle = opened.add()
    _wire(middle, client, server, ends)
    process, pid_1 = _start(middle, mtu_bytes)
    try:
        assert process.stdin is not None  # noqa: S101 - for the type checker: both were asked for as pipes
        assert process.stdout is not None  # noqa: S101
        console = Console(process.stdin.fileno(), process.stdout.fileno())
        console.greet("busybox mount -t tmpfs none /run", timeout_s=_BOOT_TIMEOUT_S)
        guest = Guest(console)
        guest.run(("sh", "-c", setup_script()))
        guest.run(("ip", "-batch", "-"), stdin=commands.text(commands.box_sides(ends, has_ipv6=False)))
        yield guest
    finally:
        _end(process, pid_1)


@cache
def complaint() -> str:
    """Why there is no such box on this machine, and the remedy; empty when there is one. Found by trying cheaply."""
    missing = [program for program in ("linux.uml", "busybox") if system.which(program) is None]
    if missing:
        return f"User-Mode Linux: {' and '.join(missing)} not found. {REMEDY}"
    version = system.run(("linux.uml", "--version")).strip()
    module = MODULES / version / "kernel/net/sched/sch_netem.ko"
    if not module.is_file():
        return f"User-Mode Linux {version}: its module {module} is missing. {REMEDY}"
    with sandboxes.sandbox() as opened:
        tried = ("unshare", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "none", "/dev/shm")  # noqa: S108
        said = opened.add().run(tried, check=False).strip()
    return f"User-Mode Linux: no namespaces for its processes and files ({said})." if said else ""


def _wire(middle: Namespace, client: Namespace, server: Namespace, ends: places.Ends) -> None:
    """A veth pair for each side, its outer end down in the client's or the server's namespace."""
    has_ipv6 = sandboxes.has_ipv6()
    outer = ((ends.server_device, server), (ends.client_device, client))
    for side, (device, place) in zip(SIDES, outer, strict=True):
        lines = wiring(side, device, str(place.pid), has_ipv6=has_ipv6)
        middle.run(("ip", "-batch", "-"), stdin=commands.text(lines))


def _start(middle: Namespace, mtu_bytes: int) -> tuple[subprocess.Popen[bytes], int]:
    sockets = system.script(packet_sockets.__file__, *(side.outside for side in SIDES), "--")
    killed_with = ("setpriv", "--pdeathsig", "KILL")
    own = ("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL")
    process = system.start(
        middle.command((*sockets, *killed_with, *own, "sh", "-c", _PID_1, "pid-1", *guest_argv(mtu_bytes))),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None  # noqa: S101 - for the type checker: both were asked for as pipes
    assert process.stdout is not None  # noqa: S101
    said = process.stdout.readline()
    ready, _, pid = said.partition(b" ")
    if ready != b"ready":
        rest = process.stdout.read()
        _end(process, pid_1=None)
        raise RunFailed(f"User-Mode Linux: it did not start, it said: {(said + rest).decode(errors='replace')}")
    process.stdin.write(b"go\n")
    process.stdin.flush()
    return process, int(pid)


def _end(process: subprocess.Popen[bytes], pid_1: int | None) -> None:
    """Nothing left: `unshare` ends after pid 1 of its namespace, and that one after all others there."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid if pid_1 is None else pid_1, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_TIMEOUT_S)
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
