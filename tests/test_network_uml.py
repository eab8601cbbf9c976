"""The User-Mode Linux router: its commands, then real packets; the last test repeats some as an ordinary user."""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ordinary_user
import pytest
from readied import ready

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act import uml, uml_process
from ingest_bench.network.act.link import Link, open_link
from ingest_bench.network.plan import link_plan

MS = 10**6
NAMES = ("to-server", "to-client")

# Echoes each datagram.
ECHO = """
import socket, sys
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
receiver.bind((sys.argv[1], 9))
print("ready", flush=True)
while True:
    data, peer = receiver.recvfrom(65536)
    receiver.sendto(data, peer)
"""
# Prints the round-trip times of echoed datagrams. At most 16 are in flight: no queue overflows.
PING = """
import json, socket, sys, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
sender.connect((sys.argv[1], 9))
count, size, in_flight, times = int(sys.argv[2]), int(sys.argv[3]), {}, []
for number in range(count):
    in_flight[number] = time.perf_counter()
    sender.send(number.to_bytes(4, "big").ljust(size, b"x"))
    last = number == count - 1
    while in_flight and (last or len(in_flight) >= 16):
        sender.settimeout(2 if last else 0.25)
        try:
            echoed = int.from_bytes(sender.recv(65536)[:4], "big")
        except TimeoutError:
            in_flight.clear()
            break
        sent = in_flight.pop(echoed, None)
        if sent is not None:
            times.append(time.perf_counter() - sent)
print(json.dumps(times))
"""
# Sends one datagram that must not be fragmented (IP_MTU_DISCOVER: IP_PMTUDISC_DO).
FULL = """
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.IPPROTO_IP, 10, 2)
try:
    sender.sendto(b"x" * int(sys.argv[2]), (sys.argv[1], 9))
    print("sent")
except OSError as error:
    print(error)
"""
# Reads one connection; prints the bits per second from the first to the last byte.
SINK = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 9))
print("ready", flush=True)
connection, _ = listener.accept()
first, received, buffer = None, 0, bytearray(1 << 20)
while size := connection.recv_into(buffer):
    now = time.perf_counter()
    if first is None:
        first, received = now, -size
    received += size
    last = now
print(received * 8 / (last - first))
"""
POUR = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 9), timeout=60)
connection.sendall(b"x" * int(sys.argv[2]))
"""


def make_profile(impairment: Impairment, **values: Any) -> Profile:
    return Profile(name="x", to_server=impairment, to_client=impairment, **values)


def ping(link: Link, count: int, size_bytes: int = 100) -> list[float]:
    """Return the round-trip times in seconds."""
    argv = link.server.command((sys.executable, "-c", ECHO, link.server_address))
    with ready(argv):
        argv = link.client.command((sys.executable, "-c", PING, link.server_address, str(count), str(size_bytes)))
        output = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=240).stdout
    times: list[float] = json.loads(output)
    return times


def pour(link: Link, size_bytes: int) -> float:
    """Send over TCP; return the bits per second at the server."""
    argv = link.server.command((sys.executable, "-c", SINK, link.server_address))
    with ready(argv) as sink:
        argv = link.client.command((sys.executable, "-c", POUR, link.server_address, str(size_bytes)))
        subprocess.run(argv, check=True, timeout=120)
        return float(sink.communicate(timeout=120)[0])


def read_qdiscs(link: Link) -> dict[str, Any]:
    assert link.router is not None
    return {qdisc["dev"]: qdisc for qdisc in json.loads(link.router.run(("tc", "-j", "-s", "qdisc", "show")))}


def retry(attempts: int, attempt: Callable[[], tuple[bool, Any]]) -> None:
    """Require one of a few attempts to succeed: a busy machine delays packets, and losses are random."""
    results = []
    for _ in range(attempts):
        succeeded, result = attempt()
        results.append(result)
        if succeeded:
            return
    pytest.fail(f"in {attempts} attempts: {results}")


def test_boot_command() -> None:
    assert link_plan.uml_argv(9000) == (
        "linux.uml",
        "mem=256M",
        "rootfstype=hostfs",
        "rootflags=/",
        "root=98:0",
        "ro",
        "init=/bin/sh",
        "con=null",
        "con0=fd:0,fd:1",
        "quiet",
        "loglevel=0",
        "panic=-1",
        "uml_dir=/dev/shm",
        "umid=router",
        "vec0:transport=fd,fd=@0,mtu=9000,depth=128",
        "vec1:transport=fd,fd=@1,mtu=9000,depth=128",
    )


def test_setup_command_makes_a_router_with_netem() -> None:
    assert link_plan.uml_setup_argv()[-1].split(" && ") == [
        "busybox mount -t proc none /proc",
        "modules=/usr/lib/uml/modules/$(busybox uname -r)/kernel/net/sched",
        "busybox insmod $modules/sch_netem.ko",
        "busybox insmod $modules/sch_tbf.ko",
        (
            "for file in $modules/sch_cake.ko $modules/sch_fq_codel.ko $modules/sch_hfsc.ko $modules/sch_red.ko; "
            "do if [ -e $file ]; then busybox insmod $file || exit 1; fi; done"
        ),
        "ip link set dev vec0 name to-server address 02:00:c6:12:02:fe gro_max_size 1",
        "ip link set dev vec1 name to-client address 02:00:c6:12:01:fe gro_max_size 1",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        "echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet",
    ]


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (Profile(name="x", mtu_bytes=65534, gso_max_segs=1), ""),
        (Profile(name="x", mtu_bytes=9000), ""),
        (Profile(name="x", mtu_bytes=65535), "mtu 65535: the User-Mode Linux router passes at most 65534."),
        (Profile(name="x", offloads={"tx": False, "gro": True}), ""),
        (
            Profile(name="x", offloads={"tx-checksum": True}),
            "offloads: tx-checksum is off on the User-Mode Linux router, which requires complete checksums.",
        ),
        (
            Profile(name="x", gso_max_segs=2),
            "gso_max_segs 2: the User-Mode Linux router takes single segments only. Leave the key out, or set it to 1.",
        ),
    ],
)
def test_conflicting_profile_is_refused(profile: Profile, message: str) -> None:
    assert link_plan.find_uml_conflict(profile) == message


def test_router_adapts_a_profile() -> None:
    profile = Profile(
        name="x",
        offloads={"gro": True},
        to_server=Impairment(rate_bps=10**8, delay_ns=MS),
        to_client=Impairment(rate_bps=10**5),
    )
    assert link_plan.adapt_for_uml(profile) == Profile(
        name="x",
        gso_max_segs=1,
        offloads={"gro": True, "tx": False},
        to_server=profile.to_server,
        to_client=profile.to_client,
    )


def test_socket_numbers_are_inserted() -> None:
    argv = ["linux.uml", "vec0:transport=fd,fd=@0", "vec1:transport=fd,fd=@1"]
    assert uml_process.insert_socket_numbers(argv, [7, 12]) == [
        "linux.uml",
        "vec0:transport=fd,fd=7",
        "vec1:transport=fd,fd=12",
    ]
    # A path may contain a number, too.
    argv = ["/opt/python@3.11/bin/python3.11", "/srv/ingest-bench@0/tests/in_uml.sh", "linux.uml", "vec0:fd=@0"]
    assert uml_process.insert_socket_numbers(argv, [7]) == [*argv[:3], "vec0:fd=7"]


@pytest.mark.parametrize(
    ("version", "flags", "is_needed"),
    [
        ("6.1.176", "fpu amx_bf16 amx_tile", True),
        ("6.13.2", "fpu amx_tile", False),
        ("6.1.176", "fpu avx512f", False),
        ("6.13-rc1", "fpu amx_tile", False),
        ("6.12", "fpu amx_tile", True),
        ("5.10+bpo\n", "fpu amx_tile", True),
    ],
)
def test_old_uml_needs_a_workaround_on_processors_with_amx(version: str, flags: str, is_needed: bool) -> None:
    assert link_plan.needs_xstate_workaround(version, f"processor\t: 0\nflags\t\t: {flags}\n") is is_needed


def test_malformed_version_is_an_error_only_with_amx() -> None:
    with pytest.raises(RunFailed, match=r"linux\.uml --version: 'User Mode' is not a Linux version"):
        link_plan.needs_xstate_workaround("User Mode\n", "flags\t\t: fpu amx_tile\n")
    assert not link_plan.needs_xstate_workaround("User Mode\n", "processor\t: 0\n")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the system call number is that of x86_64")
def test_getregset_is_blocked_and_getfpregs_is_not() -> None:
    # No process has this pid: without the filter both calls fail with ESRCH.
    code = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
        "for request in (0x4204, 16): libc.ptrace(request, 2**22 + 1, 0, 0); print(ctypes.get_errno())"
    )
    argv = system.build_script_argv(uml_process.__file__, "--without-xstate", "--", sys.executable, "-I", "-c", code)
    assert system.run(argv).split() == [str(errno.EIO), str(errno.ESRCH)]


@pytest.fixture
def _uml() -> None:
    if uml.find_uml_problem():
        pytest.skip(uml.find_uml_problem())


@pytest.mark.netem
@pytest.mark.usefixtures("_uml")
class TestWithPackets:
    def test_round_trip_takes_both_delays(self) -> None:
        with open_link(make_profile(Impairment(delay_ns=25 * MS)), netem="uml") as link:
            assert link.backend == "uml"

            # The minimum: at a load of 14 on two cores the median was 63 ms, due to the machine.
            def attempt() -> tuple[bool, float]:
                fastest_s = min(ping(link, 60))
                assert fastest_s >= 0.050
                return fastest_s < 0.0525, fastest_s

            retry(5, attempt)
            qdiscs = read_qdiscs(link)
            assert {qdiscs[name]["kind"] for name in NAMES} == {"netem"}
            assert {qdiscs[name]["options"]["delay"]["delay"] for name in NAMES} == {0.025}

    def test_stream_loses_single_segments(self) -> None:
        with open_link(Profile(name="x", to_server=Impairment(loss_ppm=10_000)), netem="uml") as link:

            def attempt() -> tuple[bool, Any]:
                before = read_qdiscs(link)["to-server"]
                pour(link, 5 * 10**6)
                after = read_qdiscs(link)["to-server"]
                lost = after["drops"] - before["drops"]
                sent = after["packets"] - before["packets"] + lost
                spread = 2.576 * math.sqrt(sent * 0.01 * 0.99)
                return sent >= 5 * 10**6 / 1448 and abs(lost - sent * 0.01) < spread, (lost, sent)

            retry(4, attempt)

    @pytest.mark.parametrize("mtu_bytes", [9000, link_plan.UML_MAX_MTU_BYTES])
    def test_full_packet_of_a_large_mtu_passes(self, mtu_bytes: int) -> None:
        with open_link(make_profile(Impairment(delay_ns=MS), mtu_bytes=mtu_bytes), netem="uml") as link:
            times = ping(link, 20, size_bytes=min(mtu_bytes - 28, 65507))
            assert len(times) == 20
            assert read_qdiscs(link)["to-server"]["bytes"] >= 20 * min(mtu_bytes, 65507)

    def test_mtu_of_an_existing_link_can_be_lowered_and_raised(self) -> None:
        small, large = make_profile(Impairment(delay_ns=MS)), make_profile(Impairment(delay_ns=MS), mtu_bytes=9000)
        with open_link(small, netem="uml", later_profiles=(large,)) as link:
            for state, passes in ((small, False), (large, True), (small, False), (large, True)):
                link.set_profile(state)
                argv = (sys.executable, "-c", FULL, link.server_address, "8972")
                assert (link.client.run(argv).strip() == "sent") is passes
                assert len(ping(link, 10, size_bytes=state.mtu_bytes - 28)) == 10

    def test_failing_command_is_reported_with_its_error(self) -> None:
        with open_link(make_profile(Impairment(delay_ns=MS)), netem="uml") as link:
            assert link.router is not None
            with pytest.raises(RunFailed, match=r'tc qdisc add dev nowhere.*Cannot find device "nowhere"'):
                link.router.run(("tc", "qdisc", "add", "dev", "nowhere", "root", "netem"))

    @pytest.mark.measures  # it lists a folder of the whole machine
    def test_no_process_and_no_file_is_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setenv("HOME", str(tmp_path))
        before = sorted(os.listdir("/dev/shm"))  # noqa: PTH208, S108 - names are what is compared
        with open_link(make_profile(Impairment(delay_ns=MS)), netem="uml"):
            namespaces = pid_namespaces_below(os.getpid())
            assert len(namespaces) == 1
        assert list_processes(namespaces) == []
        assert not list(tmp_path.iterdir())
        assert sorted(os.listdir("/dev/shm")) == before  # noqa: PTH208, S108

    @pytest.mark.parametrize("after_s", [None, 0.1, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0])
    def test_uml_and_its_helpers_die_with_a_killed_program(self, tmp_path: Path, after_s: float | None) -> None:
        program = """
import time
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act.link import open_link
print("started", flush=True)
with open_link(Profile(name="x", to_server=Impairment(delay_ns=10**6)), netem="uml"):
    print("ready", flush=True)
    time.sleep(100)
"""
        env = {**os.environ, "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
        with subprocess.Popen((sys.executable, "-c", program), stdout=subprocess.PIPE, env=env) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"started\n"
            if after_s is None:
                assert process.stdout.readline() == b"ready\n"
                assert pid_namespaces_below(process.pid)
            else:
                time.sleep(after_s)
            namespaces, family = pid_namespaces_below(process.pid), descendants(process.pid)
            process.kill()
        deadline = time.monotonic() + 30
        while (list_processes(namespaces) or any(map(is_alive, family))) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert list_processes(namespaces) == []
        assert not any(map(is_alive, family))
        assert not list(tmp_path.iterdir())


@pytest.mark.nightly
@pytest.mark.netem
@pytest.mark.usefixtures("_uml")
def test_ordinary_user_gets_the_same_router() -> None:
    # Its netem does not depend on the user.
    names = "round_trip or large_mtu or existing_link or killed_program or is_left"
    ordinary_user.repeat(__file__, promised="netem", limit_s=600, marks="netem", names=names)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> list[int]:
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    children, fresh = [], [pid]
    while fresh:
        fresh = [child for child, parent in parents.items() if parent in fresh]
        children += fresh
    return children


def pid_namespaces_below(pid: int) -> set[str]:
    """Return the pid namespaces of its descendants other than ours."""
    return {space for child in descendants(pid) if (space := pid_namespace(child))} - {pid_namespace(os.getpid())}


def pid_namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def list_processes(spaces: set[str]) -> list[int]:
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if pid_namespace(pid) in spaces and is_alive(pid)]
