"""A JVM that is already running: whether we may attach to it, and a flight recording of part of its life."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.jvm import java

if TYPE_CHECKING:
    from collections.abc import Iterator

# The first whose flight recorder is open to all.
_OLDEST_JAVA = 11
_JCMD_LIMIT_S = 60
# Writing a recording of some hundred megabytes.
_STOP_LIMIT_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """A JVM that answered us."""

    pid: int
    uid: int
    jcmd: Path
    version: str
    """The JDK that it runs on, such as "17.0.15"."""

    @property
    def java_version(self) -> int:
        """Its feature release."""
        return int(self.version.split(".")[0])

    def ask(self, *command: str, timeout_s: float = _JCMD_LIMIT_S) -> str:
        """What the JVM answered to a command of jcmd."""
        try:
            return system.run((str(self.jcmd), str(self.pid), *command), timeout_s=timeout_s)
        except RunFailed as error:
            gone = "" if Path(f"/proc/{self.pid}").exists() else " The process has ended."
            raise RunFailed(f"attach: pid {self.pid} did not obey {command[0]}.{gone} {error}") from None


def attach(pid: int, java_home: Path | None = None) -> Attached:
    """The JVM of that pid; SpecError for a pid that is none, MissingCapability where we may not attach to it."""
    process = Path(f"/proc/{pid}")
    uid = _owner(process, pid)
    _same_namespaces(process, pid)
    _is_jvm(process, pid)
    found = Attached(pid=pid, uid=uid, jcmd=_jcmd(process, uid, java_home), version="")
    try:
        told = found.ask("VM.version")
    except RunFailed as error:
        raise MissingCapability(
            f"attach: pid {pid} is a JVM that lets nobody attach (it was started with -XX:+DisableAttachMechanism, or "
            f"it hangs). {error}"
        ) from None
    version = re.search(r"^JDK (\S+)", told, re.MULTILINE)
    if version is None or int(version[1].split(".")[0]) < _OLDEST_JAVA:
        raise MissingCapability(f"attach: pid {pid} must run on Java {_OLDEST_JAVA} or later, it says: {told.strip()}")
    return Attached(pid=pid, uid=uid, jcmd=found.jcmd, version=version[1])


@contextmanager
def recorded(jvm: Attached, settings: Path, recording: Path, limit_s: int) -> Iterator[None]:
    """A flight recording of the block's time with these settings (.jfc), in the file `recording` afterwards.

    The file may begin before the block: a JVM gives whole chunks. It reads and writes with its own rights, so both
    files are for that time in a folder of its own. When we are killed it ends the recording by itself after `limit_s`.
    """
    name = f"ingest-bench-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="ingest-bench-", dir="/var/tmp") as scratch:
        own_settings, own_recording = Path(scratch) / "settings.jfc", Path(scratch) / "recording.jfr"
        shutil.copyfile(settings, own_settings)
        if system.is_root():
            os.chown(scratch, jvm.uid, -1)
            own_settings.chmod(0o644)
        _obey(
            jvm,
            "Started recording",
            "JFR.start",
            f"name={name}",
            f"settings={own_settings}",
            f"filename={own_recording}",
            "maxsize=0",
            f"duration={limit_s}s",
        )
        try:
            yield
        finally:
            _stop(jvm, name, own_recording)
            shutil.move(own_recording, recording)


def _stop(jvm: Attached, name: str, recording: Path) -> None:
    """The recording is whole in its file. A JVM that was ended in good order has written it itself."""
    try:
        _obey(jvm, "Stopped recording", "JFR.stop", f"name={name}", timeout_s=_STOP_LIMIT_S)
    except RunFailed:
        if not recording.is_file() or not recording.stat().st_size:
            raise


def _obey(jvm: Attached, done: str, *command: str, timeout_s: float = _JCMD_LIMIT_S) -> None:
    """Jcmd ends with 0 also when the JVM refuses: only its words tell."""
    told = jvm.ask(*command, timeout_s=timeout_s)
    if done not in told:
        raise RunFailed(f"attach: pid {jvm.pid} refused {command[0]}, it said: {told.strip()}")


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
            raise MissingCapability(
                f"attach: pid {pid}: its {what} namespace cannot be read ({error.strerror}). Run as root."
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
        given = java_home / "bin" / "jcmd"
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
