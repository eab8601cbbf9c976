"""One server process: started inside its namespace as an unprivileged user, awaited, and ended without a rest."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.jvm import cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ingest_bench.model.target import Endpoint, LaunchPlan

# The traditional uid of nobody. OpenSearch, Elasticsearch and Cassandra refuse to run as root.
SERVER_UID = 65534
_POLL_S = 0.05
# Of a log, for the lines at its end.
_TAIL_BYTES = 256 * 1024
# For a server whose folders lie in a closed one, such as /root. access(2) forgets the capabilities of an ordinary uid
# unless no_setuid_fixup is set, and the flight recorder asks it whether its folder can be written.
_WALK_ANYWHERE = (
    "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
    "--securebits=+no_setuid_fixup",
)
# A recording of 200 MB is written at the JVM's exit.
_GRACE_S = 60.0
# Of a server that was never ready nobody wants a recording.
_SHORT_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A server that is ready."""

    popen: subprocess.Popen[bytes]
    jvm_pid: int
    """The JVM itself: for a server with a launcher it is not the process that was started."""
    log: Path
    listen: Endpoint


@contextmanager
def serve(
    plan: LaunchPlan,
    *,
    enter: Callable[[Sequence[str]], tuple[str, ...]],
    log: Path,
    listen: Endpoint,
    ready: Callable[[float], bool],
    timeout_s: float = 120,
) -> Iterator[ServerProcess]:
    """A ready server for the block's time; afterwards no process of it is left.

    `enter` makes the argv that runs inside the server's namespace. `ready` asks the server, for so many seconds at
    most; RunFailed from it says why it is not ready. A server that ends or is not ready in time is RunFailed with the
    last lines of its log.
    """
    for folder in plan.writable:
        folder.mkdir(parents=True, exist_ok=True)
        give(folder)
    argv = enter((*drop_privileges(plan), *system.with_us(plan.argv)))
    popen = system.start(argv, stdout=log, cwd=plan.cwd, env=environment(plan))
    grace_s = _SHORT_GRACE_S
    try:
        _wait_until_ready(popen, ready, log, timeout_s)
        grace_s = _GRACE_S
        yield ServerProcess(popen=popen, jvm_pid=_jvm_pid(popen, plan, log), log=log, listen=listen)
    finally:
        end(popen, grace_s)


def drop_privileges(plan: LaunchPlan) -> tuple[str, ...]:
    """The start of an argv whose program runs as an unprivileged user. It clears the death signal.

    An ordinary user is uid 0 inside the link's user namespace, which servers refuse: one namespace deeper it is not.
    """
    if not system.is_root():
        return ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")
    identity = (f"--reuid={SERVER_UID}", f"--regid={SERVER_UID}", "--clear-groups", "--no-new-privs")
    return ("setpriv", *identity, *(() if reachable(plan) else _WALK_ANYWHERE), "--")


def reachable(plan: LaunchPlan) -> bool:
    """Whether any user may walk to the server's folders, its program and the cache.

    Root's own folders are often closed (/root). A server with results there may then read and search, not write.
    """
    places = [*plan.writable, plan.cwd, Path(plan.argv[0]), cache.folder()]
    parents = {parent for place in places for parent in place.absolute().parents if parent.exists()}
    return all(parent.stat().st_mode & 0o001 for parent in parents)


def environment(plan: LaunchPlan) -> dict[str, str]:
    """The server's whole environment: nothing of ours gets in, such as JAVA_TOOL_OPTIONS."""
    return {"PATH": system.PATH, "LANG": "C.UTF-8", "HOME": str(plan.cwd), **plan.env}


def give(folder: Path) -> None:
    """A folder, with all below it, that the server's user may write. An ordinary user's server needs no gift."""
    if system.is_root():
        for item in (folder, *folder.rglob("*")):
            os.chown(item, SERVER_UID, SERVER_UID, follow_symlinks=False)


def last_lines(log: Path, count: int = 20) -> str:
    """The end of a log, for an error; of the frames of a stack only the first, so that what was said is among it."""
    with suppress(OSError):
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
        before = ["", *lines]
        told = [line for line, last in zip(lines, before, strict=False) if not (_is_frame(line) and _is_frame(last))]
        return "\n".join(line[:400] for line in told[-count:]) or "(it wrote nothing)"
    return f"({log} could not be read)"


def _is_frame(line: str) -> bool:
    """Whether a line is a part of a Java stack, such as "at a.B.c(B.java:1)" or "... 7 more"."""
    return line.lstrip().startswith(("at ", "... "))


def end(popen: subprocess.Popen[bytes], grace_s: float = _GRACE_S) -> None:
    """No process of that server: SIGTERM first, so that recordings are written, SIGKILL after the grace."""
    children = _children(popen)
    # The JVM first: a launcher (Elasticsearch 8) ends by itself when its server has ended.
    for process in reversed(children):
        _signal(process)
    _signal(popen)
    deadline = time.monotonic() + grace_s
    with suppress(subprocess.TimeoutExpired):
        popen.wait(grace_s)
    _, left = psutil.wait_procs(children, timeout=max(0.0, deadline - time.monotonic()))
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    popen.kill()
    popen.wait()
    psutil.wait_procs(left)


def _signal(process: psutil.Process | subprocess.Popen[bytes]) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGTERM)
        # A paused server acts on nothing else.
        process.send_signal(signal.SIGCONT)


def _children(popen: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """What the process started, the youngest last. A process that has ended has nothing."""
    try:
        return psutil.Process(popen.pid).children(recursive=True) if popen.poll() is None else []
    except psutil.NoSuchProcess:
        return []


def _wait_until_ready(
    popen: subprocess.Popen[bytes], ready: Callable[[float], bool], log: Path, timeout_s: float
) -> None:
    deadline = time.monotonic() + timeout_s
    why = "it was not asked yet"
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            if ready(left_s):
                return
            why = "it answers that it is not"
        except RunFailed as error:
            why = str(error)
        status = popen.poll()
        if status is not None:
            raise RunFailed(f"server: it ended before it was ready ({_ending(status)}). {log} ends:\n{last_lines(log)}")
        time.sleep(_POLL_S)
    raise RunFailed(f"server: not ready after {timeout_s:g} s ({why}). {log} ends:\n{last_lines(log)}")


def _jvm_pid(popen: subprocess.Popen[bytes], plan: LaunchPlan, log: Path) -> int:
    if plan.pid_is_jvm:
        return popen.pid
    servers = [process.pid for process in _children(popen) if process.name() == "java"]
    if len(servers) != 1:
        raise RunFailed(f"server: its launcher has {len(servers)} JVMs, one was expected. {log}:\n{last_lines(log)}")
    return servers[0]


def _ending(status: int) -> str:
    return f"exit {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"
