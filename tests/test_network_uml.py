"""The User-Mode Linux box: its words, then real packets; the last test repeats some as an ordinary user."""

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
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act import guest_process, uml
from ingest_bench.network.act.link import Link, link
from ingest_bench.network.plan import guest

MS = 10**6
NAMES = ("to-server", "to-client")

# Sends back each datagram, and says at the end how many came.
ECHO = """
import socket, sys
taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
taken.bind((sys.argv[1], 9))
print("ready", flush=True)
while True:
    data, peer = taken.recvfrom(65536)
    taken.sendto(data, peer)
"""
# The seconds that each datagram was away, for those that came back. At most 16 are under way: no queue overflows.
PING = """
import json, socket, sys, time
asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asked.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
asked.connect((sys.argv[1], 9))
count, size, away, took = int(sys.argv[2]), int(sys.argv[3]), {}, []
for number in range(count):
    away[number] = time.perf_counter()
    asked.send(number.to_bytes(4, "big").ljust(size, b"x"))
    last = number == count - 1
    while away and (last or len(away) >= 16):
        asked.settimeout(2 if last else 0.25)
        try:
            back = int.from_bytes(asked.recv(65536)[:4], "big")
        except TimeoutError:
            away.clear()
            break
        sent = away.pop(back, None)
        if sent is not None:
            took.append(time.perf_counter() - sent)
print(json.dumps(took))
"""
# One datagram that must not be cut into pieces (IP_MTU_DISCOVER: IP_PMTUDISC_DO).
FULL = """
import socket, sys
asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asked.setsockopt(socket.IPPROTO_IP, 10, 2)
try:
    asked.sendto(b"x" * int(sys.argv[2]), (sys.argv[1], 9))
    print("sent")
except OSError as error:
    print(error)
"""
# Takes one connection's bytes; says how many a second came, from the first to the last.
SINK = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 9))
print("ready", flush=True)
connection, _ = listener.accept()
first, got, buffer = None, 0, bytearray(1 << 20)
while size := connection.recv_into(buffer):
    now = time.perf_counter()
    if first is None:
        first, got = now, -size
    got += size
    last = now
print(got * 8 / (last - first))
"""
POUR = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 9), timeout=60)
connection.sendall(b"x" * int(sys.argv[2]))
"""


def both(impairment: Impairment, **more: Any) -> Profile:
    return Profile(name="x", to_server=impairment, to_client=impairment, **more)


def ping(made: Link, count: int, size_bytes: int = 100) -> list[float]:
    """Seconds of each round trip that came back."""
    argv = made.server.command((sys.executable, "-c", ECHO, made.server_address))
    with ready(argv):
        argv = made.client.command((sys.executable, "-c", PING, made.server_address, str(count), str(size_bytes)))
        said = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=240).stdout
    took: list[float] = json.loads(said)
    return took


def pour(made: Link, size_bytes: int) -> float:
    """Bits a second that a TCP connection brought to the server."""
    argv = made.server.command((sys.executable, "-c", SINK, made.server_address))
    with ready(argv) as sink:
        argv = made.client.command((sys.executable, "-c", POUR, made.server_address, str(size_bytes)))
        subprocess.run(argv, check=True, timeout=120)
        return float(sink.communicate(timeout=120)[0])


def qdiscs(made: Link) -> dict[str, Any]:
    assert made.box is not None
    return {found["dev"]: found for found in json.loads(made.box.run(("tc", "-j", "-s", "qdisc", "show")))}


def counts(made: Link) -> dict[str, int]:
    """Packets on their way to the server and back, as each kernel counted them."""
    devices = []
    for end in made.ends:
        shown = json.loads(end.namespace.run(("ip", "-j", "-s", "link", "show", "dev", end.device)))
        devices.append(shown[0]["stats64"])
    client, server = devices
    shaped = qdiscs(made)["to-server"]
    return {
        "asked": client["tx"]["packets"],
        "dropped": shaped["drops"],
        "passed": shaped["packets"],
        "arrived": server["rx"]["packets"],
        "answered": server["tx"]["packets"],
        "returned": client["rx"]["packets"],
    }


def settled(look: Callable[[], dict[str, int]]) -> dict[str, int]:
    """What is seen once nothing is under way any more: twice the same, half a second apart."""
    until, last = time.monotonic() + 30, look()
    while time.monotonic() < until:
        time.sleep(0.5)
        last, before = look(), last
        if last == before:
            break
    return last


def within(tries: int, attempt: Callable[[], tuple[bool, Any]]) -> None:
    """One attempt of a few is good: a busy machine makes packets late, and chance is chance."""
    seen = []
    for _ in range(tries):
        good, what = attempt()
        seen.append(what)
        if good:
            return
    pytest.fail(f"in {tries} attempts: {seen}")


def test_the_guest_boots_with_these_words() -> None:
    assert guest.guest_argv(9000) == (
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
        "umid=box",
        "vec0:transport=fd,fd=@0,mtu=9000,depth=128",
        "vec1:transport=fd,fd=@1,mtu=9000,depth=128",
    )


def test_the_guest_makes_itself_a_router_with_netem() -> None:
    assert guest.setup_argv()[-1].split(" && ") == [
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
    ("profile", "said"),
    [
        (Profile(name="x", mtu_bytes=65534, gso_max_segs=1), ""),
        (Profile(name="x", mtu_bytes=9000), ""),
        (Profile(name="x", mtu_bytes=65535), "mtu 65535: the User-Mode Linux box passes at most 65534."),
        (Profile(name="x", offloads={"tx": False, "gro": True}), ""),
        (
            Profile(name="x", offloads={"tx-checksum": True}),
            "offloads: tx-checksum is off on the User-Mode Linux box, whose frames need whole checksums.",
        ),
        (
            Profile(name="x", gso_max_segs=2),
            "gso_max_segs 2: the User-Mode Linux box takes single segments only. Leave the key out, or make it 1.",
        ),
    ],
)
def test_what_the_box_cannot_carry_is_refused(profile: Profile, said: str) -> None:
    assert guest.refusal(profile) == said


def test_the_box_says_what_it_makes_of_a_profile() -> None:
    profile = Profile(
        name="x",
        offloads={"gro": True},
        to_server=Impairment(rate_bps=10**8, delay_ns=MS),
        to_client=Impairment(rate_bps=10**5),
    )
    assert guest.carried(profile) == Profile(
        name="x",
        gso_max_segs=1,
        offloads={"gro": True, "tx": False},
        to_server=profile.to_server,
        to_client=profile.to_client,
    )


def test_each_device_gets_the_number_of_its_socket() -> None:
    argv = ["linux.uml", "vec0:transport=fd,fd=@0", "vec1:transport=fd,fd=@1"]
    assert guest_process.with_numbers(argv, [7, 12]) == [
        "linux.uml",
        "vec0:transport=fd,fd=7",
        "vec1:transport=fd,fd=12",
    ]


def test_what_starts_the_guest_may_be_in_a_folder_with_a_number_of_its_own() -> None:
    argv = ["/opt/python@3.11/bin/python3.11", "/srv/ingest-bench@0/tests/in_uml.sh", "linux.uml", "vec0:fd=@0"]
    assert guest_process.with_numbers(argv, [7]) == [*argv[:3], "vec0:fd=7"]


@pytest.mark.parametrize(
    ("version", "flags", "said"),
    [("6.1.176", "fpu amx_bf16 amx_tile", True), ("6.13.2", "fpu amx_tile", False), ("6.1.176", "fpu avx512f", False)],
)
def test_a_processor_whose_registers_that_kernel_has_no_room_for_is_known(version: str, flags: str, said: bool) -> None:
    assert guest.has_too_wide_registers(version, f"processor\t: 0\nflags\t\t: {flags}\n") is said


@pytest.mark.parametrize(("version", "said"), [("6.13-rc1", False), ("6.12", True), ("5.10+bpo\n", True)])
def test_a_version_may_have_more_or_less_than_three_numbers(version: str, said: bool) -> None:
    assert guest.has_too_wide_registers(version, "flags\t\t: fpu amx_tile\n") is said


def test_a_version_that_is_none_is_told_where_it_matters() -> None:
    with pytest.raises(RunFailed, match=r"linux\.uml --version: it said 'User Mode', which is no version of Linux"):
        guest.has_too_wide_registers("User Mode\n", "flags\t\t: fpu amx_tile\n")
    assert not guest.has_too_wide_registers("User Mode\n", "processor\t: 0\n")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the call has another number on other processors")
def test_a_program_can_be_started_without_the_call_that_reads_wide_registers() -> None:
    # No process has this pid: without the filter each of the two calls would say so (ESRCH).
    asks = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
        "for request in (0x4204, 16): libc.ptrace(request, 2**22 + 1, 0, 0); print(ctypes.get_errno())"
    )
    argv = system.script(guest_process.__file__, "--without-xstate", "--", sys.executable, "-I", "-c", asks)
    assert system.run(argv).split() == [str(errno.EIO), str(errno.ESRCH)]


@pytest.fixture
def _uml() -> None:
    if uml.complaint():
        pytest.skip(uml.complaint())


@pytest.mark.netem
@pytest.mark.usefixtures("_uml")
class TestWithPackets:
    def test_a_round_trip_takes_both_delays_and_at_best_little_more(self) -> None:
        with link(both(Impairment(delay_ns=25 * MS)), netem="uml") as made:
            assert made.backend == "uml"

            # The quickest: at a load of 14 on two cores the median was 63 ms, the machine's time and not netem's.
            def attempt() -> tuple[bool, float]:
                quickest_s = min(ping(made, 60))
                assert quickest_s >= 0.050
                return quickest_s < 0.0525, quickest_s

            within(5, attempt)
            found = qdiscs(made)
            assert {found[name]["kind"] for name in NAMES} == {"netem"}
            assert {found[name]["options"]["delay"]["delay"] for name in NAMES} == {0.025}

    def test_one_percent_of_loss_is_one_percent_and_nothing_else_is_lost(self) -> None:
        with link(Profile(name="x", to_server=Impairment(loss_ppm=10_000)), netem="uml") as made:

            def attempt() -> tuple[bool, Any]:
                before = counts(made)
                ping(made, 6000)
                # By the kernel's counters: a client that gives up on a late answer must not look like a loss.
                now = settled(lambda: {name: count - before[name] for name, count in counts(made).items()})
                assert now["asked"] == 6000
                assert now["asked"] == now["dropped"] + now["passed"] == now["dropped"] + now["arrived"]
                assert now["answered"] == now["returned"]
                spread = 2.576 * math.sqrt(6000 * 0.01 * 0.99)  # the 99% interval of a binomial count
                return abs(now["dropped"] - 60) < spread, now

            within(4, attempt)

    def test_a_stream_loses_single_segments(self) -> None:
        with link(Profile(name="x", to_server=Impairment(loss_ppm=10_000)), netem="uml") as made:

            def attempt() -> tuple[bool, Any]:
                before = qdiscs(made)["to-server"]
                pour(made, 5 * 10**6)
                after = qdiscs(made)["to-server"]
                lost = after["drops"] - before["drops"]
                sent = after["packets"] - before["packets"] + lost
                spread = 2.576 * math.sqrt(sent * 0.01 * 0.99)
                return sent >= 5 * 10**6 / 1448 and abs(lost - sent * 0.01) < spread, (lost, sent)

            within(4, attempt)

    def test_a_token_bucket_gives_its_rate(self) -> None:
        with link(both(Impairment(delay_ns=MS, rate_bps=50 * 10**6), gso_max_segs=1), netem="uml") as made:

            def attempt() -> tuple[bool, float]:
                # 1448 of 1514 bytes of a frame are the stream's.
                share = pour(made, 8 * 10**6) * 1514 / 1448 / (50 * 10**6)
                return 0.95 < share < 1.05, share

            within(5, attempt)

    @pytest.mark.parametrize("mtu_bytes", [9000, guest.LARGEST_MTU_BYTES])
    def test_a_full_packet_of_a_large_mtu_passes(self, mtu_bytes: int) -> None:
        with link(both(Impairment(delay_ns=MS), mtu_bytes=mtu_bytes), netem="uml") as made:
            took = ping(made, 20, size_bytes=min(mtu_bytes - 28, 65507))
            assert len(took) == 20
            assert qdiscs(made)["to-server"]["bytes"] >= 20 * min(mtu_bytes, 65507)

    def test_a_stream_arrives_whole_over_a_bad_line(self) -> None:
        bad = Impairment(
            delay_ns=2 * MS, jitter_ns=MS, distribution="pareto", loss_ppm=5_000, corrupt_ppm=2_000,
            duplicate_ppm=5_000, reorder_ppm=10_000,
        )  # fmt: skip
        with link(both(bad, gso_max_segs=1), netem="uml") as made:
            assert pour(made, 2 * 10**6) > 0
            assert qdiscs(made)["to-server"]["drops"] > 0

    def test_a_standing_link_can_be_changed_and_keeps_its_promise_about_the_mtu(self) -> None:
        near, far = both(Impairment(delay_ns=MS)), both(Impairment(delay_ns=80 * MS), mtu_bytes=1300)
        with link(near, netem="uml") as made:
            assert min(ping(made, 5)) < 0.080
            made.change(far)
            assert min(ping(made, 5)) >= 0.160
            made.change(Profile(name="plain"))
            assert {found["kind"] for found in qdiscs(made).values()} == {"pfifo_fast"}
            with pytest.raises(SpecError, match="made for MTUs of at most 1500, not 9000"):
                made.change(both(Impairment(delay_ns=MS), mtu_bytes=9000))
            with pytest.raises(SpecError, match="gso_max_segs 8"):
                made.change(both(Impairment(delay_ns=MS), gso_max_segs=8))

    def test_the_mtu_of_a_standing_link_goes_down_and_up_again(self) -> None:
        small, large = both(Impairment(delay_ns=MS)), both(Impairment(delay_ns=MS), mtu_bytes=9000)
        with link(small, netem="uml", later=(large,)) as made:
            for state, passes in ((small, False), (large, True), (small, False), (large, True)):
                made.change(state)
                argv = (sys.executable, "-c", FULL, made.server_address, "8972")
                assert (made.client.run(argv).strip() == "sent") is passes
                assert len(ping(made, 10, size_bytes=state.mtu_bytes - 28)) == 10

    def test_many_commands_are_all_answered(self) -> None:
        with link(both(Impairment(delay_ns=MS)), netem="uml") as made:
            assert made.box is not None
            for number in range(100):
                assert made.box.run(("echo", str(number))) == f"{number}\n"

    def test_a_command_that_fails_in_the_guest_says_why(self) -> None:
        with link(both(Impairment(delay_ns=MS)), netem="uml") as made:
            assert made.box is not None
            with pytest.raises(RunFailed, match=r'tc qdisc add dev nowhere.*Cannot find device "nowhere"'):
                made.box.run(("tc", "qdisc", "add", "dev", "nowhere", "root", "netem"))

    def test_what_the_box_cannot_carry_stops_before_it_is_made(self) -> None:
        refused = both(Impairment(delay_ns=MS), mtu_bytes=65535)
        with pytest.raises(MissingCapability, match="mtu 65535"), link(refused, netem="uml"):
            pass

    @pytest.mark.measures  # it looks at a folder of the whole machine
    def test_nothing_is_left_of_a_box(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setenv("HOME", str(tmp_path))
        before = sorted(os.listdir("/dev/shm"))  # noqa: PTH208, S108 - names are what is compared
        with link(both(Impairment(delay_ns=MS)), netem="uml"):
            boxes = pid_namespaces_below(os.getpid())
            assert len(boxes) == 1
        assert processes_in(boxes) == []
        assert not list(tmp_path.iterdir())
        assert sorted(os.listdir("/dev/shm")) == before  # noqa: PTH208, S108

    @pytest.mark.parametrize("after_s", [None, 0.1, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0])
    def test_the_guest_and_its_helpers_die_with_a_killed_program(self, tmp_path: Path, after_s: float | None) -> None:
        program = """
import time
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network import link
print("started", flush=True)
with link(Profile(name="x", to_server=Impairment(delay_ns=10**6)), netem="uml"):
    print("stands", flush=True)
    time.sleep(100)
"""
        env = {**os.environ, "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
        with subprocess.Popen((sys.executable, "-c", program), stdout=subprocess.PIPE, env=env) as killed:
            assert killed.stdout is not None
            assert killed.stdout.readline() == b"started\n"
            if after_s is None:
                assert killed.stdout.readline() == b"stands\n"
                assert pid_namespaces_below(killed.pid)
            else:
                time.sleep(after_s)
            boxes, family = pid_namespaces_below(killed.pid), descendants(killed.pid)
            killed.kill()
        until = time.monotonic() + 30
        while (processes_in(boxes) or any(map(alive, family))) and time.monotonic() < until:
            time.sleep(0.02)
        assert processes_in(boxes) == []
        assert not any(map(alive, family))
        assert not list(tmp_path.iterdir())


@pytest.mark.nightly
@pytest.mark.netem
@pytest.mark.usefixtures("_uml")
def test_an_ordinary_user_gets_the_same_box() -> None:
    # What netem does with packets in it is its own kernel's, whoever started it.
    names = "round_trip or large_mtu or standing_link or killed_program or nothing_is_left"
    ordinary_user.repeat(__file__, promised="netem", limit_s=600, marks="netem", names=names)


def alive(pid: int) -> bool:
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
    found, fresh = [], [pid]
    while fresh:
        fresh = [child for child, parent in parents.items() if parent in fresh]
        found += fresh
    return found


def pid_namespaces_below(pid: int) -> set[str]:
    """The pid namespaces of its descendants that are not ours."""
    return {space for child in descendants(pid) if (space := pid_namespace(child))} - {pid_namespace(os.getpid())}


def pid_namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def processes_in(spaces: set[str]) -> list[int]:
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if pid_namespace(pid) in spaces and alive(pid)]
