"""Any command on one end of a link, with all the processes that it ever starts, gone when we are.

A command gets a process namespace of its own (`system.contained`). A death signal alone was rejected: it
reaches the command and not the commands that it started, and any process left in a network namespace keeps it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.network.act.sandbox import sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ingest_bench.network.act.link import Link
    from ingest_bench.network.act.sandbox import Namespace

# `env PATH=… -- COMMAND` was rejected: to env, "--" is then the command.
_SHELL = ("sh", "-c", 'PATH=$1; shift; exec "$@"', "sh")
_REMEDY = """\
In a container: let it mount a /proc, for example docker run --security-opt systempaths=unconfined."""
_GRACE_S = 5.0
_LISTEN_LIMIT_S = 120.0


def environment(link: Link) -> dict[str, str]:
    """The user's own environment but for the PATH, which `argv` gives back, and who is who on the link."""
    who = {"INGEST_BENCH_CLIENT": link.client_address, "INGEST_BENCH_SERVER": link.server_address}
    return {**os.environ, "PATH": system.PATH, **who}


def argv(place: Namespace, command: Sequence[str]) -> tuple[str, ...]:
    """The argv that runs a user's command in a namespace, found by the user's own PATH, and bound to our process."""
    return place.command(system.contained((*_SHELL, system.CALLERS_PATH, *command)))


def require() -> None:
    """Raise MissingCapability unless a process namespace with its own /proc can be made on an end of a link."""
    with sandbox() as opened:
        reply = opened.add().run(system.contained(("echo", "works")), check=False).strip()
    if reply != "works":
        raise MissingCapability(f"process namespaces: {reply}\n{_REMEDY}")


def run(link: Link, command: Sequence[str]) -> int:
    """The exit status of a command on the client's side. It has our terminal, so Ctrl-C reaches it too."""
    process = system.start_in_terminal(argv(link.client, command), env=environment(link))
    try:
        return _status(process.wait())
    except KeyboardInterrupt:
        # It was interrupted too, and may want to say something.
        _wait(process, _GRACE_S)
        raise
    finally:
        process.kill()
        process.wait()


@contextmanager
def server(link: Link, command: Sequence[str], *, port: int | None = None) -> Iterator[Callable[[], int]]:
    """A command on the server's side during the block; with a port, the block begins when it listens there.

    The function says the exit status with which it has failed meanwhile; 0: it runs, or has ended well.
    """
    process = system.start(argv(link.server, command), env=environment(link), cwd=None, stderr=None)
    try:
        if port is not None:
            _await_listener(link, process, port)
        yield lambda: _status(process.poll() or 0)
    finally:
        if process.poll() is None:
            # All of it is one process group; those in between do not listen to this.
            os.killpg(process.pid, signal.SIGTERM)
            _wait(process, _GRACE_S)
        process.kill()
        process.wait()


def _await_listener(link: Link, process: subprocess.Popen[bytes], port: int) -> None:
    limit = time.monotonic() + _LISTEN_LIMIT_S
    while not link.server.run(("ss", "-Htln", f"sport = :{port}")).strip():
        if process.poll() is not None:
            raise RunFailed(f"--server: it ended with {_status(process.returncode)} before it listened on port {port}")
        if time.monotonic() > limit:
            raise RunFailed(f"--server: after {_LISTEN_LIMIT_S:g} s nobody listens on port {port}")
        time.sleep(0.05)


def _status(returncode: int) -> int:
    """What a shell would call it: 128 and the signal's number for an end by signal."""
    return returncode if returncode >= 0 else 128 - returncode


def _wait(process: subprocess.Popen[bytes], grace_s: float) -> None:
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        return
