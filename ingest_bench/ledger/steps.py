"""Changes to the machine, each with how it is taken back."""

from __future__ import annotations

import errno
import re
import shlex
import socket
from dataclasses import dataclass, replace
from pathlib import Path

from ingest_bench import system
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.ledger import namespaces

# How the kernel writes a blank in a path (man 5 proc, mountinfo).
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing that is done to the machine: a command, or a value that is written to a file of the kernel."""

    argv: tuple[str, ...] = ()
    path: str = ""
    value: str = ""
    says: str = ""
    """What the command prints when it has done it: jcmd ends with 0 also when it was refused."""

    def __str__(self) -> str:
        return shlex.join(self.argv) if self.argv else f"echo {shlex.quote(self.value)} > {self.path}"

    def carry_out(self, *, held: tuple[int, ...] = ()) -> None:
        """Do it; RunFailed when it cannot be done. A command keeps the descriptors `held` open until it ends."""
        if self.argv:
            told = system.run(self.argv, pass_fds=held)
            if self.says not in told:
                raise RunFailed(f"{self}: it was refused, and said: {told.strip()}")
            return
        try:
            Path(self.path).write_text(f"{self.value}\n", encoding="ascii")
        except OSError as error:
            raise RunFailed(f"{self}: {error.strerror}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """How a change is taken back. Without the text `shows` in what `look` prints, there is nothing to undo.

    A change of an interface names it by its index: another one may have its name by now. `ip` and `tc` know index 7 as
    `if7`. Where only the name does, in a path and in `look`, stands {name}.
    """

    action: Action
    look: tuple[str, ...] = ()
    shows: str = ""
    exists: str = ""
    """The path of what was changed: when the kernel says that nothing has it (ENOENT), so is the change gone."""
    mounted: str = ""
    """The mount point that was made: when nothing is mounted there, the change is gone."""
    pid: int | None = None
    """The process that was changed: when it has ended, so has the change."""
    index: int | None = None
    """The interface that was changed: when it is gone from this network namespace, so is the change."""
    address: str = ""
    """The interface's hardware address, for a change that stays when it is moved to another network namespace."""

    def named(self) -> Undo | None:
        """The same with the name that the interface has now; None when it is gone. RunFailed when nobody can tell."""
        if self.index is None:
            return self
        try:
            name = socket.if_indextoname(self.index)
        except OSError as error:
            if error.errno in (errno.ENODEV, errno.ENXIO):
                return self._moved()
            raise RunFailed(f"interface {self.index}: {error.strerror}") from None
        action = replace(self.action, path=self.action.path.replace("{name}", name))
        return replace(self, action=action, look=tuple(word.replace("{name}", name) for word in self.look))

    def _moved(self) -> Undo | None:
        """Return the undo for the network namespace to which the interface was moved; None when it is gone."""
        there = namespaces.interface_elsewhere(self.index or 0, self.address) if self.address else None
        if there is None:
            return None
        way, name = there

        def inside(argv: tuple[str, ...]) -> tuple[str, ...]:
            named = (name if word in ("{name}", f"if{self.index}") else word for word in argv)
            return ("nsenter", f"--net={way}", *named)

        return replace(self, action=replace(self.action, argv=inside(self.action.argv)), look=inside(self.look))

    def is_needed(self) -> bool:
        """Whether there is still something to undo; RunFailed when nobody can tell."""
        if not all(_exists(Path(path)) for path in (self.action.path, self.exists) if path):
            return False
        if self.mounted and not _is_mounted(self.mounted):
            return False
        if self.pid is not None and not _runs(self.pid):
            return False
        return not self.look or self.shows in system.run(self.look)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change with its place and its undo. No undo: another step's takes it away, or the end of its namespace."""

    name: str
    place: str = ""
    """A namespace of ours, by its name in the plan; "": here."""
    do: Action
    undo: tuple[Undo, ...] = ()

    def __str__(self) -> str:
        return f"{self.place}: {self.do}" if self.place else str(self.do)


def _exists(path: Path) -> bool:
    """Whether something has that path; RunFailed when nobody can tell."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RunFailed(f"{path}: {error.strerror}; nobody can tell whether it is still there") from None
    return True


def _is_mounted(place: str) -> bool:
    """Whether something is mounted there, as our mount namespace has it; RunFailed when nobody can tell."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as error:
        raise RunFailed(f"/proc/self/mountinfo: {error.strerror}; nobody can tell what is mounted") from None
    return place in (_OCTAL.sub(lambda found: chr(int(found[1], 8)), line.split()[4]) for line in lines)


def _runs(pid: int) -> bool:
    """Whether there is a process of that number that has not ended; a dead one may stand there for long."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError as error:
        raise RunFailed(f"process {pid}: {error.strerror}; nobody can tell whether it runs") from None
    return text.rpartition(")")[2].split()[0] not in "ZX"


def setting_step(path: Path, value: str) -> Step:
    """The step that writes a value below /proc/sys or /sys, and the old one back."""
    if not str(path).startswith(("/proc/sys/", "/sys/")) or ".." in path.parts:
        raise SpecError(f"{path}: a host setting is a file below /proc/sys or /sys")
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}; this kernel has no such setting, or it cannot be read") from None
    return Step(
        name=str(path),
        do=Action(path=str(path), value=value),
        undo=(Undo(action=Action(path=str(path), value=chosen(text))),),
    )


def chosen(text: str) -> str:
    """The value of a setting; of a list of choices, as in "always [madvise] never", the one in brackets."""
    brackets = re.search(r"\[(\S+)\]", text)
    return brackets[1] if brackets else text
