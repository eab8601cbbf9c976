"""Attach to a JVM that already runs: permissions, jcmd, what it reports about itself, and where it listens."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import pwd
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.jvm import java, scratch
from ingest_bench.jvm.java import Java
from ingest_bench.jvm.options import COLLECTORS
from ingest_bench.ledger.journal import read_boot_id
from ingest_bench.model.target import Endpoint

# The first with an open flight recorder.
_OLDEST_JAVA = 11
_JCMD_LIMIT_S = 60
_TCP_LISTEN = "0A"  # include/net/tcp_states.h
# jcmd with these rights works in each user namespace: to reach the root folder of the JVM, and a Java below /root.
_RIGHTS = "+sys_ptrace,+dac_read_search"
# Its user could attach to our jcmd too, which has more rights: a JVM accepts each process of its user.
_UNATTACHABLE = ("-J-XX:+DisableAttachMechanism", "-J-XX:-UsePerfData")
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}  # noqa: S104 - found, not chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedJvm:
    """A JVM that answered jcmd."""

    pid: int
    uid: int
    gid: int
    jcmd: Path
    version: str
    """The version of its JDK, such as "17.0.15"."""
    start_id: str
    """Identifies the process, as `read_start_id` returns it."""
    as_user: tuple[str, ...] = ()
    """Start of the argv of jcmd, if a JVM refuses our own user."""

    @property
    def root(self) -> Path:
        """Return the link to its root folder, which may be that of a container."""
        return Path(f"/proc/{self.pid}/root")

    @property
    def java_version(self) -> int:
        """Return its feature release."""
        return int(self.version.split(".")[0])

    def run_jcmd(self, *command: str, timeout_s: float = _JCMD_LIMIT_S) -> str:
        """Return the response of the JVM to a jcmd command."""
        try:
            return system.run(self.jcmd_argv(*command), timeout_s=timeout_s)
        except RunFailed as error:
            exited = "" if Path(f"/proc/{self.pid}").exists() else " The process has exited."
            raise RunFailed(f"attach: {command[0]} failed for pid {self.pid}.{exited} {error}") from None

    def jcmd_argv(self, *command: str) -> tuple[str, ...]:
        """Return the argv that sends a jcmd command to the JVM."""
        return (*self.as_user, str(self.jcmd), *(_UNATTACHABLE if self.as_user else ()), str(self.pid), *command)

    def is_alive(self) -> bool:
        """Return True if this process still runs, not a later one with its pid."""
        return read_start_id(self.pid) == self.start_id


@dataclass(frozen=True, slots=True, kw_only=True)
class JvmFacts:
    """Settings that a running JVM reports."""

    collector: str
    """A key of `jvm.options.COLLECTORS`; "unknown: NAME" for any other; empty if it reports none."""
    heap_bytes: int | None
    """The maximum."""
    stack_depth: int | None
    """Frames of a stack that its flight recorder keeps; fixed at the start of the JVM."""
    g1_region_bytes: int | None = None
    """The size of a region of its heap; None for other collectors."""


def attach(pid: int, java_home: Path | None = None) -> AttachedJvm:
    """Return the JVM of that pid; SpecError if there is none, MissingCapability if we may not attach to it."""
    process = Path(f"/proc/{pid}")
    start_id = read_start_id(pid)
    uid, gid = _check_owner(pid)
    _check_root_folder(process, pid)
    try:
        maps = (process / "maps").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise MissingCapability(f"attach: pid {pid}: its memory map cannot be read ({error.strerror})") from None
    if "/libjvm.so" not in maps:
        name = (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
        raise SpecError(f"--attach {pid}: this process ({name}) is not a JVM. `jcmd -l` lists the JVMs of this user.")
    jvm = AttachedJvm(
        pid=pid,
        uid=uid,
        gid=gid,
        jcmd=_find_jcmd(process, uid, java_home),
        version="",
        start_id=start_id or "",
        as_user=_switch_user(process, uid, gid),
    )
    try:
        response = jvm.run_jcmd("VM.version")
    except RunFailed as error:
        raise MissingCapability(_explain_refusal(jvm, error)) from None
    if not jvm.is_alive():
        raise SpecError(f"--attach {pid}: the process has just exited.")
    version = re.search(r"^JDK (\S+)", response, re.MULTILINE)
    if version is None or int(version[1].split(".")[0]) < _OLDEST_JAVA:
        raise MissingCapability(
            f"attach: pid {pid} must run on Java {_OLDEST_JAVA} or later; it reports: {response.strip()}"
        )
    return dataclasses.replace(jvm, version=version[1])


def launched(pid: int, java: Java) -> AttachedJvm:
    """Return a JVM that we launched on that Java."""
    jcmd, start_id, version = java.home / "bin" / "jcmd", read_start_id(pid) or "", str(java.version)
    return AttachedJvm(pid=pid, uid=os.geteuid(), gid=os.getegid(), jcmd=jcmd, version=version, start_id=start_id)


def read_facts(jvm: AttachedJvm) -> JvmFacts:
    """Ask the JVM for its settings."""
    return parse_facts(jvm.run_jcmd("VM.flags"), jvm.run_jcmd("JFR.configure"))


def parse_facts(flags: str, recorder: str) -> JvmFacts:
    """Parse the responses to VM.flags and JFR.configure."""
    # The JVM names the collector also if it chose it itself. Old Javas may name ParallelOld first.
    option = re.search(r"-XX:\+Use(\w+?)(?:Old)?GC\b", flags)
    names = (name for name, gc in COLLECTORS.items() if option and f"-XX:+Use{option[1]}GC" in gc.options)
    unknown = f"unknown: {option[1]}" if option else ""
    heap = re.search(r"-XX:MaxHeapSize=(\d+)", flags)
    region = re.search(r"-XX:G1HeapRegionSize=(\d+)", flags)
    depth = re.search(r"^Stack depth: (\d+)", recorder, re.MULTILINE)
    return JvmFacts(
        collector=next(names, unknown),
        heap_bytes=int(heap[1]) if heap else None,
        stack_depth=int(depth[1]) if depth else None,
        g1_region_bytes=int(region[1]) if region else None,
    )


def read_start_id(pid: int) -> str | None:
    """Return the boot id and start time of a process, which no other process has; None if it has exited."""
    stat = system.read_text(f"/proc/{pid}/stat")
    if stat is None:
        return None
    # The name may hold anything; after it come state (3rd field) … starttime (22nd), proc(5).
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else f"{read_boot_id()} {fields[19]}"


def find_reader(versions: Iterable[int], java_home: Path | None = None) -> Java:
    """Return a Java that can read recordings of JVMs of these feature releases: one that is not older."""
    minimum = max(versions)
    homes = None if java_home is None else [java_home]
    if reader := next((candidate for candidate in java.find_installed(homes) if candidate.version >= minimum), None):
        return reader
    if java_home is not None:
        raise SpecError(f"--java-home {java_home}: it cannot read recordings of the JVM, which is Java {minimum}")
    newer = [version for version in java.WHEELS if version >= minimum]
    return java.fetch_wheel(min(newer, default=minimum))


def _check_owner(pid: int) -> tuple[int, int]:
    """Return the effective uid and gid of a process; MissingCapability if we may not attach to it."""
    try:
        process = psutil.Process(pid)
        uid, gid = process.uids().effective, process.gids().effective
    except psutil.NoSuchProcess:
        raise SpecError(f"--attach {pid}: no such process. `jcmd -l` lists the JVMs of this user.") from None
    if uid != os.geteuid() and not system.is_root():
        raise MissingCapability(
            f"attach: pid {pid} belongs to {_user_name(uid)}, we are {_user_name(os.geteuid())}. Only root and the "
            "user of a JVM may attach: run as one of them."
        )
    return uid, gid


def _check_root_folder(process: Path, pid: int) -> None:
    """Raise MissingCapability if the root folder of a JVM cannot be opened, such as that of a container."""
    try:
        os.close(os.open(process / "root", os.O_PATH | os.O_CLOEXEC))
    except OSError as error:
        remedy = "It has more rights on this machine than we have: add the capability SYS_PTRACE"
        if not system.is_root():
            remedy = "Only root can attach to a JVM in such a container or with more rights: run as root"
        raise MissingCapability(
            f"attach: pid {pid}: its file system cannot be opened ({error.strerror}). {remedy}."
        ) from None


def _switch_user(process: Path, uid: int, gid: int) -> tuple[str, ...]:
    """Return the start of an argv that runs as the user of a JVM in another user namespace; empty for other JVMs.

    A JVM accepts only root and its own user, and the namespace need not map our root.
    """
    if not system.is_root() or _is_same_namespace(process, "user"):
        return ()
    identity = (f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--no-new-privs")
    return ("setpriv", *identity, f"--inh-caps={_RIGHTS}", f"--ambient-caps={_RIGHTS}", "--")


def _explain_refusal(jvm: AttachedJvm, error: RunFailed) -> str:
    """Return the message of a JVM that did not answer its first command."""
    reason = "it was started with -XX:+DisableAttachMechanism, or it hangs"
    try:
        folder = scratch.open_folder(jvm.root, Path("/tmp"))  # noqa: S108 - where HotSpot opens its socket
    except OSError:
        pass
    else:
        if refusal := scratch.explain_refusal(folder, jvm):
            reason = f"it cannot open its attach socket in /tmp: {refusal}. Mount a tmpfs there"
        os.close(folder)
    return f"attach: pid {jvm.pid} is a JVM that refuses to be attached to ({reason}). {error}"


def _is_same_namespace(process: Path, kind: str) -> bool:
    return (process / "ns" / kind).readlink() == Path(f"/proc/self/ns/{kind}").readlink()


def _find_jcmd(process: Path, uid: int, java_home: Path | None) -> Path:
    """Return the jcmd of --java-home, of the JVM itself if it is ours, of an installed Java, or of the wheel.

    For a JVM in other namespaces that of the wheel: some releases look for its socket in our /tmp (JDK-8327114).
    """
    if java_home is not None:
        jcmd = java_home.absolute() / "bin" / "jcmd"
        if not os.access(jcmd, os.X_OK):
            raise SpecError(f"--java-home {java_home}: it has no bin/jcmd")
        return jcmd
    is_contained = not all(_is_same_namespace(process, kind) for kind in ("mnt", "pid", "user"))
    homes = [] if is_contained else [installed.home for installed in java.find_installed()]
    if not is_contained and uid == os.geteuid():
        # Never as root for another user's JVM: that user chose the programs in its home.
        homes.insert(0, (process / "exe").readlink().parent.parent)
    for home in homes:
        if os.access(home / "bin" / "jcmd", os.X_OK):
            return home / "bin" / "jcmd"
    return java.fetch_wheel(17).home / "bin" / "jcmd"


def _user_name(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"uid {uid}"


def find_endpoints(pid: int) -> tuple[Endpoint, ...]:
    """Return the TCP addresses where the process listens, as a client in its network namespace reaches them.

    Each port once, the lowest first: Java opens its sockets for IPv4 and IPv6 together. Not by psutil, which reads the
    sockets of our own namespace.
    """
    try:
        inodes = set(_socket_inodes(pid))
        tables = [Path(f"/proc/{pid}/net/{name}").read_text(encoding="ascii") for name in ("tcp", "tcp6")]
    except FileNotFoundError:
        raise RunFailed(f"pid {pid} has exited: it listens nowhere") from None
    except PermissionError:
        raise MissingCapability(f"pid {pid}: its sockets cannot be read. Run as root, or as its user.") from None
    endpoints: dict[int, Endpoint] = {}
    for endpoint in (endpoint for table in tables for endpoint in parse_sockets(table, inodes)):
        endpoints.setdefault(endpoint.port, endpoint)
    return tuple(endpoints[port] for port in sorted(endpoints))


def parse_sockets(table: str, inodes: set[str]) -> Iterator[Endpoint]:
    """Yield the addresses of the listening sockets with these inodes in /proc/net/tcp or tcp6."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if fields[3] == _TCP_LISTEN and fields[9] in inodes:
            words, _, port = fields[1].rpartition(":")
            host = _decode_address(words)
            yield Endpoint(_WILDCARDS.get(host, host), int(port, 16))


def _decode_address(words: str) -> str:
    """Decode an IPv4 or IPv6 address from 32-bit words in the byte order of this machine."""
    packed = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    address = ipaddress.ip_address(packed)
    return str(getattr(address, "ipv4_mapped", None) or address)


def _socket_inodes(pid: int) -> Iterator[str]:
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            yield from re.findall(r"^socket:\[([0-9]+)\]$", str(link.readlink()))
        except FileNotFoundError:  # closed meanwhile
            continue
