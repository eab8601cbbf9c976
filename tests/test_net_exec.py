from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.netns, pytest.mark.processes]

COMMAND = (sys.executable, "-c", "from ingest_bench.cli import main; main()")
NET = (*COMMAND, "net")
LIMIT_S = 90


def net(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run((*NET, *words), capture_output=True, text=True, timeout=LIMIT_S, check=False)


def processes_in(namespace: str) -> list[str]:
    """The command lines of living processes in a network namespace."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(folder / "ns/net") == namespace:  # noqa: PTH115 - a name, not a path
                found.append((folder / "cmdline").read_text(encoding="utf-8").replace("\0", " "))
        except OSError:
            continue
    return found


def wait_until_empty(namespace: str) -> None:
    limit = time.monotonic() + LIMIT_S
    while left := processes_in(namespace):
        assert time.monotonic() < limit, left
        time.sleep(0.02)


# Nobody listens there: only an answer of the other end says so.
REFUSED = "import os, socket; print(socket.socket().connect_ex((os.environ['INGEST_BENCH_SERVER'], 9)))"


def test_a_command_runs_on_the_client_with_the_servers_address_and_its_own_exit_code() -> None:
    script = f'{sys.executable} -c "{REFUSED}"; ip -4 -br addr; exit 7'
    done = net("exec", "ethernet", "--", "sh", "-c", script)
    assert done.returncode == 7
    assert done.stdout.startswith(f"{errno.ECONNREFUSED}\n")
    assert "198.18.1.1/32" in done.stdout
    assert "server 198.18.2.1" in done.stderr
    assert "server 198.18.2.1" not in done.stdout


def test_the_link_has_the_profile_with_what_is_set_on_top() -> None:
    done = net(
        "exec", "jumbo", "--set", "mtu=1234", "--set", "to_server.rate=7mbit", "--", "sh", "-c", "ip link; tc qdisc"
    )
    assert done.returncode == 0, done.stderr
    assert "mtu 1234" in done.stdout
    assert "rate 7Mbit" in done.stdout


def test_a_server_is_waited_for_and_stopped_with_the_command(tmp_path: Path) -> None:
    served = f"{sys.executable} -m http.server --directory {tmp_path} 8000"
    ask = (
        "import os, urllib.request as r; print(r.urlopen(f\"http://{os.environ['INGEST_BENCH_SERVER']}:8000/\").status)"
    )
    words = ("--server", served, "--server-port", "8000", "--", sys.executable, "-c", ask)
    done = net("exec", "ethernet", *words)
    assert done.returncode == 0, done.stderr
    assert "200" in done.stdout
    done = net("exec", "ethernet", "--server", "sh -c 'exit 9'", "--server-port", "8000", "--", "true")
    assert done.returncode == 3
    assert "ended with 9 before it listened on port 8000" in done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize(("own", "ends"), [("0", 3), ("7", 7)])
def test_a_server_that_fails_meanwhile_is_no_success_and_no_other_exit_code_is_lost(own: str, ends: int) -> None:
    done = net("exec", "ethernet", "--server", "sh -c 'exit 9'", "--", "sh", "-c", f"sleep 1; exit {own}")
    assert done.returncode == ends
    assert "--server sh -c 'exit 9': it ended with 9 while COMMAND ran" in done.stderr
    # One that has done its work is no failure.
    assert net("exec", "ethernet", "--server", "true", "--", "sleep", "1").returncode == 0


# Children of children, away in sessions of their own and deaf to signals: on the client's side and on the server's.
STUBBORN = """\
readlink /proc/self/ns/net > "$0"
setsid sh -c 'trap "" INT TERM HUP; while :; do sleep 60; done' &
setsid sh -c 'trap "" INT TERM HUP; while :; do sleep 60; done' &
echo > "$0.ready"
exec sleep 3600
"""


@pytest.mark.parametrize("end", ["SIGINT to all", "SIGTERM", "SIGKILL", "it ends"])
def test_however_it_ends_no_process_and_no_namespace_is_left(tmp_path: Path, end: str) -> None:
    client, server, served = tmp_path / "client", tmp_path / "server", tmp_path / "serve"
    served.write_text(STUBBORN.replace("$0", str(server)), encoding="utf-8")
    script = STUBBORN.replace("exec sleep 3600", "while ! [ -e $0.end ]; do sleep 0.05; done")
    process = subprocess.Popen(
        (*NET, "exec", "ethernet", "--server", f"sh {served}", "--", "sh", "-c", script, str(client)),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    limit = time.monotonic() + LIMIT_S
    while not all(path.with_suffix(".ready").exists() for path in (client, server)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.02)
    namespaces = [path.read_text(encoding="utf-8").strip() for path in (client, server)]
    assert all(len(processes_in(namespace)) >= 4 for namespace in namespaces)
    if end == "it ends":
        client.with_suffix(".end").touch()
    elif end == "SIGINT to all":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.Signals[end])
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == {"SIGKILL": -signal.SIGKILL, "it ends": 0}.get(end, 130)
    for namespace in namespaces:
        wait_until_empty(namespace)


@pytest.mark.nightly
def test_check_prints_promised_against_measured_and_fails_when_a_promise_is_broken() -> None:
    done = net("check", "ethernet-100m")
    assert done.returncode == 0, done.stdout
    assert "│ mtu to-server" in done.stdout
    assert "promises are kept" in done.stdout
    # No machine of today does this between two namespaces.
    done = net("check", "ethernet-100m", "--set", "to_server.rate=100gbit")
    assert done.returncode == 3
    assert " NO │" in done.stdout
    assert "broken: rate to-server" in done.stdout


BACK = "# and back: nothing; all of this goes with its namespaces"


def test_a_dry_run_prints_the_commands_of_the_link_and_runs_nothing(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    done = net("exec", "jumbo", "--dry-run", "--server", "cat -", "--", "touch", str(touched))
    assert done.returncode == 0, done.stderr
    assert "client: ip link set dev client0 mtu 9000 gso_max_segs 1\n" in done.stdout
    assert done.stdout.endswith(f"server: cat -\nclient: touch {touched}\n{BACK}\n")
    assert not touched.exists()


@pytest.mark.parametrize("way", ["a profile", "--set", "an experiment", "a run with --set"])
def test_a_congestion_control_with_a_command_in_it_runs_nothing(way: str, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    evil = f"cubic\nvrf exec default touch {touched}"
    (tmp_path / "profile.toml").write_text(f"congestion_control = {json.dumps(evil)}\n")
    (tmp_path / "experiment.toml").write_text(
        f'[network]\nprofile = "ethernet"\ncongestion_control = {json.dumps(evil)}\n[target]\nname = "sink"\n'
    )
    out = ("--out", str(tmp_path / "out"))
    words = {
        "a profile": ("net", "exec", str(tmp_path / "profile.toml"), "--", "true"),
        "--set": ("net", "exec", "ethernet", "--set", f"congestion_control={evil}", "--", "true"),
        "an experiment": ("run", str(tmp_path / "experiment.toml"), *out),
        "a run with --set": ("run", "verify-recommendation", "--set", f"network.congestion_control={evil}", *out),
    }[way]
    done = subprocess.run((*COMMAND, *words), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, touched.exists()) == (2, False), done.stderr
    assert "is not a congestion control's name" in done.stderr
    assert len(done.stderr.splitlines()) == 1


NOWHERE = ("apply", "ethernet", "--interface", "nosuch0")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("exec", "etherned", "--", "true"), 'did you mean "ethernet"'),
        (("exec", "ethernet", "--set", "mtu", "--", "true"), "write it like mtu=9000"),
        (("exec", "ethernet", "--set", "mtv=9000", "--", "true"), 'did you mean "mtu"'),
        (("exec", "ethernet", "--server-port", "1", "--", "true"), "add --server COMMAND"),
        ((*NOWHERE, "--to", "198.18.0.9:9200", "--for", "5"), "--for: '5' is not a time"),
        ((*NOWHERE, "--to", "198.18.0.9", "--for", "5s"), "to: 198.18.0.9: which port of it"),
        ((*NOWHERE, "--for", "5s"), "whose connections? Give --to HOST:PORT, or --port PORT"),
        ((*NOWHERE, "--to", "127.0.0.1:1", "--for", "5s", "--dry-run"), "no such interface"),
    ],
)
def test_bad_input_is_refused_with_its_remedy_before_anything_starts(words: tuple[str, ...], reason: str) -> None:
    done = net(*words)
    assert done.returncode == 2
    assert reason in done.stderr
