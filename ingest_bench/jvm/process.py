"""One server process: started inside its namespace as an unprivileged user, awaited, and ended without a rest."""

from __future__ import annotations

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
from ingest_bench.jvm import ending, server_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ingest_bench.model.target import Endpoint, LaunchPlan

_POLL_S = 0.05
# Of a log, for the lines at its end.
_TAIL_BYTES = 256 * 1024
# For a launcher that forks its JVM. When both are told to end, the launcher may end first while the JVM still writes a
# recording; the end of the launcher would be that of the JVM.
_LAUNCHER = (
    "sh",
    "-c",
    """trap told=1 TERM
"$@"
status=$?
while [ "$told$status" != "$status" -o "$status" = 143 ] && kill -s 0 -- -1 2>&-; do sleep 0.05; done
exit "$status"
""",
    "launcher",
)
# A server that waits for a line: a fault comes from a thread of its own, whose end would be that of what it started.
_STANDBY = ("sh", "-c", 'read -r _ && exec "$@"', "standby")
# Of a server that was never ready nobody wants a recording.
_SHORT_GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A server that is to be started, and who says that it is ready."""

    plan: LaunchPlan
    enter: Callable[[Sequence[str]], tuple[str, ...]]
    """Makes the argv that runs inside the server's namespace."""
    log: Path
    listen: Endpoint
    ready: Callable[[float], bool]
    """Asks the server, for so many seconds at most; RunFailed from it says why it is not ready."""
    name: str = "server"
    """What it is called in errors."""
    restarts: int = 0
    """How often it may be started again after it was killed."""


@dataclass(slots=True, kw_only=True)
class ServerProcess:
    """A server that is ready."""

    launch: Launch
    popen: subprocess.Popen[bytes]
    jvm_pid: int
    """The JVM itself: for a server with a launcher it is not the process that was started."""
    standbys: list[subprocess.Popen[bytes]]
    """Who becomes the server when it is started again."""

    @property
    def log(self) -> Path:
        """What it writes."""
        return self.launch.log

    @property
    def listen(self) -> Endpoint:
        """Where it listens."""
        return self.launch.listen

    def kill(self) -> None:
        """End it by SIGKILL, with all that it started; nothing of them runs any more."""
        ending.kill(self.popen)

    def start_again(self, timeout_s: float) -> None:
        """Start it anew where it was, in any thread; RunFailed unless it is ready in time."""
        self.popen = self.standbys.pop(0)
        assert self.popen.stdin is not None  # noqa: S101 - for the type checker: it was asked for as a pipe
        self.popen.stdin.write(b"\n")
        self.popen.stdin.close()
        started = _Started(self.launch, self.popen)
        _wait_until_ready([started], timeout_s)
        self.jvm_pid = _jvm_pid(started)


@contextmanager
def serve(
    *launches: Launch, timeout_s: float = 120, meanwhile: Callable[[], None] = lambda: None
) -> Iterator[tuple[ServerProcess, ...]]:
    """Ready servers for the block's time, such as all nodes of a cluster; afterwards no process of them is left.

    All are started before one is waited for: a node may need the others to be ready. One that ends or is not ready in
    time is RunFailed with the last lines of its log. `meanwhile` is called again and again while they are waited for.
    """
    started: list[_Started] = []
    ready: list[ServerProcess] = []
    standbys: list[subprocess.Popen[bytes]] = []
    grace_s = _SHORT_GRACE_S
    try:
        started.extend(map(_started, launches))
        _wait_until_ready(started, timeout_s, meanwhile)
        grace_s = ending.GRACE_S
        for one in started:
            its = [_start(one.launch, _STANDBY, stdin=subprocess.PIPE) for _ in range(one.launch.restarts)]
            standbys += its
            ready.append(ServerProcess(launch=one.launch, popen=one.popen, jvm_pid=_jvm_pid(one), standbys=its))
        yield tuple(ready)
    finally:
        ending.end(*(one.popen for one in started), *standbys, grace_s=grace_s)


@dataclass(frozen=True, slots=True)
class _Started:
    """A server that was started."""

    launch: Launch
    popen: subprocess.Popen[bytes]


def _started(launch: Launch) -> _Started:
    for folder in launch.plan.writable:
        folder.mkdir(parents=True, exist_ok=True)
        server_user.give(folder)
    return _Started(launch, _start(launch))


def _start(launch: Launch, first: Sequence[str] = (), stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Its process, which `first` becomes."""
    plan = launch.plan
    launcher = () if plan.pid_is_jvm else _LAUNCHER
    argv = launch.enter(system.contained((*launcher, *server_user.drop_privileges(plan), *first, *plan.argv)))
    return system.start(argv, stdin=stdin, stdout=launch.log, cwd=plan.cwd, env=environment(plan))


def environment(plan: LaunchPlan) -> dict[str, str]:
    """The server's whole environment: nothing of ours gets in, such as JAVA_TOOL_OPTIONS."""
    return {"PATH": system.PATH, "LANG": "C.UTF-8", "HOME": str(plan.cwd), **plan.env}


def last_lines(log: Path) -> str:
    """The end of a log, for an error; of the frames of a stack only the first, so that what was said is among it."""
    with suppress(OSError):
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
        before = ["", *lines]
        told = [line for line, last in zip(lines, before, strict=False) if not (_is_frame(line) and _is_frame(last))]
        return "\n".join(line[:400] for line in told[-20:]) or "(it wrote nothing)"
    return f"({log} could not be read)"


def _is_frame(line: str) -> bool:
    """Whether a line is a part of a Java stack, such as "at a.B.c(B.java:1)" or "... 7 more"."""
    return line.lstrip().startswith(("at ", "... "))


def _wait_until_ready(
    started: Sequence[_Started], timeout_s: float, meanwhile: Callable[[], None] = lambda: None
) -> None:
    deadline = time.monotonic() + timeout_s
    why = {one.launch.name: "it was not asked yet" for one in started}
    while why:
        meanwhile()
        for one in started:
            if (left_s := deadline - time.monotonic()) <= 0:
                raise RunFailed(_late([each for each in started if each.launch.name in why], why, timeout_s))
            is_ready = False
            try:
                is_ready = one.launch.name not in why or one.launch.ready(left_s)
                if is_ready:
                    why.pop(one.launch.name, None)
                else:
                    why[one.launch.name] = "it answers that it is not"
            except RunFailed as error:
                why[one.launch.name] = str(error)
            _check_it_runs(one, is_ready=is_ready)
        if why:
            time.sleep(_POLL_S)


def _check_it_runs(one: _Started, *, is_ready: bool) -> None:
    status = one.popen.poll()
    if status is not None:
        when = "as soon as" if is_ready else "before"
        name, log = one.launch.name, one.launch.log
        raise RunFailed(f"{name}: it ended {when} it was ready ({_ending(status)}). {log} ends:\n{last_lines(log)}")


def _late(missing: Sequence[_Started], why: Mapping[str, str], timeout_s: float) -> str:
    """Each node that is not ready and why, and the log of the first of them."""
    first, *others = missing
    told = "".join(f"; {one.launch.name}: {why[one.launch.name]}" for one in others)
    log = first.launch.log
    return (
        f"{first.launch.name}: not ready after {timeout_s:g} s ({why[first.launch.name]}{told}). {log} ends:\n"
        f"{last_lines(log)}"
    )


def _jvm_pid(one: _Started) -> int:
    """Return the pid, outside of its namespace, of the JVM; RunFailed when it has ended."""
    log = one.launch.log
    jvms: list[int] = []
    with suppress(psutil.NoSuchProcess):
        jvms = _jvms(one)
    if len(jvms) != 1:
        raise RunFailed(f"{one.launch.name}: it has {len(jvms)} JVMs, one was expected. {log}:\n{last_lines(log)}")
    return jvms[0]


def _jvms(started: _Started) -> list[int]:
    family = ending.children_of(started.popen)
    if started.launch.plan.pid_is_jvm:
        # The server is the first child of the namespace's first process, which later adopts orphans.
        adopted = [process for process in family if process.ppid() == family[0].pid]
        return [min(adopted, key=lambda process: process.create_time()).pid] if adopted else []
    parents = {process.pid: process.ppid() for process in family if process.name() == "java"}
    # Where a launcher is one too (Elasticsearch 8) the server is its child.
    return [pid for pid in parents if pid not in parents.values()]


def _ending(status: int) -> str:
    """Return an exit status in words; a status of 128 + N is that of a process that signal N killed."""
    number = -status if status < 0 else status - 128
    return f"killed by {signal.Signals(number).name}" if number in signal.valid_signals() else f"exit {status}"
