"""CPU seconds that a gigabyte costs to send: our users beside wrk and Locust's own, interleaved, against the sink.

    python benchmarks/sending.py [--seconds 3] [--rounds 5] [--users 4] [--only SENDER …] [--out FILE.json]

All send the same body again and again, to the same server over the same loopback link. A run sends 64 MiB of different
bodies in turn, which no cache of a CPU holds: the senders "pool" do so, wrk by a script in Lua. CPU is user and system
time of the sender from its first request to its last, bytes are what the sink read. wrk is a process that cannot be
asked at its first request: a run of a second is taken off one that is so much longer. Ratios are of medians, and of
the same moments: each round runs every sender once, in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import PATH, WORKLOAD, Bench, Verdict, bodies, one_body, opened, poster

from ingest_bench import system
from ingest_bench.documents.pool import POOL_BYTES
from ingest_bench.load import supervisor
from ingest_bench.load.plan import LoadPlan
from ingest_bench.model.load import LoadOptions, Wire

# Documents to a body of about 4 kB, 55 kB (a bulk that fits into one send) and 1 MB.
BODIES = {"4 kB": 8, "55 kB": 110, "1 MB": 2000}
OWN, POOL, WRK, FAST = "ingest-bench", "ingest-bench, pool", "wrk", "FastHttpUser"
WRK_POOL = "wrk, pool"
# What the project promises (docs/how-it-measures.md): the CPU time of the first sender is at most so many times that of
# the second.
TARGETS = {
    ("4 kB", OWN, WRK): 1.15,
    ("55 kB", OWN, WRK): 1.2,
    ("55 kB", POOL, WRK_POOL): 1.2,
    ("1 MB", OWN, WRK): 1.3,
    ("1 MB", POOL, WRK_POOL): 1.3,
    ("55 kB", OWN, FAST): 0.2,
}


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU seconds of a sender, and the bytes that the sink read for them."""

    cpu_s: float
    bytes: int


Sender = Callable[[Bench, int, Path], Spent]


def spent(bench: Bench, send: Callable[[], float]) -> Spent:
    """What `send` cost, which gives the CPU seconds of the sender."""
    before = bench.bytes_read()
    cpu_s = send()
    return Spent(cpu_s, bench.bytes_read() - before)


def ours(pool_bytes: int) -> Sender:
    def send(bench: Bench, documents: int, body: Path) -> Spent:
        del body
        length_ns = round(bench.seconds * 1e9)
        options = LoadOptions(users=bench.users, bulk_documents=documents, warm_up_ns=0, measure_ns=length_ns)
        plan = LoadPlan(
            address=bench.listen,
            wire=Wire(keys={"path": PATH}),
            workload=WORKLOAD,
            options=options,
            out=bench.folder / "load",
            pool_bytes=pool_bytes,
        )
        enter = bench.link.client.command
        return spent(bench, lambda: supervisor.start(plan, enter).wait(lambda _: None).cpu_ns / 1e9)

    return send


def wrk(bench: Bench, documents: int, body: Path) -> Spent:
    del documents
    script = (
        f'local file = io.open("{body}", "rb")\n'
        'wrk.method, wrk.body = "POST", file:read("*a")\n'
        'wrk.headers["Content-Type"] = "application/x-ndjson"\n'
    )
    return wrk_with(bench, script)


def wrk_pool(bench: Bench, documents: int, body: Path) -> Spent:
    """The bodies of our own pool in turn, as whole requests that are ready."""
    del body
    pool, lengths = bench.folder / "pool.ndjson", []
    with pool.open("wb") as file:
        for data in bodies(documents, POOL_BYTES):
            file.write(data)
            lengths.append(str(len(data)))
    script = (
        "local requests, place = {}, 0\n"
        "function init()\n"
        f'  local file = io.open("{pool}", "rb")\n'
        '  local headers = {["Content-Type"] = "application/x-ndjson"}\n'
        f"  for _, length in ipairs({{{','.join(lengths)}}}) do\n"
        '    requests[#requests + 1] = wrk.format("POST", nil, headers, file:read(length))\n'
        "  end\n"
        "end\n"
        "function request()\n"
        "  place = place % #requests + 1\n"
        "  return requests[place]\n"
        "end\n"
    )
    return wrk_with(bench, script)


def wrk_with(bench: Bench, script: str) -> Spent:
    """What the seconds after the first one cost."""
    file = bench.folder / "post.lua"
    file.write_text(script)

    def run(seconds: int) -> Spent:
        argv = ("wrk", "-t", "1", "-c", str(bench.users), "-d", str(seconds), "-s", str(file))
        command = bench.link.client.command((*argv, f"http://{bench.listen}{PATH}"))
        return spent(bench, lambda: cpu_s_of(command))

    first, whole = run(1), run(1 + max(1, round(bench.seconds)))
    return Spent(whole.cpu_s - first.cpu_s, whole.bytes - first.bytes)


def cpu_s_of(command: Sequence[str]) -> float:
    started = system.start(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(started.pid, 0)
    if status:
        raise SystemExit(f"wrk failed: {status}")
    started.returncode = 0
    return used.ru_utime + used.ru_stime


def locust(kind: str) -> Sender:
    def send(bench: Bench, documents: int, body: Path) -> Spent:
        del documents
        argv = (sys.executable, __file__, "--as", kind, str(bench.users), str(bench.seconds), str(body))
        command = bench.link.client.command((*argv, f"http://{bench.listen}"))
        return spent(bench, lambda: float(system.run(command, timeout_s=bench.seconds + 60)))

    return send


def be_locust(kind: str, users: int, seconds: float, body: Path, host: str) -> None:
    """A child process: Locust's own user, and the CPU seconds that it used on standard output."""
    import time  # noqa: PLC0415 - Locust patches what is imported after it

    import gevent  # noqa: PLC0415
    import locust as framework  # noqa: PLC0415
    from locust.env import Environment  # noqa: PLC0415

    users_of_it = poster(getattr(framework, kind), body, host)
    runner = Environment(user_classes=[users_of_it]).create_local_runner()
    before_s = time.process_time()
    runner.start(users, spawn_rate=users)
    gevent.sleep(seconds)
    runner.quit()
    print(time.process_time() - before_s)


SENDERS: Mapping[str, Sender] = {
    # A pool of one byte holds one body: the one that the others send.
    OWN: ours(1),
    POOL: ours(POOL_BYTES),
    WRK: wrk,
    WRK_POOL: wrk_pool,
    FAST: locust("FastHttpUser"),
    "HttpUser": locust("HttpUser"),
}


def measure(bench: Bench, rounds: int, senders: list[str]) -> dict[str, dict[str, list[float]]]:
    """CPU seconds per GB: body, sender, one value a round. The round before the first warms the server up."""
    found: dict[str, dict[str, list[float]]] = {size: {name: [] for name in senders} for size in BODIES}
    for size, documents in BODIES.items():
        body = one_body(documents, bench.folder)
        SENDERS[OWN](bench, documents, body)
        for number in range(rounds):
            # Each round begins with another one: what comes first finds a cooler machine.
            for name in senders[number % len(senders) :] + senders[: number % len(senders)]:
                used = SENDERS[name](bench, documents, body)
                found[size][name].append(used.cpu_s / used.bytes * 1e9)
    return found


def table(found: Mapping[str, Mapping[str, list[float]]]) -> str:
    """Markdown: medians and their range."""
    lines = ["| body | sender | CPU s/GB (median, range) |", "|---|---|---|"]
    for size, senders in found.items():
        for name, values in senders.items():
            middle = statistics.median(values)
            lines.append(f"| {size} | {name} | {middle:.3f} ({min(values):.3f} to {max(values):.3f}) |")
    return "\n".join(lines)


def judged(found: Mapping[str, Mapping[str, list[float]]]) -> Verdict:
    """Which promises are missed, by the ratio of the medians, and which were not measured. Each is printed."""
    verdict = Verdict()
    for (size, first, second), limit in TARGETS.items():
        if first not in found[size] or second not in found[size]:
            verdict.undecided.append(f"{size}: {first} / {second} was not measured, promised at most {limit:g}")
            continue
        ratio = statistics.median(found[size][first]) / statistics.median(found[size][second])
        said = f"{size}: {first} / {second} is {ratio:.2f}, promised at most {limit:g}"
        print(said)
        if ratio > limit:
            verdict.missed.append(said)
    return verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--only", nargs="+", choices=list(SENDERS), default=list(SENDERS), metavar="SENDER")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    if {WRK, WRK_POOL} & set(chosen.only) and system.which("wrk") is None:
        print("wrk is missing, and all promises are about it: apt-get install wrk")
        return 3
    with opened(chosen.users, chosen.seconds) as bench:
        found = measure(bench, chosen.rounds, chosen.only)
    print(table(found))
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(found, indent=1))
    return judged(found).told()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as"]:
        kind, users, seconds, body, host = sys.argv[2:]
        be_locust(kind, int(users), float(seconds), Path(body), host)
    else:
        sys.exit(main())
