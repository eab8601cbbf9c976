"""A current folder and a home full of files with the names of what the command imports, starts and reads."""

from __future__ import annotations

import contextlib
import os
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from commands import LIMIT_S, as_user

from ingest_bench.jvm import cache

COMMAND = str(Path(sys.executable).with_name("ingest-bench"))
MODULES = (
    *("ingest_bench/__init__", "gevent", "jgo", "json", "locust", "matplotlib", "numpy", "pip", "psutil", "pyroute2"),
    *("random", "rich", "scapy", "sitecustomize", "socket", "typer", "usercustomize"),
)
PROGRAMS = (
    *("bash", "cat", "env", "ethtool", "fc-list", "gcc", "ip", "java", "jcmd", "latex", "ldconfig", "ls", "mkdir"),
    *("modprobe", "mount", "nsenter", "python", "python3", "rm", "setpriv", "sh", "ss", "sysctl", "tc", "uname"),
    *("unshare",),
)
# Read by the dynamic linker, by Matplotlib and by JVMs; all are useless.
FILES = {
    "libmnl.so.0": "",
    "matplotlibrc": "text.usetex: True\n",
    ".hotspot_compiler": "quiet\n",
    ".hotspotrc": "+NoSuchFlag\n",
}
_MODULE = """\
import os
open(f"{marks}/{name}, uid {{os.geteuid()}}", "w").close()
raise SystemExit("planted: {name}")
"""
_PROGRAM = """\
#!/bin/sh
: > "{marks}/{name}, uid $(/usr/bin/id -u)"
echo "planted: {name}" >&2
exit 1
"""


@dataclass(frozen=True, slots=True)
class Planted:
    """The folder, and the user who runs the command there; None: the current one."""

    folder: Path
    user: int | None

    @property
    def executed(self) -> list[str]:
        """Return the planted files that were executed, with the users."""
        return sorted(path.name for path in (self.folder / "marks").iterdir())

    def environment(self) -> dict[str, str]:
        """Return a careless environment: the current folder is in each variable with paths."""
        agent = "-javaagent:agent.jar"
        own = {
            "HOME": str(self.folder / "home"),
            "INGEST_BENCH_CACHE": str(self.folder / "cache"),
            "INGEST_BENCH_STATE": "state",
            "PATH": ".:/usr/bin:/bin",
            "LD_LIBRARY_PATH": ":/nonexistent",
            "CLASSPATH": ".",
            **dict.fromkeys(("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"), agent),
            "COLUMNS": "200",
        }
        return {**{key: value for key, value in os.environ.items() if not key.startswith("XDG_")}, **own}

    @contextlib.contextmanager
    def start(self, *arguments: str, enter: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
        """Start the command in the folder, through `enter`; kill it at the end."""
        pipe = subprocess.PIPE
        argv = [*_by_path((*enter, *as_user(self.user))), COMMAND, *arguments]
        with subprocess.Popen(
            argv, cwd=self.folder, env=self.environment(), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, *arguments: str, enter: Sequence[str] = ()) -> tuple[int, str, str]:
        """Return exit code, standard output and standard error of the command."""
        with self.start(*arguments, enter=enter) as process:
            output, errors = process.communicate(timeout=LIMIT_S)
        return process.returncode, output, errors


@contextlib.contextmanager
def planted(user: int | None, names: Sequence[str] = (*MODULES, *PROGRAMS, *FILES)) -> Iterator[Planted]:
    """Yield a folder of the user with these files, below one that all users may read."""
    folder = Path(tempfile.mkdtemp(prefix="ingest-bench-planted-", dir="/var/tmp"))
    try:
        folder.chmod(0o755)
        marks = folder / "marks"
        marks.mkdir()
        marks.chmod(0o777)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        for place in (folder, folder / "home" / ".local" / "lib" / version / "site-packages"):
            place.mkdir(parents=True, exist_ok=True)
            for name in names:
                _plant(place, name, marks)
            line = f'import os; open(f"{marks}/planted.pth, uid {{os.geteuid()}}", "w").close()\n'
            (place / "planted.pth").write_text(line)
        _link_cache(folder / "cache")
        if user is not None:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, user, user, follow_symlinks=False)
        yield Planted(folder, user)
    finally:
        shutil.rmtree(folder)


def _plant(place: Path, name: str, marks: Path) -> None:
    if name in FILES:
        (place / name).write_text(FILES[name])
    elif name in MODULES:
        path = place / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(_MODULE.format(marks=marks, name=path.name if path.parent == place else path.parent.name))
    else:
        (place / name).write_text(_PROGRAM.format(marks=marks, name=name))
        (place / name).chmod(0o755)


def _link_cache(folder: Path) -> None:
    """Make a cache without compiled classes, so that the compiler must run."""
    folder.mkdir()
    for path in cache.folder().iterdir() if cache.folder().is_dir() else ():
        if path.is_dir() and path.name != "classes":
            (folder / path.name).symlink_to(path)


def _by_path(argv: Sequence[str]) -> list[str]:
    """Return the argv with an absolute program, not one of the folder."""
    return [shutil.which(argv[0]) or argv[0], *argv[1:]] if argv else []


def user_site(base: Path) -> Path:
    """Return the folder of `pip install --user` for that PYTHONUSERBASE."""
    return base / Path(site.getusersitepackages()).relative_to(site.getuserbase())
