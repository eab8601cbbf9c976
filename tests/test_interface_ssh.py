"""SSH connections of the user's terminal on a shaped interface: they are exempt, and limit what may be shaped."""

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


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("state")) as opened:
        yield opened


@contextmanager
def sshd(machine: Lab, *argv: str, address: str = CLIENT, **env: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command on the terminal of the next connection."""
    words = (*machine.client, sys.executable, str(SSH_LIKE), "serve", address, SSH_PORT, *argv)
    pipe = subprocess.PIPE
    environment = {**machine.env, **env}
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@contextmanager
def ssh(machine: Lab, address: str = CLIENT) -> Iterator[subprocess.Popen[bytes]]:
    """Connect from the other machine."""
    argv = (*machine.server, sys.executable, str(SSH_LIKE), "connect", address, SSH_PORT)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(terminal: subprocess.Popen[bytes], pattern: str) -> str:
    """Return the terminal's output as soon as it matches."""
    assert terminal.stdout is not None
    output = ""
    deadline = time.monotonic() + 60
    while not re.search(pattern, output):
        assert select.select([terminal.stdout], [], [], max(0.0, deadline - time.monotonic()))[0], output
        block = terminal.stdout.read(4096)
        assert block, output
        output += block.decode()
    return output


def write(terminal: subprocess.Popen[bytes], text: str) -> None:
    assert terminal.stdin is not None
    terminal.stdin.write(text.encode())


def apply_command(folder: Path, *words: str, limit: str = "120s") -> tuple[str, ...]:
    (folder / "slow.toml").write_text(SLOW)
    profile = str(folder / "slow.toml")
    return (*TOOL, "net", "apply", profile, "--interface", "eth0", *words, "--for", limit)


def sent_bytes(machine: Lab) -> list[int]:
    """Return the bytes that left each ifb device."""
    links = json.loads(machine.run("ip", "-s", "-j", "link", "show", "type", "ifb"))
    return [link["stats64"]["tx"]["bytes"] for link in links]


def measure_key_echoes_s(terminal: subprocess.Popen[bytes], count: int) -> list[float]:
    times_s = []
    for _ in range(count):
        begun = time.monotonic()
        write(terminal, "x")
        read_until(terminal, "x")
        times_s.append(time.monotonic() - begun)
    return times_s


@pytest.mark.parametrize(
    ("local", "remote"),
    [
        (CLIENT, SERVER),
        pytest.param("fd00:40::1", "[fd00:40::2]", marks=[NEEDS_IPV6, pytest.mark.nightly]),
    ],
)
def test_terminal_on_the_default_route_stays_fast_while_a_flow_is_shaped(
    machine: Lab, tmp_path: Path, local: str, remote: str
) -> None:
    machine.run("ip", "route", "add", "default", "via", SERVER)
    try:
        before = machine.snapshot()
        argv = apply_command(tmp_path, "--to", f"{remote}:{PORT}", "--allow-default-route")
        host = remote.strip("[]")
        with (
            ready((*machine.server, sys.executable, str(ECHO), "serve", host, str(PORT))),
            sshd(machine, *argv, address=local) as daemon,
            ssh(machine, local) as terminal,
        ):
            output = read_until(terminal, "Ctrl-C ends it")
            end = re.escape(f"[{local}]" if ":" in local else local)
            assert re.search(rf"exempt: SSH \S+ to {end}:22", " ".join(output.split())), output
            send = (*machine.client, sys.executable, str(ECHO), "send", host, str(PORT), str(SIZE))
            with subprocess.Popen(send, stdout=subprocess.PIPE, text=True) as flow:
                time.sleep(1)
                echoes_s = measure_key_echoes_s(terminal, 40)
                assert flow.poll() is None, "the flow ended before the terminal was measured"
                times = json.loads(flow.communicate(timeout=120)[0])
            shaped_bytes = sent_bytes(machine)
            write(terminal, "\x03")
            assert daemon.wait(60) == 130
        # The flow filled its queue; the terminal was never in it.
        assert min(times["there_s"], times["back_s"]) > 0.8 * SIZE * 8 / 1e6
        assert sorted(echoes_s)[len(echoes_s) // 2] < 0.02, echoes_s
        assert len(shaped_bytes) == 2
        assert all(SIZE < count < 1.2 * SIZE for count in shaped_bytes), shaped_bytes
        machine.assert_restored(before)
    finally:
        machine.run("ip", "route", "del", "default")


@pytest.mark.parametrize(
    ("words", "limit", "reason"),
    [
        (("--port", "20-30"), "60s", "is among the connections to shape"),
        (("--to", f"{SERVER}:{PORT}"), "601s", "can be shaped for 600 s, not for 601 s"),
    ],
)
def test_shaping_the_terminal_or_for_too_long_is_refused(
    machine: Lab, tmp_path: Path, words: tuple[str, ...], limit: str, reason: str
) -> None:
    before = machine.snapshot()
    with sshd(machine, *apply_command(tmp_path, *words, limit=limit)) as daemon, ssh(machine) as terminal:
        output = read_until(terminal, r"error:[^\0]*\n")
        assert daemon.wait(60) == 2, output
    assert reason in " ".join(output.split())
    machine.assert_restored(before)


@pytest.mark.nightly
def test_ssh_limit_allows_a_longer_time(machine: Lab, tmp_path: Path) -> None:
    before = machine.snapshot()
    argv = apply_command(tmp_path, "--to", f"{SERVER}:{PORT}", "--ssh-limit", "2h", limit="1h")
    with sshd(machine, *argv) as daemon, ssh(machine) as terminal:
        read_until(terminal, "Ctrl-C ends it")
        write(terminal, "\x03")
        assert daemon.wait(60) == 130
    machine.assert_restored(before)


def test_outdated_ssh_connection_variable_is_refused(machine: Lab) -> None:
    before = machine.snapshot()
    outdated = f"{SERVER} 50022 {CLIENT} {SSH_PORT}"
    status, _, errors = machine.run_driver("tool", "-1", "-1", "plain", SSH_CONNECTION=outdated)
    assert status == 2
    assert f"names {SERVER}:50022 to {CLIENT}:22, which is not established here" in errors
    machine.assert_restored(before)


@pytest.mark.nightly
def test_kill_while_exempt_filters_are_added_is_undone(machine: Lab) -> None:
    before = machine.snapshot()
    argv = (sys.executable, str(DRIVER))
    with sshd(machine, *argv, "tool", "-1", "-1", "plain") as daemon, ssh(machine) as terminal:
        stages = read_until(terminal, "running\r\n").split("\r\n")
        write(terminal, "\n")
        assert daemon.wait(60) == 0
    machine.assert_restored(before)
    numbers = [number for number, stage in enumerate(stages) if "ssh" in stage or "clsact" in stage]
    assert len(numbers) > 3
    for number in numbers[::2]:
        with sshd(machine, *argv, "tool", str(number), "-1", "plain") as daemon, ssh(machine):
            assert daemon.wait(60) == 256 - signal.SIGKILL
        machine.assert_restored(before, f"killed at: {stages[number]}")


@pytest.mark.parametrize(
    ("variable", "device", "output"),
    [
        ("198.18.49.2 5022 198.18.49.1 22", "eth1", "198.18.49.2:5022 to 198.18.49.1:22\n"),
        ("198.18.49.2 5022 198.18.49.1 22", "eth0", "\n"),
        ("198.18.49.2 x 198.18.49.1 22", "eth1", "\n"),
    ],
)
def test_connection_over_a_bridge_uses_its_ports(machine: Lab, variable: str, device: str, output: str) -> None:
    code = (
        "import sys; from ingest_bench.network.act.interface import ssh_connections_over; "
        "print(*ssh_connections_over(sys.argv[1]))"
    )
    machine.run(
        "sh", "-ec", "ip link add br9 type bridge; ip link set eth1 master br9; ip addr add 198.18.49.1/24 dev br9"
    )
    try:
        assert machine.run("env", f"SSH_CONNECTION={variable}", sys.executable, "-c", code, device) == output
    finally:
        machine.run("ip", "link", "del", "br9")
