"""Unnamed network namespaces that the kernel takes down with us, as root or as an ordinary user.

A namespace lives as long as its holder, a `cat` with a parent-death signal. `ip netns add` was rejected: a named
namespace is a mount and outlives a killed program.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Gaining the capabilities of a user namespace clears the death signal, so it is set after entering. When we die
# before that, the closed pipe ends `cat`.
_HOLD = ("setpriv", "--pdeathsig", "KILL", "cat")

_REMEDY = """\
Run as root, or let ordinary users make user namespaces:
  sysctl user.max_user_namespaces                             must not be 0
  sysctl kernel.unprivileged_userns_clone=1                   (older Debian)
  sysctl kernel.apparmor_restrict_unprivileged_userns=0       (Ubuntu 23.10 and later)
In a container: add the capabilities SYS_ADMIN and NET_ADMIN."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """A network namespace, named by the process that holds it."""

    pid: int
    in_user_namespace: bool = False

    def command(self, argv: Sequence[str]) -> tuple[str, ...]:
        """The argv that runs `argv` inside. An ordinary user is uid 0 there, with the link's capabilities."""
        enter = ("nsenter", "--target", str(self.pid))
        if self.in_user_namespace:
            # Entering clears the death signal.
            return (*enter, "--user", "--preserve-credentials", "--net", "--", *system.with_us(argv))
        return (*enter, "--net", "--", *argv)

    def run(self, argv: Sequence[str], *, stdin: str | None = None, check: bool = True) -> str:
        """What the command, run inside, wrote to its standard output."""
        return system.run(self.command(argv), stdin=stdin, check=check)


@dataclass(slots=True)
class Sandbox:
    """Namespaces that can be joined by links: those of an ordinary user share one user namespace."""

    holders: list[system.Child] = field(default_factory=list)

    def add(self) -> Namespace:
        """A new network namespace with nothing but a `lo` that is down."""
        if system.is_root():
            holder = _hold(("unshare", "--net", *_HOLD))
        elif self.holders:
            first = ("nsenter", "--target", str(self.holders[0].pid), "--user", "--preserve-credentials", "--net")
            holder = _hold((*first, "--", "unshare", "--net", *_HOLD))
        else:
            holder = _hold(("unshare", "--user", "--map-root-user", "--net", *_HOLD))
        self.holders.append(holder)
        return Namespace(holder.pid, in_user_namespace=not system.is_root())

    def close(self) -> None:
        """Nothing left: the holders are dead and reaped; the kernel takes the devices away."""
        for holder in reversed(self.holders):
            holder.kill()
        for holder in self.holders:
            holder.close()
        self.holders.clear()


def has_ipv6() -> bool:
    """Whether this kernel has IPv6: User-Mode Linux has none, and it can be switched off at boot."""
    return Path("/proc/net/if_inet6").exists()


@contextmanager
def sandbox() -> Iterator[Sandbox]:
    """A sandbox that ends with the block, whatever happened in it."""
    opened = Sandbox()
    try:
        yield opened
    finally:
        opened.close()


def _hold(argv: Sequence[str]) -> system.Child:
    """A holder that is inside its namespace: it has answered what it was told."""
    holder = system.Child(argv, name=f"network namespace: `{' '.join(argv)}`")
    try:
        holder.ask("ready")
    except BaseException as error:
        holder.close()
        if isinstance(error, RunFailed):
            raise MissingCapability(f"{error}\n{_REMEDY}") from None
        raise
    return holder
