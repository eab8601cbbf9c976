"""Settings of the machine that an experiment changes for the time of a run, and how they are put back.

What the whole machine has is changed through the ledger: the old value is on disk before the new one is written, and a
second process puts it back however we end. What each network namespace has of its own is set in the run's namespaces,
which end with the run: the first namespace's value means nothing to a server in another one.
"""

from __future__ import annotations

import dataclasses
import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench import system
from ingest_bench.errors import InvalidRun, MissingCapability, RunFailed
from ingest_bench.host import machine
from ingest_bench.inputs import records
from ingest_bench.ledger.steps import Step, chosen, setting_step
from ingest_bench.ledger.watchdog import session
from ingest_bench.model.load import LONGEST_LOAD_S
from ingest_bench.trials import Trial, tried

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ingest_bench.ledger.namespaces import Kind
    from ingest_bench.model.capability import Capability
    from ingest_bench.model.host_settings import HostSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: its file, and what it needs. What it may be stands in the type of its field of `HostSettings`."""

    path: Path
    of_namespace: bool = False
    """Each network namespace has its own."""
    needs_nodes: int = 1
    """So many NUMA nodes: with fewer it does nothing."""
    instead: Path | None = None
    """What counts while this one is 0. To write one of the two sets the other to 0, and 0 itself cannot be written."""


_THP = Path("/sys/kernel/mm/transparent_hugepage")
_VM = Path("/proc/sys/vm")
_TCP = Path("/proc/sys/net/ipv4")
# Of TCP's settings the machine as a whole has those that a new namespace does not show (Linux 6.18: `unshare --net`).
# Its buffers and its congestion control are keys of a network profile.
SETTINGS: Mapping[str, Setting] = {
    "transparent_hugepages": Setting(path=_THP / "enabled"),
    "transparent_hugepages_defrag": Setting(path=_THP / "defrag"),
    "numa_balancing": Setting(path=Path("/proc/sys/kernel/numa_balancing"), needs_nodes=2),
    "swappiness": Setting(path=_VM / "swappiness"),
    "dirty_bytes": Setting(path=_VM / "dirty_bytes", instead=_VM / "dirty_ratio"),
    "dirty_background_bytes": Setting(path=_VM / "dirty_background_bytes", instead=_VM / "dirty_background_ratio"),
    "tcp_mem": Setting(path=_TCP / "tcp_mem"),
    "tcp_max_orphans": Setting(path=_TCP / "tcp_max_orphans"),
    "somaxconn": Setting(path=Path("/proc/sys/net/core/somaxconn"), of_namespace=True),
    "tcp_max_syn_backlog": Setting(path=_TCP / "tcp_max_syn_backlog", of_namespace=True),
    "tcp_slow_start_after_idle": Setting(path=_TCP / "tcp_slow_start_after_idle", of_namespace=True),
}


def wanted(settings: HostSettings) -> dict[str, str]:
    """What is to be written for each key that is asked for. Pure."""
    given = {key: getattr(settings, name) for key, name in records.keys(type(settings)).items()}
    return {key: _written(value) for key, value in given.items() if value is not None}


def found() -> dict[str, str]:
    """What the whole machine is set to now, as far as this kernel has it."""
    values = {key: _now(setting) for key, setting in SETTINGS.items() if not setting.of_namespace}
    return {key: value for key, value in values.items() if value is not None}


def require(settings: HostSettings) -> None:
    """MissingCapability for the first setting that cannot be had here; nothing is changed."""
    for key, value in wanted(settings).items():
        trouble = "" if system.is_root() else "only root may set it, and this is an ordinary user"
        trouble = trouble or trouble_with(SETTINGS[key], value)
        if trouble:
            raise MissingCapability(
                f"host.{key} = {value}: {trouble}.\nLeave the key out, or see `ingest-bench doctor`."
            )


def capability() -> Capability:
    """Whether settings of this machine can be changed for a run, and which ones."""
    remedy = "Everything but keys of [host] is as ever."
    return tried(Trial(name="host settings", attempt=_settable, remedy=remedy))


@contextmanager
def applied(settings: HostSettings) -> Iterator[dict[str, str]]:
    """What the whole machine is set to inside the block: all that was asked for, and what it had.

    RunFailed when somebody else has one of the settings, or when the machine does not take it; InvalidRun when one was
    changed by somebody else meanwhile. Each is put back at the end of the block, and after `kill -9`.
    """
    with ExitStack() as stack:
        for key, value in wanted(settings).items():
            if not SETTINGS[key].of_namespace:
                stack.enter_context(_held(key, value))
        yield found()


def set_in_namespace(settings: HostSettings, run: Callable[[Sequence[str]], str]) -> dict[str, str]:
    """What each namespace has of its own is set in one, and read back. `run` runs a command in it and gives its output.

    RunFailed when the kernel does not take it.
    """
    asked = {key: value for key, value in wanted(settings).items() if SETTINGS[key].of_namespace}
    for key, value in asked.items():
        name = ".".join(SETTINGS[key].path.relative_to("/proc/sys").parts)
        run(("sysctl", "-q", "-w", f"{name}={value}"))
        seen = _plain(run(("sysctl", "-n", name)))
        if seen != value:
            raise RunFailed(f"host.{key}: {value} was written, and the namespace has {seen}")
    return asked


def change(setting: Setting, value: str) -> Step:
    """The step that sets it, and sets it back to what counts now."""
    step = setting_step(setting.path, value)
    if setting.instead is not None and _now(setting) == "0":
        # Its own 0 cannot be written back; what counted before takes its place again.
        step = dataclasses.replace(step, undo=setting_step(setting.instead, value).undo)
    return step


def trouble_with(setting: Setting, value: str | None = None) -> str:
    """Why root cannot set it here, to that value, as the end of a sentence; empty: it can be."""
    path = setting.path
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        return f"there is no {path} here"
    nodes = machine.numa_nodes()
    if nodes < setting.needs_nodes:
        return f"it needs {setting.needs_nodes} NUMA nodes, and this machine has {nodes}"
    if not os.access(path, os.W_OK):
        return f"{path} is read-only here, as it is in a container"
    words = text.replace("[", "").replace("]", "").split()
    if "[" in text and value is not None and value not in words:
        return f"this kernel knows only {', '.join(words)}"
    return ""


@contextmanager
def _held(key: str, value: str) -> Iterator[None]:
    """It has that value inside the block, and nobody else may change it through us; one that has it stays as it is."""
    setting = SETTINGS[key]
    what = f"host.{key} = {value}"
    files = tuple(str(path) for path in (setting.path, setting.instead) if path is not None)
    key = "host" + str(setting.path).replace("/", "-")
    # Of TCP's settings those of the machine stand in its first network namespace alone.
    within: tuple[Kind, ...] = ("net",) if setting.path.is_relative_to("/proc/sys/net") else ()
    with session(key, what, time_limit_s=LONGEST_LOAD_S, resources=files, within=within) as opened:
        if _now(setting) != value:
            opened.change((change(setting, value),))
        if (now := _now(setting)) != value:
            raise RunFailed(f"host.{key}: {value} was written to {setting.path}, and it says {now}")
        yield
        if (now := _now(setting)) != value:
            raise InvalidRun(f"host.{key}: somebody else set {setting.path} to {now} during the run, not {value}")


def _settable() -> str:
    if not system.is_root():
        raise MissingCapability("only root may change them for a run")
    troubles = {key: trouble_with(setting) for key, setting in SETTINGS.items()}
    can = [key for key, trouble in troubles.items() if not trouble]
    cannot = [f"{key}: {trouble}" for key, trouble in troubles.items() if trouble]
    if not can:
        raise MissingCapability("; ".join(cannot))
    return "; ".join([", ".join(can), *(f"but not {told}" for told in cannot)])


def _now(setting: Setting) -> str | None:
    try:
        return _plain(chosen(setting.path.read_text(encoding="ascii")))
    except OSError:
        return None


def _plain(text: str) -> str:
    """Numbers with one space between them: the kernel writes tabs."""
    return " ".join(text.split())


def _written(value: bool | int | str | tuple[int, ...]) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
