"""A machine with one interface and our SSH connection on it: named, spared, and proven spared before anything else."""

from __future__ import annotations

import json
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from interface_lab import CLIENT, DRIVER, NEEDS_IPV6, PORT, SERVER, Lab, lab
from readied import ready

pytestmark = pytest.mark.netns

SSH_LIKE, ECHO = (Path(__file__).with_name(name) for name in ("ssh_like.py", "flow_echo.py"))
SSH_PORT = "22"
TOOL = (sys.executable, "-c", "from ingest_bench.cli import main; main()")
SLOW = 'medium = "veth"\n[to_server]\nrate = "1mbit"\n[to_client]\nrate = "1mbit"\n'
SIZE = 500_000
PLAIN = ("tool", "-1", "-1", "plain")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("state")) as made:
        yield made


@contextmanager
def sshd(place: Lab, way: str, *argv: str, address: str = CLIENT, **env: str) -> Iterator[subprocess.Popen[str]]:
    """One that runs a command for who connects."""
    words = (*place.client, sys.executable, str(SSH_LIKE), "serve", address, SSH_PORT, way, *argv)
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env={**place.env, **env}) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@contextmanager
def admin(place: Lab, address: str = CLIENT) -> Iterator[subprocess.Popen[bytes]]:
    """Who has connected from the other machine."""
    argv = (*place.server, sys.executable, str(SSH_LIKE), "connect", address, SSH_PORT)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            yield process
        finally:
            process.kill()


def sees(terminal: subprocess.Popen[bytes], pattern: str) -> str:
    """What the terminal shows, until it matches."""
    assert terminal.stdout is not None
    shown = ""
    until = time.monotonic() + 60
    while not re.search(pattern, shown):
        assert select.select([terminal.stdout], [], [], max(0.0, until - time.monotonic()))[0], shown
        block = terminal.stdout.read(4096)
        assert block, shown
        shown += block.decode()
    return shown


def types(terminal: subprocess.Popen[bytes], text: str) -> None:
    assert terminal.stdin is not None
    terminal.stdin.write(text.encode())


def apply(folder: Path, *words: str, limit: str = "120s") -> tuple[str, ...]:
    (folder / "slow.toml").write_text(SLOW)
    profile = str(folder / "slow.toml")
    return (*TOOL, "net", "apply", profile, "--interface", "eth0", *words, "--for", limit)


def counted(place: Lab) -> dict[str, tuple[int, int]]:
    """Bytes that our devices have passed on, and packets that they got and dropped."""
    listed = json.loads(place.run("ip", "-s", "-j", "link", "show", "type", "ifb"))
    return {one["ifname"]: (one["stats64"]["tx"]["bytes"], one["stats64"]["rx"]["dropped"]) for one in listed}


@contextmanager
def echo(place: Lab, address: str) -> Iterator[None]:
    argv = (*place.server, sys.executable, str(ECHO), "serve", address, str(PORT))
    with ready(argv):
        yield


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("own", "far"), [(CLIENT, SERVER), pytest.param("fd00:40::1", "[fd00:40::2]", marks=NEEDS_IPV6)]
)
def test_the_terminal_of_the_only_interface_is_spared_beside_the_flow_that_is_shaped(
    place: Lab, tmp_path: Path, own: str, far: str
) -> None:
    place.run("ip", "route", "add", "default", "via", SERVER)
    try:
        before = place.snapshot()
        argv = apply(tmp_path, "--to", f"{far}:{PORT}", "--allow-default-route")
        with (
            echo(place, far.strip("[]")),
            sshd(place, "pty", *argv, address=own) as daemon,
            admin(place, own) as terminal,
        ):
            shown = sees(terminal, "Ctrl-C ends it")
            # Named with both ends, and by packets of both directions.
            end = re.escape(f"[{own}]" if ":" in own else own)
            said = re.search(rf"spared: SSH \S+ to {end}:22: (\d+) packets out and (\d+) in", " ".join(shown.split()))
            assert said, shown
            assert min(map(int, said.groups())) > 0
            to_client, to_server, copies = place.ifbs()
            send = (*place.client, sys.executable, str(ECHO), "send", far.strip("[]"), str(PORT), str(SIZE))
            with subprocess.Popen(send, stdout=subprocess.PIPE, text=True) as flow:
                time.sleep(1)
                waits = []
                for _ in range(40):
                    begun = time.monotonic()
                    types(terminal, "x")
                    sees(terminal, "x")
                    waits.append(time.monotonic() - begun)
                assert flow.poll() is None, "the flow was over too early to be beside the terminal"
                took = json.loads(flow.communicate(timeout=120)[0])
            dropped = counted(place)
            types(terminal, "\x03")
            assert daemon.wait(60) == 130
        # The flow had a queue of its own that was full; the terminal never stood in it.
        assert min(took["there_s"], took["back_s"]) > 0.8 * SIZE * 8 / 1e6
        assert sorted(waits)[len(waits) // 2] < 0.02, waits
        for device in (to_client, to_server):
            assert SIZE < dropped[device][0] < 1.2 * SIZE
        # Copies are counted, and go nowhere.
        assert dropped[copies][0] == 0
        assert dropped[copies][1] >= 2 * len(waits)
        place.is_put_back(before)
    finally:
        place.run("ip", "route", "del", "default")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("words", "limit", "reason"),
    [
        (("--port", "20-30"), "60s", "is one of those that would be shaped"),
        (("--to", f"{SERVER}/32:1024-65535"), "60s", "is one of those that would be shaped"),
        (("--to", "0.0.0.0/0:9200,1-65535"), "60s", "is one of those that would be shaped"),
        (("--to", f"{SERVER}:{PORT}", "--set", "mtu=1400"), "60s", "would hold for your SSH connection"),
        (("--to", f"{SERVER}:{PORT}"), "601s", "may be shaped for 600 s then, not for 601 s"),
        (("--to", f"{SERVER}:{PORT}", "--ssh-limit", "20s"), "30s", "may be shaped for 20 s then, not for 30 s"),
        (("--to", f"{SERVER}:{PORT}", "--ssh-limit", "8days"), "30s", "--ssh-limit"),
    ],
)
def test_what_would_touch_the_terminal_or_last_too_long_is_refused(
    place: Lab, tmp_path: Path, words: tuple[str, ...], limit: str, reason: str
) -> None:
    before = place.snapshot()
    with sshd(place, "pty", *apply(tmp_path, *words, limit=limit)) as daemon, admin(place) as terminal:
        said = sees(terminal, r"error:[^\0]*\n")
        assert daemon.wait(60) == 2, said
    assert reason in " ".join(said.split())
    place.is_put_back(before)


@pytest.mark.nightly
def test_a_longer_time_that_is_asked_for_is_allowed_and_what_all_share_changes_only_where_that_is_asked_for(
    place: Lab, tmp_path: Path
) -> None:
    before = place.snapshot()
    words = ("--to", f"{SERVER}:{PORT}", "--ssh-limit", "2h", "--set", "gso_max_segs=1")
    with sshd(place, "pty", *apply(tmp_path, *words, limit="1h")) as daemon, admin(place) as terminal:
        assert "add --shared-settings" in sees(terminal, "shared-settings")
        assert daemon.wait(60) == 2
    argv = apply(tmp_path, *words, "--shared-settings", limit="1h")
    with sshd(place, "pty", *argv) as daemon, admin(place) as terminal:
        sees(terminal, "Ctrl-C ends it")
        types(terminal, "\x03")
        assert daemon.wait(60) == 130
    place.is_put_back(before)


def test_a_connection_of_which_no_packet_comes_proves_nothing_and_nothing_else_is_changed(place: Lab) -> None:
    before = place.snapshot()
    argv = (sys.executable, str(DRIVER), *PLAIN)
    with sshd(place, "pipe", *argv, DRIVER_PATIENCE="1") as daemon, admin(place):
        out, errors = daemon.communicate(timeout=60)
    assert daemon.returncode == 3
    assert "RunFailed: eth0: no packets of your SSH connection" in errors
    assert "running" not in out
    # Until the proof only what spares it was made: no queue stood yet, and no filter of the flow.
    made = [line for line in out.splitlines() if line.endswith(": done")]
    assert [line for line in made if "ssh" not in line] == ["clsact: done"], out
    place.is_put_back(before)


def test_a_connection_whose_packets_come_by_another_way_is_not_held_to_be_spared(place: Lab) -> None:
    before = place.snapshot()
    elsewhere = "198.18.41.9"
    there = place.from_the_server()
    there.run("sh", "-ec", f"ip addr add {elsewhere}/32 dev lo; ip route add {CLIENT} dev eth1 src {elsewhere}")
    place.run(
        "sh", "-ec", f"ip route add {elsewhere} via {SERVER} dev eth0; sysctl -q -w net.ipv4.conf.all.rp_filter=0"
    )
    place.run("sh", "-ec", "sysctl -q -w net.ipv4.conf.eth1.rp_filter=0")
    try:
        argv = (sys.executable, str(DRIVER), *PLAIN)
        with sshd(place, "pty", *argv) as daemon, admin(place) as terminal:
            said = sees(terminal, "RunFailed[^\0]*interface")
            assert daemon.wait(60) == 3
        assert re.search(r"got [1-9]\d* segments and sent [1-9]\d*, .* met 0 and [1-9]", " ".join(said.split())), said
        place.wait_until_free()
        assert place.leftovers() == []
        assert place.ifbs() == []
    finally:
        place.run("ip", "route", "del", elsewhere)
        there.run("sh", "-ec", f"ip route del {CLIENT} dev eth1; ip addr del {elsewhere}/32 dev lo")
    assert place.snapshot() == before


@pytest.mark.nightly
def test_a_kill_while_the_terminal_is_spared_and_proven_leaves_nothing(place: Lab) -> None:
    before = place.snapshot()
    argv = (sys.executable, str(DRIVER))
    with sshd(place, "pty", *argv, *PLAIN) as daemon, admin(place) as terminal:
        stages = sees(terminal, "running\r\n").split("\r\n")
        types(terminal, "\n")
        assert daemon.wait(60) == 0
    stages = [stage.strip("\0") for stage in stages]
    place.is_put_back(before)
    numbers = {stages.index(stage) for stage in stages if "ssh" in stage or "clsact" in stage or stage == "proving"}
    assert len(numbers) > 6
    for number in sorted(numbers)[::2]:
        with sshd(place, "pty", *argv, "tool", str(number), "-1", "plain") as daemon, admin(place):
            assert daemon.wait(60) == 256 - signal.SIGKILL
        place.is_put_back(before, f"killed at: {stages[number]}")


def test_a_connection_over_a_bridge_runs_over_its_ports_too_and_what_names_none_is_none(place: Lab) -> None:
    code = "import sys; from ingest_bench.network.act.interface_facts import ssh_over; print(*ssh_over(sys.argv[1]))"
    place.run(
        "sh", "-ec", "ip link add br9 type bridge; ip link set eth1 master br9; ip addr add 198.18.49.1/24 dev br9"
    )
    try:
        for named, device, found in (
            ("198.18.49.2 5022 198.18.49.1 22", "eth1", "198.18.49.2:5022 to 198.18.49.1:22\n"),
            ("198.18.49.2 5022 198.18.49.1 22", "eth0", "\n"),
            ("198.18.49.2 x 198.18.49.1 22", "eth1", "\n"),
        ):
            assert place.run("env", f"SSH_CONNECTION={named}", sys.executable, "-c", code, device) == found
    finally:
        place.run("ip", "link", "del", "br9")
