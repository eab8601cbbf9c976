"""The probe `host`: counters of /proc as the kernel writes them, and what they grew by."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ingest_bench.model.results import CauseIntervals, Note, Reading, Series
from ingest_bench.probes import PROBES, proc, recording
from ingest_bench.probes.context import ReadContext
from ingest_bench.probes.proc import ThreadSampler, parse_number, parse_schedstat, parse_state, parse_switches

SECOND = 10**9


def context(raw: Path, start_s: int, end_s: int) -> ReadContext:
    return ReadContext(raw=raw, start_ns=start_s * SECOND, end_ns=end_s * SECOND, ports=frozenset(), reader=tuple)


def line(at_s: float, **changed: float | None) -> str:
    at_ns = round(at_s * SECOND)
    values: dict[str, Any] = dict.fromkeys(proc.FIELDS, 0) | {"at_ns": at_ns, "at_monotonic_ns": at_ns} | changed
    return json.dumps([values[name] for name in proc.FIELDS])


def older(line: str) -> str:
    """The line as it was before samples had CLOCK_MONOTONIC."""
    return json.dumps(json.loads(line)[:-1])


def test_stat_of_a_process_with_brackets_and_spaces_in_its_name() -> None:
    fields = ["S", *map(str, range(4, 53))]  # field N holds N
    text = f"4711 (a (b) c) {' '.join(fields)}"
    tick_ns = SECOND // os.sysconf("SC_CLK_TCK")
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    assert proc.parse_stat(text) == (14 * tick_ns, 15 * tick_ns, 10, 12, 20, 24 * page_bytes)


def test_switches_are_the_last_two_lines_of_status() -> None:
    status = b"Name:\tx\nMems_allowed_list:\t0\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n"
    assert parse_switches(status) == (150, 545)


def test_ticks_and_run_queue_are_read_from_stat() -> None:
    text = "cpu  10 2 3 100 5 1 4 6 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\nctxt 777\nprocs_running 3\nprocs_blocked 0\n"
    assert proc.parse_system(text) == (20, 105, 6, 777, 3)


def test_pressure_is_its_totals() -> None:
    text = "some avg10=1.19 avg60=2.93 avg300=1.09 total=8455595\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=12\n"
    assert proc.parse_pressure(text) == {"some": 8455595, "full": 12}
    assert proc.parse_pressure("") == {}


def test_allocation_stalls_of_all_zones_are_summed() -> None:
    zones = "allocstall_dma 1\nallocstall_normal 20\nallocstall_movable 300\npgmajfault 7\n"
    assert proc.parse_vmstat(zones)["allocstall"] == 321
    assert proc.parse_vmstat("allocstall 5\n")["allocstall"] == 5
    assert proc.parse_vmstat("pgmajfault 7\n") == {"pgmajfault": 7}


def test_switches_of_all_threads_are_counted_also_of_ended_ones() -> None:
    switches = ThreadSampler(os.getpid())
    started, may_end = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        may_end.wait()

    before = switches.sample(time.time_ns())
    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    with_thread = switches.sample(time.time_ns())
    may_end.set()
    thread.join()
    assert before <= with_thread <= switches.sample(time.time_ns())
    assert with_thread[0] > 0


def test_a_sample_has_a_value_for_each_field() -> None:
    values = proc.sample(os.getpid(), ThreadSampler(os.getpid()))
    assert len(values) == len(proc.FIELDS)
    assert all(isinstance(value, int) or value is None for value in values)


def test_process_whose_name_is_not_text_is_sampled() -> None:
    named = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'\\xff) R', 0, 0, 0); print(flush=True); sys.stdin.read()"
    argv = [sys.executable, "-S", "-c", named]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert b"\xff" in Path(f"/proc/{child.pid}/comm").read_bytes()
        values = proc.sample(child.pid, ThreadSampler(child.pid))
        child.communicate()
    assert values[proc.FIELDS.index("server_threads")] == 1


def test_readings_are_increases_within_the_measurement(tmp_path: Path) -> None:
    lines = [
        line(9, server_user_ns=0),
        line(10, server_user_ns=2 * SECOND, server_voluntary_switches=100, run_queue=1, cpu_busy_ticks=0),
        line(
            11,
            server_user_ns=3 * SECOND,
            server_minor_faults=90,
            server_major_faults=10,
            server_voluntary_switches=150,
            run_queue=3,
            cpu_busy_ticks=30,
        ),
        line(
            12,
            server_user_ns=4 * SECOND,
            server_system_ns=SECOND,
            server_minor_faults=90,
            server_major_faults=10,
            server_voluntary_switches=170,
            run_queue=2,
            cpu_busy_ticks=60,
            cpu_steal_ticks=20,
        ),
        line(13, server_user_ns=99 * SECOND),
        line(14)[:7],
    ]
    (tmp_path / "host.jsonl").write_text("\n".join(lines))
    measured = list(PROBES["host"].read(context(tmp_path, 10, 13)))
    values = {item.name: item.value for item in measured if isinstance(item, Reading)}
    assert (values["server_cpu_s"], values["server_cpu_user_s"], values["server_cpu_system_s"]) == (3, 2, 1)
    assert values["server_context_switches_voluntary"] == 70
    assert (values["run_queue_mean"], values["run_queue_max"]) == (2, 3)
    # What was stolen is neither busy nor idle: 60 and 20 of 80 ticks.
    assert (values["cpu_busy_share"], values["cpu_steal_share"]) == (0.75, 0.25)
    over_time = {item.name: item for item in measured if isinstance(item, Series)}
    cores = over_time["server_cpu_cores"]
    assert cores.at_ns[:3] == (10 * SECOND, 11 * SECOND, 12 * SECOND)
    assert cores.values[:3] == (2, 1, 2)
    assert over_time["server_cpu_system_cores"].values[:3] == (0, 0, 1)
    assert over_time["server_page_faults_per_s"].values[:3] == (0, 100, 0)
    assert over_time["server_context_switches_per_s"].values[1:3] == (50, 20)


def test_cpu_ticks_that_decrease_count_as_zero(tmp_path: Path) -> None:
    # A machine that moved to another host: what was stolen there is counted from 0 on.
    steal = [1000, 1010, 0, 10]
    lines = [
        line(10 + at / 10, cpu_busy_ticks=30 * at, cpu_idle_ticks=60 * at, cpu_steal_ticks=ticks)
        for at, ticks in enumerate(steal)
    ]
    (tmp_path / "host.jsonl").write_text("\n".join(lines))
    measured = list(PROBES["host"].read(context(tmp_path, 10, 13)))
    values = {item.name: item.value for item in measured if isinstance(item, Reading)}
    assert (values["cpu_busy_share"], values["cpu_steal_share"]) == (90 / 290, 20 / 290)
    spans = {item.cause: item.intervals for item in measured if isinstance(item, CauseIntervals)}
    assert spans["CPU stolen by the hypervisor"] == ()


def test_missing_counter_is_unavailable(tmp_path: Path) -> None:
    lacks: dict[str, None] = dict.fromkeys(("compact_stall", "numa_pages_migrated", "allocstall"))
    lines = [line(10, **lacks, thp_fault_alloc=4, pgmajfault=7), line(11, **lacks, thp_fault_alloc=9, pgmajfault=7)]
    (tmp_path / "host.jsonl").write_text("\n".join(lines))
    measured = list(PROBES["host"].read(context(tmp_path, 10, 13)))
    values = {item.name: item.value for item in measured if isinstance(item, Reading)}
    assert {values[name] for name in lacks} == {None}
    over_time = {item.name for item in measured if isinstance(item, Series)}
    assert over_time.isdisjoint({"compact_stall_per_s", "numa_pages_migrated_per_s"})
    assert "server_page_faults_per_s" in over_time
    assert values["pgmajfault"] == 0
    assert values["thp_fault_alloc"] == 5


def test_without_samples_there_is_only_a_note(tmp_path: Path) -> None:
    measured = list(PROBES["host"].read(context(tmp_path, 10, 13)))
    assert [type(item) for item in measured] == [Note]


def test_causes_of_the_machine_have_intervals(tmp_path: Path) -> None:
    lines = [
        line(10.0),
        line(10.1, server_threads_stopped=12),
        line(10.2, server_throttled_ns=5_000_000),
        line(10.3, server_throttled_ns=65_000_000, pressure_io_full_us=50_000, compact_stall=1),
        line(
            10.4,
            server_throttled_ns=65_000_000,
            pressure_io_full_us=60_000,
            compact_stall=1,
            numa_pages_migrated=2560,
        ),
        line(10.5, pressure_memory_full_us=50_000, cpu_busy_ticks=1000, cpu_steal_ticks=1000, cpu_idle_ticks=1000),
        line(10.6, pressure_memory_full_us=60_000, cpu_busy_ticks=1000, cpu_steal_ticks=1000, cpu_idle_ticks=1000),
    ]
    (tmp_path / "host.jsonl").write_text("\n".join(lines))
    values = {
        item.cause: [(span.start_ns / SECOND, span.end_ns / SECOND) for span in item.intervals]
        for item in PROBES["host"].read(context(tmp_path, 10, 11))
        if isinstance(item, CauseIntervals)
    }
    assert values["server process stopped"] == [(10.05, 10.15)]
    assert values["server held back by its CPU quota"] == [(10.2, 10.3)]
    assert values["everything waiting for a disk"] == [(10.2, 10.3)]
    assert values["memory being compacted"] == [(10.2, 10.3)]
    assert values["pages moved between NUMA nodes"] == [(10.3, 10.4)]
    assert values["everything waiting for memory"] == [(10.4, 10.5)]
    assert values["CPU stolen by the hypervisor"] == [(10.4, 10.5)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("back_s", [0.1, 0.6], ids=["to the same moment", "further"])
def test_old_samples_after_a_clock_step_back_have_no_rate(tmp_path: Path, back_s: float) -> None:
    moments = [10 + at / 10 - (back_s if at >= 5 else 0) for at in range(20)]
    lines = [
        older(
            line(
                moment,
                server_user_ns=at * SECOND // 20,
                server_threads_stopped=1,
                pressure_io_full_us=at * 10_000,
                compact_stall=at,
                cpu_busy_ticks=5 * at,
                cpu_idle_ticks=5 * at,
            )
        )
        for at, moment in enumerate(moments)
    ]
    (tmp_path / "host.jsonl").write_text("\n".join(lines))
    measured = list(PROBES["host"].read(context(tmp_path, 10, 12)))
    over_time = [item for item in measured if isinstance(item, Series)]
    assert all(list(item.at_ns) == sorted(set(item.at_ns)) for item in over_time)
    cores = next(item for item in over_time if item.name == "server_cpu_cores")
    assert cores.values == pytest.approx([0.5] * (19 - round(back_s * 10)))
    values = {item.name: item.value for item in measured if isinstance(item, Reading)}
    assert values["pressure_io_full_share"] == pytest.approx(0.1)
    spans = {item.cause: item.intervals for item in measured if isinstance(item, CauseIntervals)}
    assert spans["everything waiting for a disk"] == ()
    for cause in ("server process stopped", "memory being compacted"):
        assert all(span.start_ns < span.end_ns for span in spans[cause])
        assert list(spans[cause]) == sorted(spans[cause], key=lambda span: span.start_ns)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("set_s", [-3600, -0.15, 0.6, 9], ids=["an hour back", "back", "forward", "far forward"])
def test_clock_step_changes_neither_rates_nor_times(tmp_path: Path, set_s: float) -> None:
    # The clock that counts is that of the end: the samples of the load are on it.
    walls = [10 + at / 10 - (set_s if at < 5 else 0) for at in range(20)]
    lines = [
        line(
            wall,
            at_monotonic_ns=(1000 + at) * SECOND // 10,
            server_user_ns=at * SECOND // 20,
            pressure_io_full_us=at * 60_000,
            server_threads_stopped=int(at == 3),
        )
        for at, wall in enumerate(walls)
    ]
    (tmp_path / "host.jsonl").write_text("\n".join(lines))
    waited = wait(walls[2], walls[3], 7, "write", 60), wait(walls[4], walls[5], 8, "merge", 60)
    (tmp_path / "host-threads.jsonl").write_text("\n".join(waited))
    measured = list(PROBES["host"].read(context(tmp_path, 10, 12)))
    cores = next(item for item in measured if isinstance(item, Series) and item.name == "server_cpu_cores")
    assert cores.at_ns == tuple((101 + at) * SECOND // 10 for at in range(19))
    assert cores.values == pytest.approx([0.5] * 19)
    values = {item.name: item.value for item in measured if isinstance(item, Reading)}
    assert values["pressure_io_full_share"] == pytest.approx(0.6)
    assert values["server_cpu_s"] == pytest.approx(0.95)
    spans = {
        item.cause: [(span.thread, span.start_ns / SECOND, span.end_ns / SECOND) for span in item.intervals]
        for item in measured
        if isinstance(item, CauseIntervals)
    }
    assert spans["server process stopped"] == [("", 10.25, 10.35)]
    assert spans["server threads waiting for a CPU"] == [("merge", 10.4, 10.5), ("write", 10.2, 10.3)]


@pytest.mark.parametrize("moments", [(11, 11), (11, 10)])
def test_two_samples_at_one_time_are_not_enough(tmp_path: Path, moments: tuple[int, int]) -> None:
    (tmp_path / "host.jsonl").write_text("\n".join(older(line(at)) for at in moments))
    assert [type(item) for item in PROBES["host"].read(context(tmp_path, 10, 13))] == [Note]


def test_cpus_are_saturated_from_five_runnable_threads_each(tmp_path: Path) -> None:
    # Two CPUs: twenty ticks of a hundredth in each tenth of a second.
    lines = [
        line(10 + at / 10, run_queue=queue, cpu_busy_ticks=15 * at, cpu_idle_ticks=5 * at)
        for at, queue in enumerate([3, 9, 10, 26, 4])
    ]
    (tmp_path / "host.jsonl").write_text("\n".join(lines))
    (values,) = (
        item
        for item in PROBES["host"].read(context(tmp_path, 10, 11))
        if isinstance(item, CauseIntervals) and item.cause == "CPUs saturated"
    )
    assert values.starves_cpu
    assert [(span.start_ns / SECOND, span.end_ns / SECOND) for span in values.intervals] == [
        (10.15, 10.25),
        (10.25, 10.35),
    ]


def wait(since_s: float, at_s: float, thread: int, name: str, waited_ms: int, state: str = "S") -> str:
    moments = {"since_ns": round(since_s * SECOND), "at_ns": round(at_s * SECOND)}
    return json.dumps(moments | {"thread": thread, "name": name, "waited_ns": waited_ms * 10**6, "state": state})


def threads_waiting(raw: Path, *waits: str) -> dict[str, list[tuple[str, float, float]]]:
    (raw / "host.jsonl").write_text("\n".join(line(at) for at in (10, 10.1, 10.2)))
    (raw / "host-threads.jsonl").write_text("\n".join((*waits, waits[0][:30])))
    return {
        item.cause: [(span.thread, span.start_ns / SECOND, span.end_ns / SECOND) for span in item.intervals]
        for item in PROBES["host"].read(context(raw, 10, 11))
        if isinstance(item, CauseIntervals)
    }


def test_waits_of_threads_have_names_and_intervals(tmp_path: Path) -> None:
    causes = threads_waiting(
        tmp_path,
        wait(10, 10.1, 7, "write", 60),
        wait(10.1, 10.2, 7, "write", 80, "D"),
        wait(10.1, 10.2, 8, "http", 49),
        # It ran again after it had waited for longer than the time between two samples.
        wait(10.2, 10.3, 9, "merge", 250),
        # The JVM's own.
        wait(10, 10.1, 10, "C2 CompilerThre", 100, "D"),
        # The clock was set back between its samples.
        wait(10.1, 10.0, 11, "flush", 1, "D"),
    )
    assert causes["server threads waiting for a CPU"] == [("merge", 10.05, 10.3), ("write", 10, 10.2)]
    assert causes["server threads waiting for a disk"] == [("write", 10.15, 10.2)]


def test_thread_names_are_taken_from_the_recording(tmp_path: Path) -> None:
    (tmp_path / "recording.jfr").write_bytes(b"read already")
    content = {
        "events": 1,
        "last_ns": 0,
        "files": [],
        "lost_bytes": 0,
        "stalls": {"threads": {"7": "node[write][T#1]"}},
    }
    key = [recording.READER_VERSION, 10 * SECOND, 11 * SECOND, [], ["recording.jfr"]]
    (tmp_path / "recording.json").write_text(json.dumps({"key": key, "content": content}))
    causes = threads_waiting(tmp_path, wait(10, 10.1, 7, "node[write][T#1", 60), wait(10, 10.1, 8, "other", 60))
    assert [thread for thread, *_ in causes["server threads waiting for a CPU"]] == ["node[write][T#1]", "other"]


def test_without_a_wait_file_there_are_no_thread_causes(tmp_path: Path) -> None:
    (tmp_path / "host.jsonl").write_text("\n".join(line(at) for at in (10, 10.1, 10.2)))
    values = [item.cause for item in PROBES["host"].read(context(tmp_path, 10, 11)) if isinstance(item, CauseIntervals)]
    assert "server threads waiting for a CPU" not in values


def test_thread_that_shares_its_cpu_waits_and_a_sleeping_one_does_not() -> None:
    spin = [sys.executable, "-S", "-c", "while True: pass"]
    children = [subprocess.Popen(command) for command in (spin, spin, spin, ["sleep", "60"])]
    try:
        for child in children:
            os.sched_setaffinity(child.pid, {min(os.sched_getaffinity(0))})
        looked = [ThreadSampler(child.pid) for child in children]
        waited = dict.fromkeys(range(len(children)), 0)
        until = time.monotonic() + 30
        while min(waited[spinning] for spinning in range(3)) < SECOND // 5 and time.monotonic() < until:
            for number, threads in enumerate(looked):
                threads.sample(time.time_ns())
                waited[number] += sum(item.waited_ns for item in threads.waits())
            time.sleep(0.1)
        assert min(waited[spinning] for spinning in range(3)) >= SECOND // 5
        assert waited[3] == 0
        assert [item.thread for item in looked[0].waits()] in ([children[0].pid], [])
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_thread_number_is_that_of_its_own_namespace() -> None:
    status = b"Name:\tC2 CompilerThre\nState:\tD (disk sleep)\nPid:\t4711\nNSpid:\t4711\t12\n"
    assert (parse_number(status), parse_state(status)) == (12, "D")
    assert parse_number(b"Name:\tx\nPid:\t4711\n") == 4711
    assert parse_schedstat(b"100 2000 3\n") == 2000


def test_uncounted_quota_is_not_searched_for(tmp_path: Path) -> None:
    (tmp_path / "host.jsonl").write_text("\n".join(line(at, server_throttled_ns=None) for at in (10, 10.1, 10.2)))
    values = [item.cause for item in PROBES["host"].read(context(tmp_path, 10, 11)) if isinstance(item, CauseIntervals)]
    assert "server held back by its CPU quota" not in values
    assert "server process stopped" in values


# A process with 80 threads, and the probe where a process may have 100 open files.
MANY_THREADS = """
import threading, time
for _ in range(79):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print(flush=True)
time.sleep(60)
"""
FEW_FILES = 'ulimit -Sn 100 && exec "$0" -m ingest_bench.probes.proc "$@"'


def test_server_with_more_threads_than_half_of_the_file_limit_is_sampled(tmp_path: Path) -> None:
    samples_file = tmp_path / "host.jsonl"
    samples_file.touch()
    with subprocess.Popen([sys.executable, "-c", MANY_THREADS], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        argv = [
            "sh",
            "-c",
            FEW_FILES,
            sys.executable,
            str(server.pid),
            str(samples_file),
            str(tmp_path / "waits.jsonl"),
        ]
        with subprocess.Popen(argv) as probe:
            while probe.poll() is None and len(samples_file.read_text().splitlines()) < 2:
                time.sleep(0.05)
            probe.kill()
        server.kill()
    threads = proc.FIELDS.index("server_threads")
    assert [json.loads(line)[threads] for line in samples_file.read_text().splitlines()[:2]] == [80, 80]


def test_stopped_process_has_stopped_threads() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        switches = ThreadSampler(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        switches.sample(time.time_ns())
        assert switches.states()["T"] == 1
    finally:
        child.kill()
        child.wait()
