"""Run by tests inside a namespace: shapes flows of an interface, and kills itself at a chosen stage.

    tool TOOL_STAGE DOG_STAGE [VARIANT [INTERFACE ADDRESS]]
                                          shape, say each stage, wait for a line on stdin, put back
    watchdog STAGE …                      the watchdog that `tool` starts
    restore | show                        what `net restore` and `net show` do

A stage is a number, counted from 0, or -1 for never. At the stage called DRIVER_AT, somebody else runs DRIVER_RUNS.
DRIVER_LINK, a table in JSON, says whose connections are shaped. DRIVER_PATIENCE are the seconds in which packets of the
SSH connection must come and go.
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
from ingest_bench.ledger import watchdog
from ingest_bench.model.network import Impairment, Profile, RealLink
from ingest_bench.network.act import interface, ssh

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
FAR = Profile(
    name="far",
    to_server=Impairment(delay_ns=40 * 10**6, loss_ppm=150_000),
    to_client=Impairment(delay_ns=40 * 10**6, rate_bps=100 * 10**6),
)
MARKED = Profile(name="marked", to_server=Impairment(delay_ns=10 * 10**6, loss_ppm=150_000, ecn=True))
SMALL = Profile(name="small", mtu_bytes=1400)
BUFFERS = Profile(name="buffers", tcp_rmem_bytes=(4096, 65536, 262144))
PLAIN = Profile(name="plain", to_server=SLOW, to_client=SLOW)
UPHILL = Profile(name="uphill", to_server=SLOW)


def say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def stages(kill_at: int) -> Callable[[str], None]:
    count = iter(range(10**6))

    def on_stage(name: str) -> None:
        say(name)
        if name == os.environ.get("DRIVER_AT"):
            subprocess.run(("sh", "-ec", os.environ["DRIVER_RUNS"]), check=True)
        if next(count) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    return on_stage


def tool(kill_at: int, dog_kill_at: int, variant: str = "route", device: str = "eth0", address: str = "") -> None:
    if dog_kill_at >= 0:
        watchdog.COMMAND = (sys.executable, __file__, "watchdog", str(dog_kill_at))
    known = {"plain": PLAIN, "far": FAR, "buffers": BUFFERS, "small": SMALL, "uphill": UPHILL, "marked": MARKED}
    profile = known.get(variant.partition("-")[0], FULL)
    limit_s = float(variant.partition("-")[2] or 300)
    host = address or ("fd00:40::2" if variant == "ipv6" else "198.18.40.2")
    table = {
        "name": device,
        "to": [f"[{host}]:9200" if ":" in host else f"{host}:9200"],
        "interface_mtu": variant == "mtu",
        "shared_settings": True,
    }
    ssh.PATIENCE_S = float(os.environ.get("DRIVER_PATIENCE", ssh.PATIENCE_S))
    link = records.from_toml(RealLink, json.loads(os.environ.get("DRIVER_LINK", "null")) or table, "driver")
    with interface.shaped(link, profile, time_limit_s=limit_s, on_stage=stages(kill_at)):
        sys.stdin.readline()


def main(words: list[str]) -> int:
    try:
        match words:
            case ["watchdog", stage, *rest]:
                return watchdog.main(rest, stages(int(stage)))
            case ["tool", stage, dog_stage, *rest]:
                tool(int(stage), int(dog_stage), *rest)
            case ["restore"]:
                say(*interface.restore().undone)
            case ["show"]:
                say(*map(repr, interface.show()))
    except IngestBenchError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
