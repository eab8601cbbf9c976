"""Log outputs of a JVM (unified logging, Java 11 and later), by an option at its start or while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_DECORATORS = "time,uptime,level,tags"


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One file of a JVM's log."""

    name: str
    """The file's name: "gc.log"."""
    what: str
    """Tags and levels: "gc*=info"."""
    rotation: str = "filecount=0"
    """How it is rotated; by default never."""

    def start_option(self, folder: Path) -> str:
        """The option that logs into this folder from the start of a JVM."""
        return f"-Xlog:{self.what}:file={folder / self.name}:{_DECORATORS}:{self.rotation}"

    def switch_on(self, folder: Path) -> tuple[str, ...]:
        """The command of jcmd that logs into this folder from now on."""
        return (
            "VM.log",
            f"output={folder / self.name}",
            f"what={self.what}",
            f"decorators={_DECORATORS}",
            f"output_options={self.rotation}",
        )

    def switch_off(self, folder: Path) -> tuple[str, ...]:
        """The command that removes this output and no other: an output that logs nothing is closed and forgotten.

        Not `VM.log disable`: it clears the server's own outputs too.
        """
        return ("VM.log", f"output={folder / self.name}", "what=all=off")
