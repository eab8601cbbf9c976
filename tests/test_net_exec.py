from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fault_lab import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.processes]

COMMAND = (sys.executable, "-c", "from ingest_bench.cli import main; main()")
NET = (*COMMAND, "net")
LIMIT_S = 90


def run_net(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run((*NET, *words), capture_output=True, text=True, timeout=LIMIT_S, check=False)


def list_processes(namespace: str) -> list[str]:
    """Return the command lines of the processes in a network namespace."""
    command_lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(folder / "ns/net") == namespace:  # noqa: PTH115 - a name, not a path
                command_lines.append((folder / "cmdline").read_text(encoding="utf-8").replace("\0", " "))
        except OSError:
            continue
    return command_lines


# Port 9 is closed: the error comes from the other end.
REFUSED = "import os, socket; print(socket.socket().connect_ex((os.environ['INGEST_BENCH_SERVER'], 9)))"


def test_command_runs_on_the_client_and_its_exit_code_is_returned() -> None:
    script = f'{sys.executable} -c "{REFUSED}"; ip -4 -br addr; exit 7'
    done = run_net("exec", "ethernet", "--", "sh", "-c", script)
    assert done.returncode == 7
    assert done.stdout.startswith(f"{errno.ECONNREFUSED}\n")
    assert "198.18.1.1/32" in done.stdout
    assert "server 198.18.2.1" in done.stderr
    assert "server 198.18.2.1" not in done.stdout


def test_set_overrides_the_profile() -> None:
    done = run_net(
        "exec", "jumbo", "--set", "mtu=1234", "--set", "to_server.rate=7mbit", "--", "sh", "-c", "ip link; tc qdisc"
    )
    assert done.returncode == 0, done.stderr
    assert "mtu 1234" in done.stdout
    assert "rate 7Mbit" in done.stdout


def test_server_is_awaited_and_stopped_with_the_command(tmp_path: Path) -> None:
    server = f"{sys.executable} -m http.server --directory {tmp_path} 8000"
    request = (
        "import os, urllib.request as r; print(r.urlopen(f\"http://{os.environ['INGEST_BENCH_SERVER']}:8000/\").status)"
    )
    words = ("--server", server, "--server-port", "8000", "--", sys.executable, "-c", request)
    done = run_net("exec", "ethernet", *words)
    assert done.returncode == 0, done.stderr
    assert "200" in done.stdout
    done = run_net("exec", "ethernet", "--server", "sh -c 'exit 9'", "--server-port", "8000", "--", "true")
    assert done.returncode == 3
    assert "exited with status 9 before it listened on port 8000" in done.stderr


def test_failed_server_is_reported_unless_the_command_failed_too() -> None:
    for status, expected in ((0, 3), (7, 7)):
        done = run_net("exec", "ethernet", "--server", "sh -c 'exit 9'", "--", "sh", "-c", f"sleep 1; exit {status}")
        assert done.returncode == expected
        assert "--server sh -c 'exit 9': it exited with 9 while COMMAND ran" in done.stderr
    # A server that has succeeded may exit.
    assert run_net("exec", "ethernet", "--server", "true", "--", "sleep", "0.5").returncode == 0


# Grandchildren in separate sessions that ignore signals, on the client's and the server's side.
STUBBORN = """\
readlink /proc/self/ns/net > "$0"
setsid sh -c 'trap "" INT TERM HUP; while :; do sleep 60; done' &
setsid sh -c 'trap "" INT TERM HUP; while :; do sleep 60; done' &
echo > "$0.ready"
exec sleep 3600
"""


@pytest.mark.parametrize("end", ["SIGINT to all", "SIGTERM", "SIGKILL", "exits"])
def test_no_process_and_no_namespace_is_left(tmp_path: Path, end: str) -> None:
    client, server, script_file = tmp_path / "client", tmp_path / "server", tmp_path / "serve"
    script_file.write_text(STUBBORN.replace("$0", str(server)), encoding="utf-8")
    script = STUBBORN.replace("exec sleep 3600", "while ! [ -e $0.end ]; do sleep 0.05; done")
    process = subprocess.Popen(
        (*NET, "exec", "ethernet", "--server", f"sh {script_file}", "--", "sh", "-c", script, str(client)),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    are_ready = [path.with_suffix(".ready").exists for path in (client, server)]
    wait_until(lambda: process.poll() is not None or all(is_ready() for is_ready in are_ready))
    assert process.poll() is None, process.communicate()
    namespaces = [path.read_text(encoding="utf-8").strip() for path in (client, server)]
    assert all(len(list_processes(namespace)) >= 4 for namespace in namespaces)
    if end == "exits":
        client.with_suffix(".end").touch()
    elif end == "SIGINT to all":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.Signals[end])
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == {"SIGKILL": -signal.SIGKILL, "exits": 0}.get(end, 130)
    wait_until(lambda: not any(map(list_processes, namespaces)))


@pytest.mark.nightly
def test_check_prints_a_table_and_fails_if_a_check_fails() -> None:
    done = run_net("check", "ethernet-100m")
    assert done.returncode == 0, done.stdout
    assert "│ mtu to-server" in done.stdout
    assert "checks passed" in done.stdout
    # No present machine reaches this between two namespaces.
    done = run_net("check", "ethernet-100m", "--set", "to_server.rate=100gbit")
    assert done.returncode == 3
    assert " NO │" in done.stdout
    assert "failed: rate to-server" in done.stdout


UNDO = "# undo: nothing; the kernel removes everything with the namespaces"


def test_dry_run_prints_the_commands_and_runs_nothing(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    done = run_net("exec", "jumbo", "--dry-run", "--server", "cat -", "--", "touch", str(touched))
    assert done.returncode == 0, done.stderr
    assert "client: ip link set dev client0 mtu 9000 gso_max_segs 1\n" in done.stdout
    assert done.stdout.endswith(f"server: cat -\nclient: touch {touched}\n{UNDO}\n")
    assert not touched.exists()
