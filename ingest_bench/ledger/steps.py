"""Changes to the machine, each with its undo."""

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

# The kernel writes a blank in a path as \040 (man 5 proc, mountinfo).
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One change: a command, or a value that is written to a file of the kernel."""

    argv: tuple[str, ...] = ()
    path: str = ""
    value: str = ""
    expected_output: str = ""
    """What the command prints on success: jcmd also exits with 0 after a refusal."""

    def __str__(self) -> str:
        return shlex.join(self.argv) if self.argv else f"echo {shlex.quote(self.value)} > {self.path}"

    def execute(self, *, inherited_fds: tuple[int, ...] = ()) -> None:
        """Make the change; raise RunFailed if it fails. A command keeps *inherited_fds* open until it exits."""
        if self.argv:
            output = system.run(self.argv, pass_fds=inherited_fds)
            if self.expected_output not in output:
                raise RunFailed(f"{self}: refused. Its output: {output.strip()}")
            return
        try:
            Path(self.path).write_text(f"{self.value}\n", encoding="ascii")
        except OSError as error:
            raise RunFailed(f"{self}: {error.strerror}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """Reverts a change. It is needed only if the output of `check_argv` contains `check_output`.

    An interface is identified by its index, because another one may have its name by then. `ip` and `tc` accept index 7
    as `if7`. Paths and `check_argv` need the name: they contain {name}.
    """

    action: Action
    check_argv: tuple[str, ...] = ()
    check_output: str = ""
    existing_path: str = ""
    """The path of the changed object. If it no longer exists (ENOENT), neither does the change."""
    mount_point: str = ""
    """The mount point that the change made. If nothing is mounted there, the change is gone."""
    pid: int | None = None
    """The process that was changed. If it has exited, the change is gone."""
    interface_index: int | None = None
    """The interface that was changed. If it left this network namespace, the change is gone."""
    interface_address: str = ""
    """The interface's hardware address, for a change that survives a move to another network namespace."""

    def resolve(self) -> Undo | None:
        """Return the undo with the interface's present name; None if it is gone. Raise RunFailed if that is unknown."""
        if self.interface_index is None:
            return self
        try:
            name = socket.if_indextoname(self.interface_index)
        except OSError as error:
            if error.errno in (errno.ENODEV, errno.ENXIO):
                return self._resolve_moved()
            raise RunFailed(f"interface {self.interface_index}: {error.strerror}") from None
        action = replace(self.action, path=self.action.path.replace("{name}", name))
        return replace(self, action=action, check_argv=tuple(word.replace("{name}", name) for word in self.check_argv))

    def _resolve_moved(self) -> Undo | None:
        """Return the undo for the network namespace to which the interface was moved; None if it is gone."""
        index, address = self.interface_index or 0, self.interface_address
        moved_to = namespaces.find_moved_interface(index, address) if address else None
        if moved_to is None:
            return None
        namespace_path, name = moved_to

        def enter_namespace(argv: tuple[str, ...]) -> tuple[str, ...]:
            named_argv = (name if word in ("{name}", f"if{index}") else word for word in argv)
            return ("nsenter", f"--net={namespace_path}", *named_argv)

        action = replace(self.action, argv=enter_namespace(self.action.argv))
        return replace(self, action=action, check_argv=enter_namespace(self.check_argv))

    def is_needed(self) -> bool:
        """Return True if the change is still there; raise RunFailed if that is unknown."""
        if not all(_exists(Path(path)) for path in (self.action.path, self.existing_path) if path):
            return False
        if self.mount_point and not _is_mounted(self.mount_point):
            return False
        if self.pid is not None and not _is_running(self.pid):
            return False
        return not self.check_argv or self.check_output in system.run(self.check_argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change with its undo. Without an undo, another step's undo or the end of its namespace reverts it."""

    name: str
    namespace: str = ""
    """The namespace of the link plan in which the step runs; "": the current one."""
    action: Action
    undo: tuple[Undo, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}: {self.action}" if self.namespace else str(self.action)


def _exists(path: Path) -> bool:
    """Return True if the path exists; raise RunFailed if that is unknown."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RunFailed(f"{path}: cannot check whether it still exists: {error.strerror}") from None
    return True


def _is_mounted(mount_point: str) -> bool:
    """Return True if a file system is mounted there in our mount namespace; raise RunFailed if that is unknown."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as error:
        raise RunFailed(f"/proc/self/mountinfo: cannot check what is mounted: {error.strerror}") from None
    return mount_point in (_OCTAL.sub(lambda match: chr(int(match[1], 8)), line.split()[4]) for line in lines)


def _is_running(pid: int) -> bool:
    """Return True if the process exists and is not a zombie; raise RunFailed if that is unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError as error:
        raise RunFailed(f"process {pid}: cannot check whether it runs: {error.strerror}") from None
    return text.rpartition(")")[2].split()[0] not in "ZX"


def make_setting_step(path: Path, value: str) -> Step:
    """Return the step that writes a value to a file below /proc/sys or /sys, and whose undo writes the old one."""
    if not str(path).startswith(("/proc/sys/", "/sys/")) or ".." in path.parts:
        raise SpecError(f"{path}: a host setting is a file below /proc/sys or /sys")
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}. This kernel lacks the setting, or it cannot be read.") from None
    return Step(
        name=str(path),
        action=Action(path=str(path), value=value),
        undo=(Undo(action=Action(path=str(path), value=parse_setting(text))),),
    )


def parse_setting(text: str) -> str:
    """Return a setting's value; of a list of choices such as "always [madvise] never", the one in brackets."""
    brackets = re.search(r"\[(\S+)\]", text)
    return brackets[1] if brackets else text
