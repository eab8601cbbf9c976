"""Program that tests run inside a namespace: shapes flows of an interface, and kills itself at a chosen stage.

    tool TOOL_STAGE WATCHDOG_STAGE [VARIANT [INTERFACE ADDRESS]]
                                          shape, print each stage, wait for a line on stdin, undo
    watchdog STAGE …                      the watchdog that `tool` starts
    restore | show                        as `net restore` and `net show`

A stage is a number from 0, or -1 for never. At the stage named DRIVER_AT, another program runs DRIVER_RUNS.
DRIVER_LINK is a JSON table with the connections to shape.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable

from ingest_bench.errors import IngestBenchError
from ingest_bench.inputs import records
from ingest_bench.ledger import sessions, watchdog
from ingest_bench.model.network import Impairment, Profile, RealInterface
from ingest_bench.network.act import interface

SLOW = Impairment(rate_bps=8 * 10**6, burst_bytes=10_000)
FULL = Profile(
    name="everything",
    mtu_bytes=1400,
    gso_max_segs=1,
    gso_max_size_bytes=20_000,
    gro_max_size_bytes=30_000,
    offloads={"tso": False, "gso": False, "tx": False, "gro": True},
    congestion_control="reno",
    tcp_rmem_bytes=(4096, 65536, 262144),
    tcp_wmem_bytes=(4096, 16384, 262144),
    to_server=SLOW,
    to_client=SLOW,
)
PROFILES = {
    "plain": Profile(name="plain", to_server=SLOW, to_client=SLOW),
    "far": Profile(
        name="far",
        to_server=Impairment(delay_ns=40 * 10**6, loss_ppm=150_000),
        to_client=Impairment(delay_ns=40 * 10**6, rate_bps=100 * 10**6),
    ),
    "buffers": Profile(name="buffers", tcp_rmem_bytes=(4096, 65536, 262144)),
    "small": Profile(name="small", mtu_bytes=1400),
    "uphill": Profile(name="uphill", to_server=SLOW),
    "marked": Profile(name="marked", to_server=Impairment(delay_ns=10 * 10**6, loss_ppm=150_000, ecn=True)),
}


def write(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def make_stage_callback(kill_at: int) -> Callable[[str], None]:
    count = iter(range(10**6))

    def on_stage(name: str) -> None:
        write(name)
        if name == os.environ.get("DRIVER_AT"):
            subprocess.run(("sh", "-ec", os.environ["DRIVER_RUNS"]), check=True)
        if next(count) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    return on_stage


def tool(kill_at: int, watchdog_kill_at: int, variant: str = "route", device: str = "eth0", address: str = "") -> None:
    if watchdog_kill_at >= 0:
        watchdog.WATCHDOG_COMMAND = (sys.executable, __file__, "watchdog", str(watchdog_kill_at))
    name, _, limit_s = variant.partition("-")
    host = address or ("fd00:40::2" if variant == "ipv6" else "198.18.40.2")
    table = {
        "name": device,
        "to": [f"[{host}]:9200" if ":" in host else f"{host}:9200"],
        "interface_mtu": variant == "mtu",
        "shared_settings": True,
    }
    link = records.from_toml(RealInterface, json.loads(os.environ.get("DRIVER_LINK", "null")) or table, "driver")
    with interface.shape_interface(
        link, PROFILES.get(name, FULL), time_limit_s=float(limit_s or 300), on_stage=make_stage_callback(kill_at)
    ):
        sys.stdin.readline()


def main(words: list[str]) -> int:
    try:
        match words:
            case ["watchdog", stage, *arguments]:
                return watchdog.main(arguments, make_stage_callback(int(stage)))
            case ["tool", stage, watchdog_stage, *arguments]:
                tool(int(stage), int(watchdog_stage), *arguments)
            case ["restore"]:
                write(*sessions.restore_all().undone)
            case ["show"]:
                write(*map(repr, sessions.list_sessions()))
    except IngestBenchError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
