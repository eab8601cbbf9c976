"""Unnamed network namespaces, and commands in them, that the kernel removes when we die. Root is not required.

A namespace lives as long as its holder, a `cat` with a parent-death signal. `ip netns add` was rejected: a named
namespace is a mount and outlives a killed program.

A user's command gets its own process namespace (`system.wrap_in_pid_namespace`). A parent-death signal alone was
rejected: it reaches the command but not its children, and a process that is left in a network namespace keeps it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed

# Gaining the capabilities of a user namespace clears the death signal, so it is set after entering. If we die before
# that, the closed pipe ends `cat`.
_HOLD = ("setpriv", "--pdeathsig", "KILL", "cat")

_NAMESPACES_REMEDY = """\
Run as root, or let ordinary users make user namespaces:
  sysctl user.max_user_namespaces                             must not be 0
  sysctl kernel.unprivileged_userns_clone=1                   (older Debian)
  sysctl kernel.apparmor_restrict_unprivileged_userns=0       (Ubuntu 23.10 and later)
In a container: add the capabilities SYS_ADMIN and NET_ADMIN."""
_PROC_REMEDY = """\
In a container: let it mount a /proc, for example docker run --security-opt systempaths=unconfined."""

# `env PATH=… -- COMMAND` was rejected: env takes "--" as the command.
_WITH_CALLERS_PATH = ("sh", "-c", 'PATH=$1; shift; exec "$@"', "sh")
_GRACE_S = 5.0
_LISTEN_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Namespace:
    """A network namespace, identified by the process that holds it."""

    pid: int
    in_user_namespace: bool = False

    def command(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the argv that runs *argv* inside. An ordinary user has uid 0 and network capabilities there."""
        enter = ("nsenter", "--target", str(self.pid))
        if self.in_user_namespace:
            # Entering clears the death signal.
            return (*enter, "--user", "--preserve-credentials", "--net", "--", *system.tie_to_parent(argv))
        return (*enter, "--net", "--", *argv)

    def run(self, argv: Sequence[str], *, stdin: str | None = None, check: bool = True) -> str:
        """Run a command inside and return its output, as `system.run`."""
        return system.run(self.command(argv), stdin=stdin, check=check)


@dataclass(slots=True)
class Sandbox:
    """Namespaces that links can connect: those of an ordinary user share one user namespace."""

    holders: list[system.Child] = field(default_factory=list)

    def add_namespace(self) -> Namespace:
        """Create a network namespace, which has only a `lo` that is down."""
        if system.is_root():
            holder = _hold(("unshare", "--net", *_HOLD))
        elif self.holders:
            first = ("nsenter", "--target", str(self.holders[0].pid), "--user", "--preserve-credentials", "--net")
            holder = _hold((*first, "--", "unshare", "--net", *_HOLD))
        else:
            holder = _hold(("unshare", "--user", "--map-root-user", "--net", *_HOLD))
        self.holders.append(holder)
        return Namespace(holder.pid, in_user_namespace=not system.is_root())


def has_ipv6() -> bool:
    """Return True if this kernel has IPv6: User-Mode Linux has none, and it can be disabled at boot."""
    return Path("/proc/net/if_inet6").exists()


@contextmanager
def sandbox() -> Iterator[Sandbox]:
    """Yield a sandbox; at the end kill and reap the namespace holders, so that the kernel removes the devices."""
    opened = Sandbox()
    try:
        yield opened
    finally:
        for holder in reversed(opened.holders):
            holder.kill()
        for holder in opened.holders:
            holder.close()


def require_process_namespaces() -> str:
    """Return "works" if a process namespace with its own /proc can be created here; raise MissingCapability if not."""
    with sandbox() as opened:
        argv = system.wrap_in_pid_namespace(("echo", "works"))
        output = opened.add_namespace().run(argv, check=False).strip()
    if output != "works":
        raise MissingCapability(f"process namespaces: {output}\n{_PROC_REMEDY}")
    return output


def user_environment(client_address: str, server_address: str) -> dict[str, str]:
    """Return the user's environment, except for the PATH (restored by `user_argv`), with the link's addresses."""
    addresses = {"INGEST_BENCH_CLIENT": client_address, "INGEST_BENCH_SERVER": server_address}
    return {**os.environ, "PATH": system.PATH, **addresses}


def user_argv(namespace: Namespace, command: Sequence[str]) -> tuple[str, ...]:
    """Return the argv that runs a user's command in a namespace, with the user's PATH; it dies with us."""
    with_path = (*_WITH_CALLERS_PATH, system.CALLER_PATH, *command)
    return namespace.command(system.wrap_in_pid_namespace(with_path))


def run_on_client(namespace: Namespace, command: Sequence[str], env: dict[str, str]) -> int:
    """Run a user's command and return its exit status. It has our terminal, so Ctrl-C reaches it too."""
    process = system.start_in_terminal(user_argv(namespace, command), env=env)
    try:
        return _shell_status(process.wait())
    except KeyboardInterrupt:
        # It was interrupted too, and may still write something.
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        raise
    finally:
        process.kill()
        process.wait()


@contextmanager
def start_on_server(
    namespace: Namespace, command: Sequence[str], env: dict[str, str], *, port: int | None = None
) -> Iterator[Callable[[], int]]:
    """Run a user's command during the block; with a port, the block begins when the command listens on it.

    Yields a function that returns the exit status if it has failed meanwhile; 0: it is running, or has succeeded.
    """
    process = system.start(user_argv(namespace, command), env=env, cwd=None, stderr=None)
    try:
        if port is not None:
            _wait_for_listener(namespace, process, port)
        yield lambda: _shell_status(process.poll() or 0)
    finally:
        if process.poll() is None:
            # The whole process group: the processes that wrap the command ignore the signal.
            os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
        process.kill()
        process.wait()


def _hold(argv: Sequence[str]) -> system.Child:
    """Start a holder and wait until it is inside its namespace: until it has echoed a line."""
    holder = system.Child(argv, name=f"network namespace: `{' '.join(argv)}`")
    try:
        holder.request("ready")
    except BaseException as error:
        holder.close()
        if isinstance(error, RunFailed):
            raise MissingCapability(f"{error}\n{_NAMESPACES_REMEDY}") from None
        raise
    return holder


def _wait_for_listener(namespace: Namespace, process: subprocess.Popen[bytes], port: int) -> None:
    limit = time.monotonic() + _LISTEN_LIMIT_S
    while not namespace.run(("ss", "-Htln", f"sport = :{port}")).strip():
        if process.poll() is not None:
            status = _shell_status(process.returncode)
            raise RunFailed(f"--server: exited with status {status} before it listened on port {port}")
        if time.monotonic() > limit:
            raise RunFailed(f"--server: not listening on port {port} after {_LISTEN_LIMIT_S:g} s")
        time.sleep(0.05)


def _shell_status(returncode: int) -> int:
    """Return the exit status of a shell: 128 and the signal's number if a signal ended the process."""
    return returncode if returncode >= 0 else 128 - returncode
