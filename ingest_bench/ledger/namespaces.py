"""The namespaces in which a change can be taken back: ours, another one that is still there, or one that is gone.

A change of the whole machine, such as a file below /proc/sys/vm, can be taken back from anywhere. One of an interface
exists in one network namespace, a mount in one mount namespace, and a process has its number in one pid namespace.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ingest_bench import system
from ingest_bench.errors import RunFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = Literal["net", "mnt", "pid"]

# asm-generic/socket.h, since Linux 5.14; Python has no name for it.
_SO_NETNS_COOKIE = 71
# Of the first namespaces (linux/proc_ns.h): there /proc shows every process, and root may look at each.
_FIRST = {"pid": 0xEFFFFFFC, "user": 0xEFFFFFFD}
_OPTIONS = {"net": "--net", "mnt": "--mount", "pid": "--pid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """One namespace of this machine."""

    kind: Kind
    inode: int
    cookie: int = 0
    """Of a network namespace: given only once, while the inode's number may come again. 0: this kernel has none."""

    def is_ours(self) -> bool:
        """Whether we are in it."""
        return own(self.kind) == self

    def is_gone(self) -> bool:
        """Whether nobody can enter it any more; False also when nobody can tell."""
        ours = own(self.kind)
        if ours.inode == self.inode:
            return ours != self
        return _sees_all() and self.entrance() is None

    def entrance(self) -> str | None:
        """The words with which root enters it, as arguments of `nsenter`; None when no way is seen."""
        way = next(_ways(f"{self.kind}:[{self.inode}]", self.kind), None)
        return None if way is None else f"{_OPTIONS[self.kind]}={way}"


def own(kind: Kind) -> Namespace:
    """The one that we are in."""
    cookie = _cookie() if kind == "net" else 0
    return Namespace(kind=kind, inode=Path(f"/proc/self/ns/{kind}").stat().st_ino, cookie=cookie)


def interface_elsewhere(index: int, address: str) -> tuple[str, str] | None:
    """Return the way into the network namespace that has this interface now, and its name there; None if none has it.

    The kernel keeps index and hardware address of an interface that is moved, unless the index is taken there.
    RunFailed if several have such an interface: any user can make one in a namespace of his own.
    """
    ways: dict[int, Path] = {}
    for path in (*Path("/proc").glob("[0-9]*/ns/net"), *Path("/run/netns").glob("*")):
        with contextlib.suppress(OSError):
            ways.setdefault(path.stat().st_ino, path)
    places = []
    for way in ways.values():
        with contextlib.suppress(RunFailed, ValueError):
            links = json.loads(system.run(("nsenter", f"--net={way}", "ip", "-j", "link", "show")))
            same = (link for link in links if (link["ifindex"], link.get("address")) == (index, address))
            places += [(str(way), str(link["ifname"])) for link in same]
    if len(places) > 1:
        ways_to_it = " and ".join(way for way, _ in places)
        raise RunFailed(f"interface {index}: {ways_to_it} have one with its number and address; look which it is")
    return places[0] if places else None


def _cookie() -> int:
    with socket.socket(socket.AF_UNIX) as asked:
        try:
            return int.from_bytes(asked.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), "little")
        except OSError as error:
            if error.errno == errno.ENOPROTOOPT:
                return 0
            raise


def _sees_all() -> bool:
    """Whether no process, and nothing of one, is hidden from us."""
    seen = {kind: Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in _FIRST}
    return os.geteuid() == 0 and seen == _FIRST


def _ways(target: str, kind: Kind) -> Iterator[str]:
    """Files that lead into it: of a thread in it, one that is kept open, or one that is mounted (ip netns add)."""
    processes = [path for path in Path("/proc").iterdir() if path.name.isdecimal()]
    for process in processes:
        for thread in _inside(process / "task"):
            if _leads_to(thread / "ns" / kind) == target:
                yield str(thread / "ns" / kind)
    for process in processes:
        for file in _inside(process / "fd"):
            if _leads_to(file) == target:
                yield str(file)
        with contextlib.suppress(OSError):
            for line in (process / "mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
                root, place = line.split()[3:5]
                if root == target:
                    yield f"{process}/root{place}"


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _leads_to(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
