"""Settings of the machine: what they are, what is recommended, and how a run changes them.

A machine-wide setting is changed through the ledger: its old value is on disk before the new one is written, and a
second process restores it. A setting that each network namespace has is set in the run's namespaces, which vanish with
the run: a server in another namespace does not see the initial namespace's value.
"""

from __future__ import annotations

import dataclasses
import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from ingest_bench import system
from ingest_bench.errors import InvalidRun, MissingCapability, RunFailed
from ingest_bench.host.capability_checks import run_check
from ingest_bench.inputs import records
from ingest_bench.ledger.namespaces import NamespaceKind
from ingest_bench.ledger.steps import Step, make_setting_step, parse_setting
from ingest_bench.ledger.watchdog import open_session
from ingest_bench.model.experiment import Capability, HostSettings
from ingest_bench.model.load import MAX_LOAD_S
from ingest_bench.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: its file and requirements. The type of its field of `HostSettings` defines its values."""

    path: Path
    is_per_namespace: bool = False
    """Each network namespace has its own value."""
    min_numa_nodes: int = 1
    """With fewer NUMA nodes it has no effect."""
    alternative: Path | None = None
    """The setting that applies while this one is 0. Writing one sets the other to 0, and 0 itself cannot be written."""


_THP = Path("/sys/kernel/mm/transparent_hugepage")
_VM = Path("/proc/sys/vm")
_TCP = Path("/proc/sys/net/ipv4")
# Machine-wide TCP settings are those that a new network namespace does not show (Linux 6.18: `unshare --net`).
# TCP buffers and congestion control are keys of a network profile.
SETTINGS: Mapping[str, Setting] = {
    "transparent_hugepages": Setting(path=_THP / "enabled"),
    "transparent_hugepages_defrag": Setting(path=_THP / "defrag"),
    "numa_balancing": Setting(path=Path("/proc/sys/kernel/numa_balancing"), min_numa_nodes=2),
    "swappiness": Setting(path=_VM / "swappiness"),
    "dirty_bytes": Setting(path=_VM / "dirty_bytes", alternative=_VM / "dirty_ratio"),
    "dirty_background_bytes": Setting(path=_VM / "dirty_background_bytes", alternative=_VM / "dirty_background_ratio"),
    "tcp_mem": Setting(path=_TCP / "tcp_mem"),
    "tcp_max_orphans": Setting(path=_TCP / "tcp_max_orphans"),
    "somaxconn": Setting(path=Path("/proc/sys/net/core/somaxconn"), is_per_namespace=True),
    "tcp_max_syn_backlog": Setting(path=_TCP / "tcp_max_syn_backlog", is_per_namespace=True),
    "tcp_slow_start_after_idle": Setting(path=_TCP / "tcp_slow_start_after_idle", is_per_namespace=True),
}


def format_settings(settings: HostSettings) -> dict[str, str]:
    """Return the text to write for each key that the experiment sets. Pure."""

    def format_value(value: bool | int | str | tuple[int, ...]) -> str:
        numbers = value if isinstance(value, tuple) else (int(value) if isinstance(value, bool) else value,)
        return " ".join(map(str, numbers))

    values = {key: getattr(settings, name) for key, name in records.fields_by_key(type(settings)).items()}
    return {key: format_value(value) for key, value in values.items() if value is not None}


def read_settings() -> dict[str, str]:
    """Return the machine-wide settings that this kernel has."""
    values = {key: _read_value(setting.path) for key, setting in SETTINGS.items() if not setting.is_per_namespace}
    return {key: value for key, value in values.items() if value is not None}


def require_settings(settings: HostSettings) -> None:
    """Raise MissingCapability for the first setting that cannot be changed here; nothing is changed."""
    for key, value in format_settings(settings).items():
        problem = "" if system.is_root() else "only root can set it, and this is an ordinary user"
        problem = problem or find_problem(SETTINGS[key], value)
        if problem:
            raise MissingCapability(
                f"host.{key} = {value}: {problem}.\nLeave the key out, or see `ingest-bench doctor`."
            )


def check_settings() -> Capability:
    """Check which settings of this machine can be changed for a run."""

    def attempt() -> str:
        if not system.is_root():
            raise MissingCapability("only root can change them for a run")
        problems = {key: find_problem(setting) for key, setting in SETTINGS.items()}
        changeable = ", ".join(key for key, problem in problems.items() if not problem)
        others = [f"{key}: {problem}" for key, problem in problems.items() if problem]
        if not changeable:
            raise MissingCapability("; ".join(others))
        return "; ".join([changeable, *(f"but not {problem}" for problem in others)])

    return run_check("host settings", attempt, remedy="Only keys of [host] require it.")


@contextmanager
def apply_settings(settings: HostSettings) -> Iterator[dict[str, str]]:
    """Change the machine-wide settings for the block, and yield the machine's settings.

    Raise RunFailed if another program has locked a setting or the machine rejects it, InvalidRun if another program
    changed one meanwhile. All are restored after the block, and after `kill -9`.
    """
    with ExitStack() as stack:
        for key, value in format_settings(settings).items():
            if not SETTINGS[key].is_per_namespace:
                stack.enter_context(_apply_setting(key, value))
        yield read_settings()


def apply_in_namespace(settings: HostSettings, run: Callable[[Sequence[str]], str]) -> dict[str, str]:
    """Change the per-namespace settings in one network namespace, read them back, and return them.

    *run* runs a command there and returns its output. Raise RunFailed if the kernel rejects a value.
    """
    values = {key: value for key, value in format_settings(settings).items() if SETTINGS[key].is_per_namespace}
    for key, value in values.items():
        name = ".".join(SETTINGS[key].path.relative_to("/proc/sys").parts)
        run(("sysctl", "-q", "-w", f"{name}={value}"))
        actual = " ".join(run(("sysctl", "-n", name)).split())
        if actual != value:
            raise RunFailed(f"host.{key}: {value} was written, but the namespace has {actual}")
    return values


def make_step(setting: Setting, value: str) -> Step:
    """Return the step that sets the value, and whose undo restores the value that applies now."""
    step = make_setting_step(setting.path, value)
    if setting.alternative is not None and _read_value(setting.path) == "0":
        # The old value 0 cannot be written. Writing the alternative's old value sets this one to 0.
        step = dataclasses.replace(step, undo=make_setting_step(setting.alternative, value).undo)
    return step


def find_problem(setting: Setting, value: str | None = None) -> str:
    """Return why root cannot set it to *value* here, as the end of a sentence; "" if it can."""
    path = setting.path
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        return f"there is no {path} here"
    nodes = count_numa_nodes()
    if nodes < setting.min_numa_nodes:
        return f"it needs {setting.min_numa_nodes} NUMA nodes, and this machine has {nodes}"
    if not os.access(path, os.W_OK):
        return f"{path} is read-only here, as it is in a container"
    words = text.replace("[", "").replace("]", "").split()
    if "[" in text and value is not None and value not in words:
        return f"this kernel accepts only {', '.join(words)}"
    return ""


@contextmanager
def _apply_setting(key: str, value: str) -> Iterator[None]:
    """Lock a machine-wide setting for the block, and change it unless it has the value."""
    setting = SETTINGS[key]
    files = tuple(str(path) for path in (setting.path, setting.alternative) if path is not None)
    # The initial network namespace alone has the files of machine-wide TCP settings.
    namespace_kinds: tuple[NamespaceKind, ...] = ("net",) if setting.path.is_relative_to("/proc/sys/net") else ()
    with open_session(
        "host" + str(setting.path).replace("/", "-"),
        f"host.{key} = {value}",
        time_limit_s=MAX_LOAD_S,
        resources=files,
        namespace_kinds=namespace_kinds,
    ) as session:
        if _read_value(setting.path) != value:
            session.apply((make_step(setting, value),))
        if (actual := _read_value(setting.path)) != value:
            raise RunFailed(f"host.{key}: {value} was written to {setting.path}, but it reads {actual}")
        yield
        if (actual := _read_value(setting.path)) != value:
            raise InvalidRun(f"host.{key}: another program set {setting.path} to {actual} during the run, not {value}")


def _read_value(path: Path) -> str | None:
    """Return a setting's value, with one blank between numbers (the kernel writes tabs); None if it has no file."""
    text = system.read_text(path)
    return None if text is None else " ".join(parse_setting(text).split())


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Facts that the recommendations judge. None: this machine has no such setting, or it cannot be read."""

    transparent_hugepages: str | None = None
    is_numad_running: bool = False
    swap_bytes: int = 0
    swappiness: int | None = None
    max_map_count: int | None = None
    max_open_files: int | None = None
    """The hard limit, to which a JVM raises its own at its start; None: unlimited."""
    cpu_governors: tuple[str, ...] = ()
    """Distinct values. Empty in virtual machines: their host chooses the frequency."""


def read_machine_facts() -> MachineFacts:
    """Return the facts of this machine, for a process that we start."""
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    governor_files = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    governors = {system.read_text(path) or "" for path in governor_files}
    return MachineFacts(
        transparent_hugepages=_read_value(_THP / "enabled"),
        is_numad_running=any(process.info["name"] == "numad" for process in psutil.process_iter(["name"])),
        swap_bytes=psutil.swap_memory().total,
        swappiness=_read_number(_VM / "swappiness"),
        max_map_count=_read_number(_VM / "max_map_count"),
        max_open_files=None if hard_limit == resource.RLIM_INFINITY else hard_limit,
        cpu_governors=tuple(sorted(governors - {""})),
    )


def count_numa_nodes() -> int:
    """Return the number of NUMA nodes; 1 if the kernel does not support NUMA."""
    return max(1, len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))))


def _read_number(path: Path) -> int | None:
    text = system.read_text(path)
    return int(text) if text is not None and text.isdigit() else None


# Elasticsearch and OpenSearch refuse to start with less, once they listen on more than loopback.
_MIN_MAPS = 262_144
_MIN_OPEN_FILES = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A rule of the servers' vendors for production. A measurement may need another value: nothing is refused."""

    name: str
    describe: Callable[[MachineFacts], str]
    """Returns the machine's present value."""
    is_harmful: Callable[[MachineFacts], bool]
    recommended: str
    source: str
    """Name of the document that recommends it."""


RECOMMENDATIONS = (
    Recommendation(
        name="transparent huge pages",
        describe=lambda machine: machine.transparent_hugepages or "not supported by this kernel",
        is_harmful=lambda machine: machine.transparent_hugepages == "always",
        recommended="madvise or never",
        source='AxonOps, "Linux Memory Configuration"; DSE, "No DataStax Enterprise processing but high CPU usage"',
    ),
    Recommendation(
        name="numad",
        describe=lambda machine: "running" if machine.is_numad_running else "not running",
        is_harmful=lambda machine: machine.is_numad_running,
        recommended="not running: it moves a server's memory between NUMA nodes while the server works",
        source='Meltwater, "Riak, Elasticsearch and numad walk into a Red Hat"; numad(8)',
    ),
    Recommendation(
        name="vm.swappiness",
        describe=lambda machine: (
            f"{_format_number(machine.swappiness)}, "
            + (f"with {format_bytes(machine.swap_bytes)} of swap" if machine.swap_bytes else "without swap")
        ),
        is_harmful=lambda machine: machine.swap_bytes > 0 and (machine.swappiness or 0) > 1,
        recommended="no swap (swapoff -a), or 1",
        source='Elasticsearch, "Disable swapping"; DataStax, "Recommended production settings" (Cassandra)',
    ),
    Recommendation(
        name="vm.max_map_count",
        describe=lambda machine: _format_number(machine.max_map_count),
        is_harmful=lambda machine: machine.max_map_count is not None and machine.max_map_count < _MIN_MAPS,
        recommended=f"{_MIN_MAPS} or more; 1048575 for Cassandra",
        source='Elasticsearch, "Maximum map count check"; OpenSearch, "Important settings"; Cassandra, StartupChecks',
    ),
    Recommendation(
        name="open files",
        describe=lambda machine: "unlimited" if machine.max_open_files is None else str(machine.max_open_files),
        is_harmful=lambda machine: machine.max_open_files is not None and machine.max_open_files < _MIN_OPEN_FILES,
        recommended=f"{_MIN_OPEN_FILES} or more (ulimit -Hn)",
        source='Elasticsearch, "File descriptor check" and "File Descriptors"',
    ),
    Recommendation(
        name="CPU governor",
        describe=lambda machine: ", ".join(machine.cpu_governors) or "not supported by this machine",
        is_harmful=lambda machine: any(governor != "performance" for governor in machine.cpu_governors),
        recommended="performance",
        source='DataStax, "Disable settings that impact performance" (Cassandra)',
    ),
)


def _format_number(value: int | None) -> str:
    return "not supported by this kernel" if value is None else str(value)
