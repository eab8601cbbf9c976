"""The probe `host`: counters of /proc as the kernel writes them, and what they grew by."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest
from probe_lab import causes, make_context, notes, read, readings, series, write_recording

from ingest_bench.host import proc
from ingest_bench.host.cgroup_files import Cgroup
from ingest_bench.host.proc import ThreadSampler, parse_number, parse_switches
from ingest_bench.model.results import CauseIntervals, Note, ProbeOutput
from ingest_bench.probes import PROBES

SECOND = 10**9


def read_host(raw: Path, lines: Iterable[str] = (), start_s: int = 10, end_s: int = 13) -> list[ProbeOutput]:
    (raw / "host.jsonl").write_text("\n".join(lines))
    return read("host", make_context(raw, start_s * SECOND, end_s * SECOND))


def line(at_s: float, **changed: float | None) -> str:
    at_ns = round(at_s * SECOND)
    values: dict[str, Any] = dict.fromkeys(proc.FIELDS, 0) | {"at_ns": at_ns, "at_monotonic_ns": at_ns} | changed
    return json.dumps([values[name] for name in proc.FIELDS])


STALLS = "some avg10=1.19 avg60=2.93 avg300=1.09 total=8455595\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=12\n"
CPUS = "cpu  10 2 3 100 5 1 4 6 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\nctxt 777\nprocs_running 3\nprocs_blocked 0\n"
SWITCHES = b"Name:\tx\nMems_allowed_list:\t0\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n"
TICK_NS, PAGE_BYTES = SECOND // os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        # Field N holds N; the name has brackets and spaces.
        (
            proc.parse_stat,
            f"4711 (a (b) c) S {' '.join(map(str, range(4, 53)))}",
            (14 * TICK_NS, 15 * TICK_NS, 10, 12, 20, 24 * PAGE_BYTES),
        ),
        (parse_switches, SWITCHES, (150, 545)),
        (proc.parse_system, CPUS, (20, 105, 6, 777, 3)),
        (proc.parse_pressure, STALLS, {"some": 8455595, "full": 12}),
        (proc.parse_pressure, "", {}),
        (proc.parse_vmstat, "pgmajfault 7\n", {"pgmajfault": 7}),
        (proc.parse_vmstat, "allocstall 5\n", {"allocstall": 5}),
        # The innermost pid namespace counts.
        (parse_number, b"Name:\tC2 CompilerThre\nPid:\t4711\nNSpid:\t4711\t12\n", 12),
        (parse_number, b"Name:\tx\nPid:\t4711\n", 4711),
    ],
)
def test_file_of_proc_is_parsed(parse: Callable[[Any], Any], text: Any, expected: Any) -> None:
    assert parse(text) == expected


def test_allocation_stalls_of_all_zones_are_summed() -> None:
    zones = "allocstall_dma 1\nallocstall_normal 20\nallocstall_movable 300\npgmajfault 7\n"
    assert proc.parse_vmstat(zones)["allocstall"] == 321


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


def test_a_sample_has_a_value_for_each_field_also_if_the_process_name_is_not_text() -> None:
    named = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'\\xff) R', 0, 0, 0); print(flush=True); sys.stdin.read()"
    argv = [sys.executable, "-S", "-c", named]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert b"\xff" in Path(f"/proc/{child.pid}/comm").read_bytes()
        values = proc.sample(child.pid, ThreadSampler(child.pid), proc.find_cgroups(child.pid))
        child.communicate()
    assert len(values) == len(proc.FIELDS)
    assert all(isinstance(value, int) or value is None for value in values)
    assert values[proc.FIELDS.index("server_threads")] == 1


def test_memory_of_a_cgroup_is_known_unless_the_load_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "memory.current").write_text("4096\n")
    samples = [
        proc.sample(os.getpid(), ThreadSampler(os.getpid()), cgroups)
        for cgroups in (proc.find_cgroups(os.getpid()), {"unshared": Cgroup(tmp_path, 2, tmp_path)})
    ]
    assert [values[proc.FIELDS.index("cgroup_memory_bytes")] for values in samples] == [None, 4096]


def test_readings_are_increases_within_the_measurement(tmp_path: Path) -> None:
    later = {"server_minor_faults": 90, "server_major_faults": 10}
    within: list[dict[str, float | None]] = [
        {"server_context_switches_voluntary": 100, "run_queue": 1},
        {"server_context_switches_voluntary": 150, "run_queue": 3, "cpu_busy_ticks": 30, **later},
        {"server_context_switches_voluntary": 170, "run_queue": 2, "cpu_busy_ticks": 60, **later},
    ]
    within[2] |= {"server_system_ns": SECOND, "cpu_steal_ticks": 20}
    for values, sock_bytes in zip(within, (100, 300, 200), strict=True):
        values["cgroup_sock_bytes"] = sock_bytes
    lines = [line(10 + at, server_user_ns=(2 + at) * SECOND, **values) for at, values in enumerate(within)]
    # The measurement ends between two samples.
    end = {"server_context_switches_voluntary": 170, "cpu_busy_ticks": 60, **later}
    end |= {"server_system_ns": SECOND, "cpu_steal_ticks": 20, "cgroup_sock_bytes": 9000}
    after = line(14, **end, server_user_ns=4 * SECOND), line(15, server_user_ns=99 * SECOND), line(16)[:7]
    outputs = read_host(tmp_path, [line(9), *lines, *after])
    values = readings(outputs)
    assert (values["server_cpu_s"], values["server_cpu_user_s"], values["server_cpu_system_s"]) == (3, 2, 1)
    assert values["server_context_switches_voluntary"] == 70
    assert (values["run_queue_mean"], values["run_queue_max"]) == (2, 3)
    assert (values["cgroup_sock_mean_bytes"], values["cgroup_sock_max_bytes"]) == (200, 300)
    # What was stolen is neither busy nor idle: 60 and 20 of 80 ticks.
    assert (values["cpu_busy_share"], values["cpu_steal_share"]) == (0.75, 0.25)
    over_time = series(outputs)
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
    last = line(11, cpu_busy_ticks=90, cpu_idle_ticks=180, cpu_steal_ticks=10)
    outputs = read_host(tmp_path, [*lines, last], end_s=11)
    values = readings(outputs)
    assert (values["cpu_busy_share"], values["cpu_steal_share"]) == (90 / 290, 20 / 290)
    assert causes(outputs)["CPU stolen by the hypervisor"] == ()


def test_missing_counter_is_unavailable(tmp_path: Path) -> None:
    counters = ("compact_stall", "numa_pages_migrated", "allocstall", "cgroup_sock_bytes", "cgroup_memory_bytes")
    lacks: dict[str, None] = dict.fromkeys(counters)
    faults = ((10, 4), (11, 9), (12, 9))
    lines = [line(at, **lacks, thp_fault_alloc=huge, pgmajfault=7) for at, huge in faults]
    outputs = read_host(tmp_path, lines, end_s=12)
    values = readings(outputs)
    missing = ("compact_stall", "numa_pages_migrated", "allocstall", "cgroup_sock_mean_bytes", "cgroup_sock_max_bytes")
    assert {values[name] for name in missing} == {None}
    over_time = series(outputs).keys()
    assert over_time.isdisjoint({"compact_stall_per_s", "numa_pages_migrated_per_s", "cgroup_memory_bytes"})
    assert over_time >= {"server_page_faults_per_s", "server_rss_bytes"}
    assert values["pgmajfault"] == 0
    assert values["thp_fault_alloc"] == 5


def test_causes_of_the_machine_have_intervals(tmp_path: Path) -> None:
    throttled = {"server_throttled_ns": 65_000_000}
    ticks = dict.fromkeys(("cpu_busy_ticks", "cpu_steal_ticks", "cpu_idle_ticks"), 1000)
    lines = [
        line(10.0),
        line(10.1, server_threads_stopped=12),
        line(10.2, server_throttled_ns=5_000_000),
        line(10.3, **throttled, pressure_io_full_us=50_000, compact_stall=1),
        line(10.4, **throttled, pressure_io_full_us=60_000, compact_stall=1, numa_pages_migrated=2560),
        line(10.5, pressure_memory_full_us=50_000, **ticks),
        line(10.6, pressure_memory_full_us=60_000, **ticks),
    ]
    values = list_spans(read_host(tmp_path, lines))
    assert values["server process stopped"] == [(10.05, 10.15)]
    assert values["server held back by its CPU quota"] == [(10.2, 10.3)]
    assert values["everything waiting for a disk"] == [(10.2, 10.3)]
    assert values["memory being compacted"] == [(10.2, 10.3)]
    assert values["pages moved between NUMA nodes"] == [(10.3, 10.4)]
    assert values["everything waiting for memory"] == [(10.4, 10.5)]
    assert values["CPU stolen by the hypervisor"] == [(10.4, 10.5)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("set_s", [-3600, -0.15, 0.6, 9], ids=["an hour back", "back", "forward", "far forward"])
def test_clock_step_changes_neither_rates_nor_times(tmp_path: Path, set_s: float) -> None:
    # The clock that counts is that of the end: the samples of the load are on it.
    walls = [10 + at / 10 - (set_s if at < 5 else 0) for at in range(21)]
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
    waited = wait(100.2, 100.3, 7, "write", 60), wait(100.4, 100.5, 8, "merge", 60)
    (tmp_path / "host-threads.jsonl").write_text("\n".join(waited))
    outputs = read_host(tmp_path, lines, end_s=12)
    cores = series(outputs)["server_cpu_cores"]
    assert cores.at_ns == tuple((101 + at) * SECOND // 10 for at in range(20))
    assert cores.values == pytest.approx([0.5] * 20)
    values = readings(outputs)
    assert values["pressure_io_full_share"] == pytest.approx(0.6)
    assert values["server_cpu_s"] == pytest.approx(1)
    spans = list_spans(outputs)
    assert spans["server process stopped"] == [(10.25, 10.35)]
    assert spans["server threads waiting for a CPU"] == [("merge", 10.4, 10.5), ("write", 10.2, 10.3)]


@pytest.mark.parametrize("moments", [(), (11, 11), (11, 10)])
def test_less_than_two_samples_have_no_readings(tmp_path: Path, moments: tuple[int, ...]) -> None:
    assert [type(item) for item in read_host(tmp_path, map(line, moments))] == [Note]


def test_cpus_are_saturated_from_five_runnable_threads_each(tmp_path: Path) -> None:
    # Two CPUs: twenty ticks of a hundredth in each tenth of a second.
    lines = [
        line(10 + at / 10, run_queue=queue, cpu_busy_ticks=15 * at, cpu_idle_ticks=5 * at)
        for at, queue in enumerate([3, 9, 10, 26, 4])
    ]
    outputs = read_host(tmp_path, lines)
    assert list_spans(outputs)["CPUs saturated"] == [(10.15, 10.25), (10.25, 10.35)]
    starving = {item.cause for item in outputs if isinstance(item, CauseIntervals) and item.starves_cpu}
    assert starving == {"CPUs saturated", "server held back by its CPU quota", "CPU stolen by the hypervisor"}


def list_spans(outputs: list[ProbeOutput]) -> dict[str, list[tuple[Any, ...]]]:
    """Return the thread, if any, and the begin and end of each interval in seconds, by cause."""
    return {
        cause: [(*filter(None, [span.thread]), span.start_ns / SECOND, span.end_ns / SECOND) for span in spans]
        for cause, spans in causes(outputs).items()
    }


def wait(since_s: float, at_s: float, thread: int, name: str, waited_ms: int, state: str = "S") -> str:
    moments = {"since_ns": round(since_s * SECOND), "at_ns": round(at_s * SECOND)}
    return json.dumps(moments | {"thread": thread, "name": name, "waited_ns": waited_ms * 10**6, "state": state})


def threads_waiting(raw: Path, *waits: str) -> dict[str, list[tuple[Any, ...]]]:
    # The last line is cut off.
    (raw / "host-threads.jsonl").write_text("\n".join((*waits, waits[0][:30])))
    return list_spans(read_host(raw, map(line, (10, 10.1, 10.2)), end_s=11))


def test_waits_of_threads_have_names_and_intervals(tmp_path: Path) -> None:
    spans = threads_waiting(
        tmp_path,
        wait(10, 10.1, 7, "write", 60),
        wait(10.1, 10.2, 7, "write", 80, "D"),
        wait(10.1, 10.2, 8, "http", 49),
        # It ran again after it had waited for longer than the time between two samples.
        wait(10.2, 10.3, 9, "merge", 250),
        # The JVM's own.
        wait(10, 10.1, 10, "C2 CompilerThre", 100, "D"),
    )
    waiting = [("merge", 10.05, 10.3), ("write", 10, 10.1), ("write", 10.1, 10.2)]
    assert spans["server threads waiting for a CPU"] == waiting
    assert spans["server threads waiting for a disk"] == [("write", 10.15, 10.2)]


def test_thread_names_are_taken_from_the_recording(tmp_path: Path) -> None:
    content = {"events": 1, "files": [], "lost_bytes": 0, "stalls": {"threads": {"7": "node[write][T#1]"}}}
    write_recording(make_context(tmp_path, 10 * SECOND, 11 * SECOND), content)
    spans = threads_waiting(tmp_path, wait(10, 10.1, 7, "node[write][T#1", 60), wait(10, 10.1, 8, "other", 60))
    assert [thread for thread, *_ in spans["server threads waiting for a CPU"]] == ["node[write][T#1]", "other"]


def test_busiest_thread_is_named_with_its_share_of_a_cpu(tmp_path: Path) -> None:
    def run(at_s: float, thread: int, name: str, ran_ms: int) -> str:
        return json.dumps({**json.loads(wait(at_s - 0.1, at_s, thread, name, 0)), "ran_ns": ran_ms * 10**6})

    # One thread has the same name as another; one ran before the measurement; one is the JVM's own.
    runs = [run(10 + at / 10, 7, "nioEventLoopGro", 90) for at in range(8)]
    runs += [run(10.2, 8, "nioEventLoopGro", 99), run(9.9, 8, "nioEventLoopGro", 99)]
    runs += [run(10 + at / 10, 9, "C2 CompilerThre", 100) for at in range(9)]
    (tmp_path / "host-threads.jsonl").write_text("\n".join(runs))
    values = readings(read_host(tmp_path, map(line, (10, 10.1, 11)), end_s=11))
    assert values["server_thread_busiest"] == "nioEventLoopGro"
    assert values["server_thread_cpu_share"] == pytest.approx(0.72)


@pytest.mark.processes
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
        # Its start on the busy CPU.
        assert waited[3] < SECOND // 10
        assert [item.thread for item in looked[0].waits()] in ([children[0].pid], [])
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_cause_without_its_counter_or_file_is_not_searched_for(tmp_path: Path) -> None:
    spans = causes(read_host(tmp_path, (line(at, server_throttled_ns=None) for at in (10, 10.1, 10.2))))
    assert spans.keys().isdisjoint({"server held back by its CPU quota", "server threads waiting for a CPU"})
    assert "server process stopped" in spans


# A process with 80 threads, and the probe where a process may have 100 open files.
MANY_THREADS = """
import threading, time
for _ in range(79):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print(flush=True)
time.sleep(60)
"""
FEW_FILES = 'ulimit -Sn 100 && exec "$0" -m ingest_bench.host.proc "$@"'


@pytest.mark.processes
def test_server_with_more_threads_than_half_of_the_file_limit_is_sampled(tmp_path: Path) -> None:
    samples_file = tmp_path / "host.jsonl"
    samples_file.touch()
    with subprocess.Popen([sys.executable, "-c", MANY_THREADS], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        files = (str(samples_file), str(tmp_path / "waits.jsonl"))
        with subprocess.Popen(
            ("sh", "-c", FEW_FILES, sys.executable, str(server.pid), *files), stdin=subprocess.PIPE
        ) as probe:
            while probe.poll() is None and len(samples_file.read_text().splitlines()) < 2:
                time.sleep(0.05)
            probe.kill()
        server.kill()
    threads = proc.FIELDS.index("server_threads")
    assert [json.loads(line)[threads] for line in samples_file.read_text().splitlines()[:2]] == [80, 80]


@pytest.mark.processes
def test_first_sample_is_from_before_the_load(tmp_path: Path) -> None:
    with PROBES["host"].watch(os.getpid(), tmp_path):
        assert json.loads((tmp_path / "host.jsonl").read_text().splitlines()[0])
    # A server that has ended already has no samples, and delays nothing.
    ended = subprocess.Popen(["true"])
    ended.wait()
    start_s = time.monotonic()
    with PROBES["host"].watch(ended.pid, tmp_path):
        assert (tmp_path / "host.jsonl").read_text() == ""
    # The limit is 30 s.
    assert time.monotonic() - start_s < 20
    assert "host: exited." in (tmp_path / "host.log").read_text()
    # A full disk does not end the run here.
    (tmp_path / "host.log").unlink()
    (tmp_path / "host.log").symlink_to("/dev/full")
    with PROBES["host"].watch(ended.pid, tmp_path):
        pass


def test_samples_of_a_part_of_the_measurement_are_not_its_numbers(tmp_path: Path) -> None:
    lines = [line(10 + at, server_user_ns=at * SECOND, server_threads_stopped=at % 2) for at in range(4)]
    for start_s, end_s, server_cpu_s in ((10, 13, 3), (11, 13, 2), (10, 14, None), (10, 20, None), (5, 12, None)):
        outputs = read_host(tmp_path, lines, start_s, end_s)
        assert readings(outputs).get("server_cpu_s") == server_cpu_s
        assert (len(notes(outputs)) == 1) is (server_cpu_s is None)
        # What happened at the moments of the samples is known.
        assert any(isinstance(output, CauseIntervals) and output.intervals for output in outputs)
    assert notes(outputs) == ["sampled 2.00 of 7.00 s: numbers of the measurement are unknown, see host.log of the run"]


@pytest.mark.parametrize("phase_ns", [0, 30_000_000, 99_000_000])
@pytest.mark.parametrize("length_s", [1, 2, 10])
def test_a_server_of_one_cpu_has_the_length_of_the_measurement_as_cpu_time(
    tmp_path: Path, length_s: int, phase_ns: int
) -> None:
    moments = [9 * SECOND + phase_ns + number * SECOND // 10 for number in range(10 * length_s + 20)]
    lines = [line(at_ns / SECOND, server_user_ns=at_ns - 8 * SECOND) for at_ns in moments]
    whole_length = readings(read_host(tmp_path, lines, 10, 10 + length_s))
    assert whole_length["server_cpu_s"] == pytest.approx(length_s)
    # No sample is within so short a measurement, and its levels are unknown.
    short = readings(read("host", make_context(tmp_path, moments[3] + 1, moments[4])))
    assert short["server_cpu_s"] == pytest.approx(0.1)
    assert (short["run_queue_mean"], short["server_rss_max_bytes"]) == (None, None)
    # A sampler that began after the start, or ended before the end, by however little.
    inside = [number for number, at_ns in enumerate(moments) if 10 * SECOND < at_ns < (10 + length_s) * SECOND]
    for part in (lines[inside[0] :], lines[: inside[-1] + 1]):
        assert "server_cpu_s" not in readings(read_host(tmp_path, part, 10, 10 + length_s))


@pytest.mark.processes
def test_last_sample_is_from_after_the_load(tmp_path: Path) -> None:
    with PROBES["host"].watch(os.getpid(), tmp_path):
        end_ns = time.time_ns()
    (*_, last) = (tmp_path / "host.jsonl").read_text().splitlines()
    assert json.loads(last)[proc.FIELDS.index("at_ns")] >= end_ns
    assert (tmp_path / "host.log").read_text() == "host: exited with code 0\n"


@pytest.mark.processes
def test_killed_sampler_leaves_no_numbers_and_says_so(tmp_path: Path) -> None:
    with PROBES["host"].watch(os.getpid(), tmp_path):
        start_ns = time.time_ns()
        (sampler,) = (child for child in psutil.Process().children() if "ingest_bench.host.proc" in child.cmdline())
        time.sleep(0.5)
        sampler.kill()
    outputs = read("host", make_context(tmp_path, start_ns, time.time_ns()))
    assert "server_cpu_s" not in readings(outputs)
    assert len(notes(outputs)) == 1
    assert (tmp_path / "host.log").read_text().endswith("host: was killed by signal 9\n")


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
