"""CPU seconds per gigabyte sent: our users, wrk and Locust's users, interleaved, against the sink.

    python benchmarks/sending.py [--seconds 3] [--rounds 5] [--users 4] [--only SENDER …]

All senders send the same body repeatedly to the same server over the same loopback link. The senders "pool" send 64 MiB
of different bodies in turn, which no CPU cache holds (wrk by a Lua script). CPU is user and system time of the sender
from its first request to its last; bytes are those that the sink read. wrk cannot report CPU at its first request: a
run of one second is subtracted from a longer one. Ratios are of medians; each round runs every sender once. A second
table has HTTP/1.1 and HTTP/2 to one Vert.x, per byte that was written.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import PATH, Bench, Verdict, bodies, open_sink, open_vertx

from ingest_bench import system
from ingest_bench.documents.source import POOL_BYTES

# Documents for a body of about 4 kB, 55 kB (a bulk that fits into one send) and 1 MB.
BODIES = {"4 kB": 8, "55 kB": 110, "1 MB": 2000}
OWN, POOL, WRK, FAST = "ingest-bench", "ingest-bench, pool", "wrk", "FastHttpUser"
WRK_POOL = "wrk, pool"
# Limits of the project (docs/how-it-measures.md): CPU time of the first sender divided by that of the second.
LIMITS = {
    ("4 kB", OWN, WRK): 1.15,
    ("55 kB", OWN, WRK): 1.2,
    ("55 kB", POOL, WRK_POOL): 1.2,
    ("1 MB", OWN, WRK): 1.3,
    ("1 MB", POOL, WRK_POOL): 1.3,
    ("55 kB", OWN, FAST): 0.2,
}


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of a sender, and the bytes that the sink read from it."""

    cpu_s: float
    bytes: int


Sender = Callable[[Bench, int, Path], Cost]


def measure_cost(bench: Bench, send: Callable[[], float]) -> Cost:
    """Return the cost of *send*, which returns the CPU seconds of the sender."""
    before = bench.bytes_read()
    cpu_s = send()
    return Cost(cpu_s, bench.bytes_read() - before)


def own_sender(pool_bytes: int) -> Sender:
    def send(bench: Bench, documents: int, _: Path) -> Cost:
        options: dict[str, Any] = {"bulk_documents": documents, "warm_up_ns": 0}
        return measure_cost(
            bench, lambda: bench.start_load("own", pool_bytes=pool_bytes, **options).wait(lambda _: None).cpu_ns / 1e9
        )

    return send


def version_sender(version: str) -> Sender:
    def send(bench: Bench, documents: int, _: Path) -> Cost:
        options: dict[str, Any] = {"bulk_documents": documents, "warm_up_ns": 0, "http_version": version}
        report = bench.start_load("own", pool_bytes=1, **options).wait(lambda _: None)
        return Cost(report.cpu_ns / 1e9, report.bytes_written)

    return send


def wrk(bench: Bench, _: int, body: Path) -> Cost:
    script = (
        f'local file = io.open("{body}", "rb")\n'
        'wrk.method, wrk.body = "POST", file:read("*a")\n'
        'wrk.headers["Content-Type"] = "application/x-ndjson"\n'
    )
    return run_wrk(bench, script)


def wrk_pool(bench: Bench, documents: int, _: Path) -> Cost:
    """Send the bodies of our own pool in turn, as prepared requests."""
    pool, lengths = bench.server.folder / "pool.ndjson", []
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
    return run_wrk(bench, script)


def run_wrk(bench: Bench, script: str) -> Cost:
    """Return the cost of the seconds after the first one."""
    file = bench.server.folder / "post.lua"
    file.write_text(script)

    def run(seconds: int) -> Cost:
        argv = ("wrk", "-t", "1", "-c", str(bench.users), "-d", str(seconds), "-s", str(file))
        command = bench.server.link.client.command((*argv, f"http://{bench.server.listen}{PATH}"))

        def send() -> float:
            process = system.start(command, stdout=subprocess.DEVNULL)
            _, status, used = os.wait4(process.pid, 0)
            if status:
                raise SystemExit(f"wrk failed: {status}")
            process.returncode = 0
            return used.ru_utime + used.ru_stime

        return measure_cost(bench, send)

    first, total = run(1), run(1 + max(1, round(bench.seconds)))
    return Cost(total.cpu_s - first.cpu_s, total.bytes - first.bytes)


def locust_sender(kind: str) -> Sender:
    def send(bench: Bench, _: int, body: Path) -> Cost:
        argv = (sys.executable, __file__, "--as", kind, str(bench.users), str(bench.seconds), str(body))
        command = bench.server.link.client.command((*argv, f"http://{bench.server.listen}"))
        return measure_cost(bench, lambda: float(system.run(command, timeout_s=bench.seconds + 60)))

    return send


def run_locust(kind: str, users: int, seconds: float, body: Path, host: str) -> None:
    """Run one of Locust's users in this child process and print its CPU seconds."""
    import time  # noqa: PLC0415 - Locust patches modules that are imported after it

    import gevent  # noqa: PLC0415
    import locust as framework  # noqa: PLC0415
    from locust.env import Environment  # noqa: PLC0415

    data, headers = body.read_bytes(), {"Content-Type": "application/x-ndjson"}

    def post(user: Any) -> None:
        user.client.post(PATH, data=data, headers=headers)

    user_class = type("Poster", (getattr(framework, kind),), {"tasks": [post], "host": host, "abstract": False})
    runner = Environment(user_classes=[user_class]).create_local_runner()
    before_s = time.process_time()
    runner.start(users, spawn_rate=users)
    gevent.sleep(seconds)
    runner.quit()
    print(time.process_time() - before_s)


SENDERS: Mapping[str, Sender] = {
    # A pool of one byte holds one body: the one that the others send.
    OWN: own_sender(1),
    POOL: own_sender(POOL_BYTES),
    WRK: wrk,
    WRK_POOL: wrk_pool,
    FAST: locust_sender("FastHttpUser"),
    "HttpUser": locust_sender("HttpUser"),
}

# Of one server that speaks both.
VERSIONS: Mapping[str, Sender] = {"HTTP/1.1": version_sender("1.1"), "HTTP/2": version_sender("2")}

Costs = Mapping[str, Mapping[str, list[float]]]
"""CPU seconds per GB: body, sender, one value per round."""


def measure(bench: Bench, rounds: int, senders: Mapping[str, Sender]) -> Costs:
    """Measure all senders. An additional first round warms the server up."""
    names = list(senders)
    costs: dict[str, dict[str, list[float]]] = {size: {name: [] for name in names} for size in BODIES}
    for size, documents in BODIES.items():
        body = bench.server.folder / "body.ndjson"
        body.write_bytes(next(bodies(documents, 1)))
        senders[names[0]](bench, documents, body)
        for number in range(rounds):
            # Each round begins with another sender: the first one finds a cooler machine.
            for name in names[number % len(names) :] + names[: number % len(names)]:
                cost = senders[name](bench, documents, body)
                costs[size][name].append(cost.cpu_s / cost.bytes * 1e9)
    return costs


def format_table(costs: Costs) -> str:
    """Return medians and ranges as Markdown."""
    lines = ["| body | sender | CPU s/GB (median, range) |", "|---|---|---|"]
    for size, senders in costs.items():
        for name, values in senders.items():
            median = statistics.median(values)
            lines.append(f"| {size} | {name} | {median:.3f} ({min(values):.3f} to {max(values):.3f}) |")
    return "\n".join(lines)


def judge(costs: Costs) -> Verdict:
    """Compare the ratios of the medians with `LIMITS`, and print each."""
    verdict = Verdict()
    for (size, first, second), limit in LIMITS.items():
        if first not in costs[size] or second not in costs[size]:
            verdict.undecided.append(f"{size}: {first} / {second} was not measured, limit {limit:g}")
            continue
        ratio = statistics.median(costs[size][first]) / statistics.median(costs[size][second])
        text = f"{size}: {first} / {second} is {ratio:.2f}, limit {limit:g}"
        print(text)
        if ratio > limit:
            verdict.failed.append(text)
    return verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--only", nargs="+", choices=list(SENDERS), default=list(SENDERS), metavar="SENDER")
    options = parser.parse_args()
    if {WRK, WRK_POOL} & set(options.only) and system.which("wrk") is None:
        print("wrk is missing, and all limits refer to it: apt-get install wrk")
        return 3
    with open_sink(options.users, options.seconds) as bench:
        costs = measure(bench, options.rounds, {name: SENDERS[name] for name in options.only})
    print(format_table(costs))
    with open_vertx(options.users, options.seconds) as bench:
        print(f"\nTo Vert.x:\n\n{format_table(measure(bench, options.rounds, VERSIONS))}\n")
    return judge(costs).print()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as"]:
        kind, users, seconds, body, host = sys.argv[2:]
        run_locust(kind, int(users), float(seconds), Path(body), host)
    else:
        sys.exit(main())
