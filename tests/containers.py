"""JVMs in namespaces of their own, as container runtimes and systemd start them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from readied import ready

from ingest_bench import system
from ingest_bench.jvm import java

USER = 65534
_AS_USER = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
_ISOLATED = ("unshare", "--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child", "--mount-proc")
_OWN_TMP = "mount -t tmpfs none /tmp && mount -t tmpfs none /var/tmp"
_READ_ONLY = "mount -o remount,bind,ro / && mount -t tmpfs -o ro none /var/tmp"
_HOSTILE = """
mount -t tmpfs none /mnt
mkdir /mnt/cache /mnt/victim
ln -s "$DISK/victim" /mnt/tmp
mount --rbind /var/cache /mnt/cache
mount --bind "$DISK/victim" /mnt/victim
mount --rbind /mnt /var
mount -t tmpfs none /tmp"""
# Each with the words before `sh -c SCRIPT JAVA …`, and the script before the JVM. $DISK: a folder of this machine.
KINDS = {
    "container": (_ISOLATED, _OWN_TMP, ()),
    # As without root, or with `userns-remap`: the namespace does not map our root.
    "user-namespace": ((*_AS_USER, *_ISOLATED, "--user", "--map-root-user"), _OWN_TMP, ()),
    # PrivateTmp= and User= of a systemd unit.
    "private-tmp": (
        ("unshare", "--mount"),
        'mount --bind "$DISK/tmp" /tmp && mount --bind "$DISK/var" /var/tmp',
        _AS_USER,
    ),
    "read-only": (_ISOLATED, f"{_READ_ONLY} && mount -t tmpfs none /tmp", ()),
    "closed": (_ISOLATED, f"{_READ_ONLY} && mount -t tmpfs -o ro none /tmp", ()),
    # /var/tmp leads to a folder of this machine.
    "hostile": ((*_AS_USER, *_ISOLATED, "--user", "--map-root-user"), _HOSTILE, ()),
}
_SOURCE = """
class Sleeps {
    public static void main(String[] a) throws Exception {
        System.out.println("ready");
        for (int i = 0; i < 6000; i++) { new byte[1 << 20].hashCode(); Thread.sleep(100); }
    }
}
"""


@dataclass(frozen=True, slots=True)
class Contained:
    """A JVM in a container, by its pid outside of it."""

    pid: int
    disk: Path

    def scratch(self) -> list[Path]:
        """Return the scratch folders of observations that the JVM can see, and those on the disk."""
        root = Path(f"/proc/{self.pid}/root")
        folders: list[Path] = []
        for parent in (root / "var" / "tmp", root / "tmp", *self.disk.glob("*")):
            with suppress(OSError):
                folders += parent.glob("ingest-bench-????????????????")
        return folders

    def run(self, script: str) -> None:
        """Run a script in its mount namespace with the rights of its user namespace."""
        process = Path(f"/proc/{self.pid}")
        has_own_users = (process / "ns" / "user").readlink() != Path("/proc/self/ns/user").readlink()
        options = (f"--target={self.pid}", "--mount", *(("--user",) if has_own_users else ()))
        # Our own PATH may have folders that are loops of links there.
        subprocess.run(("nsenter", *options, "--", "sh", "-ec", script), check=True, env={"PATH": system.PATH})


@contextmanager
def contained(kind: str, folder: Path, java_version: int = 17) -> Iterator[Contained]:
    """Yield a small JVM in a container of that kind."""
    before, script, after = KINDS[kind]
    runtime = java.fetch_wheel(java_version)
    source = folder / "Sleeps.java"
    source.write_text(_SOURCE)
    classes = java.compile_classes(runtime, (source,))
    disk = folder / "disk"
    for name in ("tmp", "var", "victim"):
        (disk / name).mkdir(parents=True, exist_ok=True)
        (disk / name).chmod(0o1777)
    options = ("-Xmx16m", "-Xshare:auto", "-cp", str(classes), "Sleeps")
    jvm = (*after, str(runtime.java), *options)
    argv = system.tie_to_parent((*before, "sh", "-ec", f'{script} && exec "$@"', "sh", *jvm))
    with ready(argv, {"PATH": system.PATH, "DISK": str(disk)}) as process:
        top = psutil.Process(process.pid)
        (pid,) = (child.pid for child in (top, *top.children(recursive=True)) if child.name() == "java")
        yield Contained(pid, disk)
