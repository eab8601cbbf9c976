"""The guest of User-Mode Linux that is a link's box: how it is booted and set up, and what it can carry. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ingest_bench.errors import RunFailed
from ingest_bench.network.plan import commands, places, queues

if TYPE_CHECKING:
    from ingest_bench.model.network import Profile

MODULES = Path("/usr/lib/uml/modules")
# The largest that the guest's driver takes as its mtu=: 65534 passed, 65535 was ignored. It is set at boot for good:
# the driver's own maximum for `ip link set mtu` is 1500.
LARGEST_MTU_BYTES = 65534


# Of 1 Gbit/s 84% and 40 to 56% were left (`queues`).
MOST_QUEUED_BPS = 500 * 10**6

# The host's glibc in the guest, by its tunable (glibc manual, Hardware Capability Tunables): nothing of it uses AVX. A
# word of the kernel's command line that the kernel does not know is in the environment of its first process.
NO_AVX = "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX512BW,-AVX_Fast_Unaligned_Load"
# The first whose buffer for registers has the processor's own size (arch/um, "switch to regset API").
_ANY_XSTATE = (6, 13)

# Only what is used is taken, so this is a bound: netem's delay line holds whole packets.
_MEMORY = "256M"


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


def has_too_wide_registers(version: str, cpuinfo: str) -> bool:
    """Whether User-Mode Linux of that version panics on such a processor (`act.guest_process`)."""
    if " amx_tile" not in cpuinfo:
        return False
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise RunFailed(
            f"linux.uml --version: it said {version.strip()!r}, which is no version of Linux, and one before 6.13 "
            "needs help on a processor with AMX; install another one, or take --netem kernel"
        )
    return (int(found[1]), int(found[2])) < _ANY_XSTATE


def setup_argv() -> tuple[str, ...]:
    """What the guest runs once: modules, names of the devices, forwarding.

    Without gro: with it netem saw aggregates, and dropped 4 of 4147 segments of a TCP stream where it promised 21. No
    aggregate becomes as large as gro_max_size (net/core/gro.c, skb_gro_receive), so 1 byte ends them; the driver's own
    gro=0 says only how large its buffers are (arch/um/drivers/vector_kern.c, get_req_size).
    """
    names = (
        f"ip link set dev vec{number} name {places.BOX_DEVICES[side.direction]} address {side.mac} gro_max_size 1"
        for number, side in enumerate(SIDES)
    )
    more = sorted({name for names in queues.MODULES.values() for name in names})
    files = " ".join(f"$modules/sch_{name}.ko" for name in more)
    lines = (
        "busybox mount -t proc none /proc",
        f"modules={MODULES}/$(busybox uname -r)/kernel/net/sched",
        "busybox insmod $modules/sch_netem.ko",
        "busybox insmod $modules/sch_tbf.ko",
        # What is missing is found out before anything that needs it starts (`uml.queue_complaint`).
        f"for file in {files}; do if [ -e $file ]; then busybox insmod $file || exit 1; fi; done",
        *names,
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        "echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet",
    )
    return ("sh", "-c", " && ".join(lines))


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
    for way in (profile.to_server, profile.to_client):
        if queues.is_managed(way) and (way.rate_bps or 0) > MOST_QUEUED_BPS:
            return (
                f'queue = "{way.queue}": the User-Mode Linux box keeps a rate of at most {MOST_QUEUED_BPS // 10**6} '
                "Mbit/s with it."
            )
    checksums = [name for name, on in profile.offloads.items() if on and _is_checksum(name)]
    if checksums:
        return f"offloads: {checksums[0]} is off on the User-Mode Linux box, whose frames need whole checksums."
    return ""


def carried(profile: Profile) -> Profile:
    """The profile with what this box decides: single segments and whole checksums.

    A packet socket sees a frame before an offloaded checksum would be made, and super-packets whole.
    """
    return replace(profile, gso_max_segs=1, offloads={**profile.offloads, "tx": False})


def _is_checksum(offload: str) -> bool:
    return offload == "tx" or offload.startswith("tx-checksum")
