"""Start server processes inside their namespaces as an unprivileged user, wait until they are ready, and end them."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.inputs import untrusted
from ingest_bench.jvm import cache
from ingest_bench.model.target import Endpoint, LaunchPlan

# The traditional unprivileged uid. OpenSearch, Elasticsearch and Cassandra refuse to run as root.
SERVER_UID = 65534
_POLL_S = 0.05
# A JVM writes a recording of 200 MB at its exit.
_GRACE_S = 60.0
# For a server that was never ready: its recording is not needed.
_SHORT_GRACE_S = 5.0
# After SIGKILL: the kernel frees some GB of memory in a second.
_KILL_LIMIT_S = 60.0
_LOG_TAIL_BYTES = 256 * 1024
# For a server in a closed folder, such as /root. access(2) ignores the capabilities of an ordinary uid unless
# no_setuid_fixup is set, and the flight recorder calls it to check that its folder is writable.
_WALK_ANYWHERE = (
    "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
    "--securebits=+no_setuid_fixup",
)
# For a launcher that forks its JVM. If both get SIGTERM, the launcher may exit first while the JVM still writes a
# recording, and the exit of the launcher would kill the JVM.
_LAUNCHER = (
    "sh",
    "-c",
    """trap terminated=1 TERM
"$@"
status=$?
while [ "$terminated$status" != "$status" -o "$status" = 143 ] && kill -s 0 -- -1 2>&-; do sleep 0.05; done
exit "$status"
""",
    "launcher",
)
# A server that starts when it reads a line. A fault runs in a thread of its own, and a process that this thread started
# would die with the thread (parent-death signal).
_STANDBY = ("sh", "-c", 'read -r _ && exec "$@"', "standby")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A server to start, and the check that it is ready."""

    plan: LaunchPlan
    enter: Callable[[Sequence[str]], tuple[str, ...]]
    """Returns the argv that runs a command inside the server's namespace."""
    log: Path
    listen: Endpoint
    is_ready: Callable[[float], bool]
    """Asks the server, for at most that many seconds; RunFailed from it says why it is not ready."""
    name: str = "server"
    """Its name in errors."""
    restarts: int = 0
    """How many restarts after a kill are possible."""


@dataclass(slots=True, kw_only=True)
class ServerProcess:
    """A server that was started. `serve` yields those that are ready."""

    launch: Launch
    popen: subprocess.Popen[bytes]
    jvm_pid: int = 0
    """The JVM, which is not the started process if the server has a launcher; 0 until the server is ready."""
    standbys: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """Waiting processes that become the server at its restarts."""

    @property
    def listen(self) -> Endpoint:
        """Return the address where it listens."""
        return self.launch.listen

    def kill(self) -> None:
        """Kill the server and all its children, and wait until they are gone."""
        kill_tree(self.popen)

    def restart(self, timeout_s: float) -> None:
        """Start the killed server again, in any thread; RunFailed unless it is ready in time."""
        self.popen = self.standbys.pop(0)
        assert self.popen.stdin is not None  # noqa: S101 - for the type checker: it was opened as a pipe
        self.popen.stdin.write(b"\n")
        self.popen.stdin.close()
        _wait_until_ready([self], timeout_s)
        self.jvm_pid = _find_jvm_pid(self)


@contextmanager
def serve(
    *launches: Launch, timeout_s: float = 120, meanwhile: Callable[[], None] = lambda: None
) -> Iterator[tuple[ServerProcess, ...]]:
    """Yield ready servers, such as all nodes of a cluster, and end all their processes afterwards.

    All are started before one is waited for: a node may need the others to be ready. If one exits or is not ready in
    time, RunFailed has the last lines of its log. `meanwhile` is called repeatedly during the wait.
    """
    servers: list[ServerProcess] = []
    grace_s = _SHORT_GRACE_S
    try:
        for launch in launches:
            for folder in launch.plan.writable:
                folder.mkdir(parents=True, exist_ok=True)
                if system.is_root():
                    untrusted.give_ownership(folder, SERVER_UID)
            servers.append(ServerProcess(launch=launch, popen=_start(launch)))
        _wait_until_ready(servers, timeout_s, meanwhile)
        grace_s = _GRACE_S
        for server in servers:
            for _ in range(server.launch.restarts):
                server.standbys.append(_start(server.launch, _STANDBY, stdin=subprocess.PIPE))
            server.jvm_pid = _find_jvm_pid(server)
        yield tuple(servers)
    finally:
        _end(*(popen for server in servers for popen in (server.popen, *server.standbys)), grace_s=grace_s)


def _start(launch: Launch, prefix: Sequence[str] = (), stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start the server's process, through the command of `prefix`."""
    plan = launch.plan
    launcher = () if plan.pid_is_jvm else _LAUNCHER
    argv = (*launcher, *drop_privileges(plan), *prefix, *plan.argv)
    argv = launch.enter(system.wrap_in_pid_namespace(argv))
    return system.start(argv, stdin=stdin, stdout=launch.log, cwd=plan.cwd, env=server_environment(plan))


def server_environment(plan: LaunchPlan) -> dict[str, str]:
    """Return the whole environment of a server, without ours, which may hold JAVA_TOOL_OPTIONS."""
    return {"PATH": system.PATH, "LANG": "C.UTF-8", "HOME": str(plan.cwd), **plan.env}


def drop_privileges(plan: LaunchPlan) -> tuple[str, ...]:
    """Return the start of an argv whose program runs as an unprivileged user. It clears the parent-death signal.

    An ordinary user is uid 0 inside the link's user namespace, which servers refuse: in a namespace below it is not.
    """
    if not system.is_root():
        return ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")
    identity = (f"--reuid={SERVER_UID}", f"--regid={SERVER_UID}", "--clear-groups", "--no-new-privs")
    return ("setpriv", *identity, *(() if is_reachable(plan) else _WALK_ANYWHERE), "--")


def is_reachable(plan: LaunchPlan) -> bool:
    """Return True if any user may walk to the server's folders, its program and the cache.

    Folders of root are often closed (/root). A server with results in one may then read and search, not write.
    """
    paths = [*plan.writable, *plan.readable, plan.cwd, Path(plan.argv[0]), cache.folder()]
    folders = {folder for path in paths for folder in _folders_to(path.absolute()) if folder.exists()}
    can_read = all(file.stat().st_mode & 0o004 for file in plan.readable)
    return can_read and all(_may_enter(folder) for folder in {plan.cwd, *folders})


def _folders_to(path: Path) -> Iterator[Path]:
    """Yield each folder on the way to a path, also those that a link leads through."""
    for step in (*reversed(path.parents), path):
        yield step.parent
        if step.is_symlink():
            yield from _folders_to(step.parent / step.readlink())


def _may_enter(folder: Path) -> bool:
    state = folder.stat()
    return bool(state.st_mode & 0o001) or (state.st_uid == SERVER_UID and bool(state.st_mode & 0o100))


def read_last_lines(log: Path) -> str:
    """Return the end of a log for an error, with only the first frame of each stack, so that its message is shown."""
    with suppress(OSError):
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
        pairs = zip(lines, ["", *lines], strict=False)
        kept = [line for line, previous in pairs if not (_is_stack_frame(line) and _is_stack_frame(previous))]
        return "\n".join(line[:400] for line in kept[-20:]) or "(it is empty)"
    return f"({log} could not be read)"


def _is_stack_frame(line: str) -> bool:
    """Return True for a line of a Java stack, such as "at a.B.c(B.java:1)" or "... 7 more"."""
    return line.lstrip().startswith(("at ", "... "))


def _wait_until_ready(
    started: Sequence[ServerProcess], timeout_s: float, meanwhile: Callable[[], None] = lambda: None
) -> None:
    deadline = time.monotonic() + timeout_s
    reasons = {server.launch.name: "it was not asked yet" for server in started}
    while reasons:
        meanwhile()
        for server in started:
            name = server.launch.name
            if (remaining_s := deadline - time.monotonic()) <= 0:
                first = next(server.launch for server in started if server.launch.name in reasons)
                others = "".join(f"; {other}: {text}" for other, text in reasons.items() if other != first.name)
                raise RunFailed(
                    f"{first.name}: not ready after {timeout_s:g} s ({reasons[first.name]}{others}). "
                    f"{_quote_log(first.log)}"
                )
            is_ready = False
            try:
                is_ready = name not in reasons or server.launch.is_ready(remaining_s)
                if is_ready:
                    reasons.pop(name, None)
                else:
                    reasons[name] = "it responds that it is not ready"
            except RunFailed as error:
                reasons[name] = str(error)
            status = server.popen.poll()
            if status is not None:
                when = "as soon as" if is_ready else "before"
                # 128 + N is the status of a process that signal N killed.
                number = -status if status < 0 else status - 128
                is_signal = number in signal.valid_signals()
                end = f"killed by {signal.Signals(number).name}" if is_signal else f"exit {status}"
                raise RunFailed(f"{name}: it exited {when} it was ready ({end}). {_quote_log(server.launch.log)}")
        if reasons:
            time.sleep(_POLL_S)


def _quote_log(log: Path) -> str:
    return f"{log} ends:\n{read_last_lines(log)}"


def _find_jvm_pid(server: ServerProcess) -> int:
    """Return the pid of the JVM outside its namespace; RunFailed if it has exited."""
    pids: list[int] = []
    with suppress(psutil.NoSuchProcess):
        family = _children(server.popen)
        if server.launch.plan.pid_is_jvm:
            # The server is the oldest child of the namespace's first process, which later adopts orphans.
            adopted = [process for process in family if process.ppid() == family[0].pid]
            pids = [min(adopted, key=lambda process: process.create_time()).pid] if adopted else []
        else:
            parents = {process.pid: process.ppid() for process in family if process.name() == "java"}
            # If the launcher is a JVM too (Elasticsearch 8), the server is its child.
            pids = [pid for pid in parents if pid not in parents.values()]
    if len(pids) != 1:
        raise RunFailed(f"{server.launch.name}: {len(pids)} JVMs, expected one. {_quote_log(server.launch.log)}")
    return pids[0]


def _end(*popens: subprocess.Popen[bytes], grace_s: float) -> None:
    """End servers with all their children: SIGTERM for all first, so that recordings are written, then SIGKILL."""
    servers = [(popen, _children(popen)) for popen in popens]
    for popen, children in servers:
        # The JVM first: a launcher (Elasticsearch 8) exits when its server has exited. Not `unshare`, which holds the
        # namespace: older ones die of SIGTERM, and the JVM with them.
        for process in reversed(children) if children else (popen,):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)
                # A stopped server handles no other signal.
                process.send_signal(signal.SIGCONT)
    deadline = time.monotonic() + grace_s
    for popen, children in servers:
        with suppress(subprocess.TimeoutExpired):
            popen.wait(max(0.0, deadline - time.monotonic()))
        kill_tree(popen, _wait_for_exit(children, deadline))


def kill_tree(popen: subprocess.Popen[bytes], others: Sequence[psutil.Process] | None = None) -> None:
    """Kill a child and other processes, by default all its children, and reap them; RunFailed for one that stays."""
    others = _children(popen) if others is None else others
    deadline = time.monotonic() + _KILL_LIMIT_S
    for process in others:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    popen.kill()
    try:
        popen.wait(_KILL_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise RunFailed(_describe_survivor(popen.pid)) from None
    for process in _wait_for_exit(others, deadline):
        raise RunFailed(_describe_survivor(process.pid))


def _wait_for_exit(processes: Sequence[psutil.Process], deadline: float) -> list[psutil.Process]:
    """Return the processes that still run at the deadline, or none as soon as all have exited.

    A zombie counts as exited: it need not be our child, and its parent may never reap it (psutil.wait_procs would wait
    for that). A JVM outlives the script that started it, and PID 1 of a container need not be an init.
    """
    while running := [process for process in processes if _is_running(process)]:
        if time.monotonic() > deadline:
            return running
        time.sleep(_POLL_S)
    return []


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _describe_survivor(pid: int) -> str:
    """Return the message for a process that SIGKILL does not end."""
    message = f"pid {pid} was killed {_KILL_LIMIT_S:g} s ago and still exists"
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
        status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        message += f", in state {status.get('State', '?')}"
        if (tracer := status.get("TracerPid", "0")) != "0":
            # The kernel reports its end to the parent only after the tracer was told (ptrace(2)).
            message += f": it is traced by pid {tracer}, which must detach"
    return message


def _children(popen: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return all descendants of a process, the youngest last; none if it has exited."""
    try:
        return psutil.Process(popen.pid).children(recursive=True) if popen.poll() is None else []
    except psutil.NoSuchProcess:
        return []
