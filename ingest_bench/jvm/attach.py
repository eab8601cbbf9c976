"""A JVM that is already running: whether we may attach to it, and what it says about itself."""

from __future__ import annotations

import dataclasses
import os
import pwd
import re
from dataclasses import dataclass
from pathlib import Path

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.jvm import java
from ingest_bench.jvm.java import Java
from ingest_bench.ledger.book import boot_id

# The first whose flight recorder is open to all.
_OLDEST_JAVA = 11
_JCMD_LIMIT_S = 60
# The flags of jvm.options.COLLECTORS. VM.flags names the collector also when the JVM chose it itself.
_COLLECTORS = {
    "G1": "g1",
    "ConcMarkSweep": "cms",
    "Parallel": "parallel",
    "ParallelOld": "parallel",
    "Serial": "serial",
    "Z": "zgc",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """A JVM that answered us."""

    pid: int
    uid: int
    jcmd: Path
    version: str
    """The JDK that it runs on, such as "17.0.15"."""
    began: str
    """As `began` tells it."""

    @property
    def java_version(self) -> int:
        """Its feature release."""
        return int(self.version.split(".")[0])

    def ask(self, *command: str, timeout_s: float = _JCMD_LIMIT_S) -> str:
        """What the JVM answered to a command of jcmd."""
        try:
            return system.run(self.command(*command), timeout_s=timeout_s)
        except RunFailed as error:
            gone = "" if Path(f"/proc/{self.pid}").exists() else " The process has ended."
            raise RunFailed(f"attach: pid {self.pid} did not obey {command[0]}.{gone} {error}") from None

    def command(self, *command: str) -> tuple[str, ...]:
        """The argv that gives it a command of jcmd."""
        return (str(self.jcmd), str(self.pid), *command)

    def is_alive(self) -> bool:
        """Whether it is this process that still runs, and no later one with its pid."""
        return began(self.pid) == self.began


@dataclass(frozen=True, slots=True, kw_only=True)
class JvmFacts:
    """What a running JVM says about itself."""

    collector: str
    """A name of `jvm.options.COLLECTORS`; "unknown: NAME" for any other; empty when it names none."""
    heap_bytes: int | None
    """The maximum."""
    stack_depth: int | None
    """How many frames of a stack its flight recorder keeps. It is chosen at the start of a JVM."""
    g1_region_bytes: int | None = None
    """The size of a region of its heap, chosen or found by the JVM; None where its collector has none."""


def attach(pid: int, java_home: Path | None = None) -> Attached:
    """The JVM of that pid; SpecError for a pid that is none, MissingCapability where we may not attach to it."""
    process = Path(f"/proc/{pid}")
    uid = _owner(process, pid)
    _same_namespaces(process, pid)
    _is_jvm(process, pid)
    start = began(pid)
    if start is None:
        raise SpecError(f"--attach {pid}: the process has just ended.")
    found = Attached(pid=pid, uid=uid, jcmd=_jcmd(process, uid, java_home), version="", began=start)
    try:
        said = found.ask("VM.version")
    except RunFailed as error:
        raise MissingCapability(
            f"attach: pid {pid} is a JVM that lets nobody attach (it was started with -XX:+DisableAttachMechanism, or "
            f"it hangs). {error}"
        ) from None
    version = re.search(r"^JDK (\S+)", said, re.MULTILINE)
    if version is None or int(version[1].split(".")[0]) < _OLDEST_JAVA:
        raise MissingCapability(f"attach: pid {pid} must run on Java {_OLDEST_JAVA} or later, it says: {said.strip()}")
    return dataclasses.replace(found, version=version[1])


def ours(pid: int, java: Java) -> Attached:
    """A JVM that we started on that Java."""
    began_at = began(pid) or ""
    jcmd = java.home / "bin" / "jcmd"
    return Attached(pid=pid, uid=os.geteuid(), jcmd=jcmd, version=str(java.version), began=began_at)


def facts_of(jvm: Attached) -> JvmFacts:
    """What the JVM says about itself."""
    return parse_facts(jvm.ask("VM.flags"), jvm.ask("JFR.configure"))


def parse_facts(flags: str, recorder: str) -> JvmFacts:
    """The same, from its answers to VM.flags and JFR.configure."""
    collector = re.search(r"-XX:\+Use(\w+?)GC\b", flags)
    heap = re.search(r"-XX:MaxHeapSize=(\d+)", flags)
    region = re.search(r"-XX:G1HeapRegionSize=(\d+)", flags)
    depth = re.search(r"^Stack depth: (\d+)", recorder, re.MULTILINE)
    return JvmFacts(
        collector=_COLLECTORS.get(collector[1], f"unknown: {collector[1]}") if collector else "",
        heap_bytes=int(heap[1]) if heap else None,
        stack_depth=int(depth[1]) if depth else None,
        g1_region_bytes=int(region[1]) if region else None,
    )


def began(pid: int) -> str | None:
    """When the process with that pid began: another one with the same pid has another text, now or after a reboot.

    The boot and the kernel's ticks since then. None without such a process, or when it has ended.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name before may hold anything. Then: state (3rd field) … starttime (22nd), proc(5).
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else f"{boot_id()} {fields[19]}"


def reader(jvm: Attached, java_home: Path | None = None) -> Java:
    """A Java that can read recordings of this JVM: none is older than it."""
    wanted = jvm.java_version
    homes = None if java_home is None else [java_home]
    fitting = [found for found in java.on_machine(homes) if found.version >= wanted]
    if fitting:
        return fitting[0]
    if java_home is not None:
        raise SpecError(f"--java-home {java_home}: it cannot read recordings of the JVM, which is Java {wanted}")
    newer = [version for version in java.WHEELS if version >= wanted]
    return java.wheel(min(newer, default=wanted))


def _owner(process: Path, pid: int) -> int:
    """The effective uid, when we may attach to a process of it."""
    try:
        lines = (process / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        raise SpecError(f"--attach {pid}: there is no such process. `jcmd -l` lists the JVMs of this user.") from None
    uid = next(int(line.split()[2]) for line in lines if line.startswith("Uid:"))
    if uid != os.geteuid() and not system.is_root():
        raise MissingCapability(
            f"attach: pid {pid} belongs to {_name(uid)}, we are {_name(os.geteuid())}. A JVM lets its own user and "
            f"root attach: run as one of them."
        )
    return uid


def _same_namespaces(process: Path, pid: int) -> None:
    """A JVM in a container names its files and its pid otherwise than we do."""
    for kind, what in (("pid", "process"), ("mnt", "mount")):
        try:
            theirs = (process / "ns" / kind).readlink()
        except OSError as error:
            remedy = "It may do more on this machine than we may" if system.is_root() else "Run as root"
            raise MissingCapability(
                f"attach: pid {pid}: its {what} namespace cannot be read ({error.strerror}). {remedy}."
            ) from None
        if theirs != Path(f"/proc/self/ns/{kind}").readlink():
            raise MissingCapability(
                f"attach: pid {pid} is in another {what} namespace (a container). Run ingest-bench inside it, or use "
                "--url alone."
            )


def _is_jvm(process: Path, pid: int) -> None:
    try:
        maps = (process / "maps").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise MissingCapability(f"attach: pid {pid}: its memory map cannot be read ({error.strerror})") from None
    if "/libjvm.so" not in maps:
        name = (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
        raise SpecError(f"--attach {pid}: this process ({name}) is no JVM. `jcmd -l` lists the JVMs of this user.")


def _jcmd(process: Path, uid: int, java_home: Path | None) -> Path:
    """A jcmd: of --java-home, of the JVM itself where it is our own, of the machine, of pip's Java."""
    if java_home is not None:
        given = java_home.absolute() / "bin" / "jcmd"
        if not os.access(given, os.X_OK):
            raise SpecError(f"--java-home {java_home}: there is no bin/jcmd in it")
        return given
    homes = [found.home for found in java.on_machine()]
    if uid == os.geteuid():
        # Never as root for another user's JVM: the program beside it may be anything.
        homes.insert(0, (process / "exe").readlink().parent.parent)
    for home in homes:
        if os.access(home / "bin" / "jcmd", os.X_OK):
            return home / "bin" / "jcmd"
    return java.wheel(17).home / "bin" / "jcmd"


def _name(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"uid {uid}"
