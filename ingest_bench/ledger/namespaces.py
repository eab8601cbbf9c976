"""Namespaces in which a change can be undone: ours, another one that still exists, or one that is gone.

A change of the whole machine, such as a file below /proc/sys/vm, can be undone from anywhere. An interface belongs to
one network namespace, a mount to one mount namespace, and a process number to one pid namespace.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ingest_bench import system
from ingest_bench.errors import RunFailed

NamespaceKind = Literal["net", "mnt", "pid"]

# asm-generic/socket.h, since Linux 5.14; Python has no name for it.
_SO_NETNS_COOKIE = 71
# Inodes of the initial namespaces (linux/proc_ns.h). There /proc shows every process, and root may inspect each.
_INITIAL_INODES = {"pid": 0xEFFFFFFC, "user": 0xEFFFFFFD}
_NSENTER_OPTIONS = {"net": "--net", "mnt": "--mount", "pid": "--pid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """One namespace of this machine."""

    kind: NamespaceKind
    inode: int
    cookie: int = 0
    """A network namespace's unique number: inode numbers are reused. 0: this kernel has none."""

    def is_current(self) -> bool:
        """Return True if this process is in it."""
        return get_current(self.kind) == self

    def is_gone(self) -> bool:
        """Return True if no process can enter it any more; False also if that is unknown."""
        current = get_current(self.kind)
        if current.inode == self.inode:
            return current != self
        # True if no process and no part of one is hidden from us.
        inodes = {kind: Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in _INITIAL_INODES}
        sees_all_processes = os.geteuid() == 0 and inodes == _INITIAL_INODES
        return sees_all_processes and self.find_nsenter_option() is None

    def find_nsenter_option(self) -> str | None:
        """Return the option of `nsenter` with which root enters it; None if no entry is visible."""
        path = next(_find_entries(f"{self.kind}:[{self.inode}]", self.kind), None)
        return None if path is None else f"{_NSENTER_OPTIONS[self.kind]}={path}"


def get_current(kind: NamespaceKind) -> Namespace:
    """Return the namespace of this process."""
    cookie = _read_cookie() if kind == "net" else 0
    return Namespace(kind=kind, inode=Path(f"/proc/self/ns/{kind}").stat().st_ino, cookie=cookie)


def find_moved_interface(index: int, address: str) -> tuple[str, str] | None:
    """Return the path of the network namespace that has this interface now, and its name there; None if none has it.

    The kernel keeps index and hardware address of an interface that is moved, unless the index is taken there.
    Raise RunFailed if several have such an interface: any user can make one in a namespace of their own.
    """
    paths: dict[int, Path] = {}
    for path in (*Path("/proc").glob("[0-9]*/ns/net"), *Path("/run/netns").glob("*")):
        with contextlib.suppress(OSError):
            paths.setdefault(path.stat().st_ino, path)
    matches = []
    for path in paths.values():
        with contextlib.suppress(RunFailed, ValueError):
            links = json.loads(system.run(("nsenter", f"--net={path}", "ip", "-j", "link", "show")))
            same = (link for link in links if (link["ifindex"], link.get("address")) == (index, address))
            matches += [(str(path), str(link["ifname"])) for link in same]
    if len(matches) > 1:
        owners = " and ".join(path for path, _ in matches)
        raise RunFailed(f"interface {index}: {owners} have one with its index and address. Check which one it is.")
    return matches[0] if matches else None


def _read_cookie() -> int:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            return int.from_bytes(probe.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), "little")
        except OSError as error:
            if error.errno == errno.ENOPROTOOPT:
                return 0
            raise


def _find_entries(target: str, kind: NamespaceKind) -> Iterator[str]:
    """Yield paths that lead into a namespace: of a thread in it, an open descriptor, or a mount (ip netns add)."""
    processes = [path for path in Path("/proc").iterdir() if path.name.isdecimal()]
    for process in processes:
        for thread in _list_folder(process / "task"):
            if _read_link(thread / "ns" / kind) == target:
                yield str(thread / "ns" / kind)
    for process in processes:
        for file in _list_folder(process / "fd"):
            if _read_link(file) == target:
                yield str(file)
        with contextlib.suppress(OSError):
            for line in (process / "mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
                root, mount_point = line.split()[3:5]
                if root == target:
                    yield f"{process}/root{mount_point}"


def _list_folder(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _read_link(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
