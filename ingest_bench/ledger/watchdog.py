"""Sessions of changes that a second process undoes: at the end of the block, at the time limit, or when we die.

    python -m ingest_bench.ledger.watchdog JOURNAL DEADLINE PIPE READY       started by `open_session`

The watchdog is started before the first change. It has a session of its own, so Ctrl-C and the end of a terminal do not
reach it. It inherits our locks, so no other session can begin before it has finished. It holds one end of a pipe whose
other end closes when we die in any way. Only the watchdog undoes, so that there is one way back; if it was killed, we
do it. Both keep the journal open: changes are undone even if the file was deleted.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import syslog
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingest_bench import system
from ingest_bench.errors import InvalidRun, RunFailed, SpecError
from ingest_bench.ledger import journal as journals
from ingest_bench.ledger import sessions
from ingest_bench.ledger.journal import Header, Journal, OnStage
from ingest_bench.ledger.namespaces import NamespaceKind
from ingest_bench.ledger.steps import Step

# Tests replace it by a driver that is killed at a chosen moment.
WATCHDOG_COMMAND: tuple[str, ...] = system.build_module_argv("ingest_bench.ledger.watchdog")

_START_TIMEOUT_S = 60.0
# The watchdog waits up to 10 s for a change in progress, and then runs a few commands.
_EXIT_TIMEOUT_S = 90.0
_UNDO_TRIES = 3


@dataclass(slots=True)
class Session:
    """Changes to the machine that are undone however this process ends."""

    journal: Journal
    resources: tuple[str, ...]
    on_stage: OnStage
    is_expiry_expected: bool = False

    def apply(self, steps: Sequence[Step]) -> None:
        """Make the changes one after the other, each journalled before it is made."""
        for step in steps:
            if step.action.path and step.action.path not in self.resources:
                raise RunFailed(f"{step.name}: not changed: this session has no lock on {step.action.path}")
            self.journal.apply(step, self.on_stage)

    def is_expired(self) -> bool:
        """Return True if the time limit is reached, or the session was undone on request."""
        return self.journal.is_expired()

    def wait_until_expired(self) -> None:
        """Sleep until the session expires. Without this call, expiry is an error."""
        self.is_expiry_expected = True
        while not (self.is_expired() or self.journal.is_lost()):
            time.sleep(0.2)


@contextlib.contextmanager
def open_session(
    key: str,
    description: str,
    *,
    time_limit_s: float,
    resources: tuple[str, ...] = (),
    namespace_kinds: tuple[NamespaceKind, ...] = (),
    inherited_fds: tuple[int, ...] = (),
    on_stage: OnStage = lambda _: None,
) -> Iterator[Session]:
    """Open a session of changes to the object that *key* names, with exclusive locks on *key* and *resources*.

    Every file that a change writes must be a resource. By default the changes are to the whole machine. With
    *namespace_kinds* they can be undone only in our namespaces of these kinds, resources exist once in each, and each
    network namespace has its own *key*. The parent of each undo command, the watchdog, has *inherited_fds* open too.
    Leftovers of earlier sessions are undone first. Raise InvalidRun at the end of the block if the time limit expired
    before.
    """
    if not 0 < time_limit_s < float("inf"):
        raise SpecError("a time limit is required, such as --for 60s; at its end all changes are undone")
    path = sessions.locate_journal(key, namespace_kinds)
    with sessions.acquire_locks(key, description, resources, namespace_kinds) as locks:
        sessions.undo_leftovers(key, resources, namespace_kinds)
        on_stage("locked")
        header = journals.create_header(description, time_limit_s, resources, namespace_kinds)
        with _watch(path, header, (*locks, *inherited_fds), on_stage) as journal:
            on_stage("journal created")
            session = Session(journal, resources, on_stage)
            yield session
            was_lost, was_expired = journal.is_lost(), session.is_expired()
    if was_lost:
        raise RunFailed(
            f"{description}: everything was restored, but another program deleted or changed {path} meanwhile: after a "
            "kill nothing could have been restored. Keep other programs out of that folder and try again."
        )
    if was_expired and not session.is_expiry_expected:
        raise InvalidRun(f"{description}: the time limit of {time_limit_s:g} s expired before the work was done")


@contextlib.contextmanager
def _watch(path: Path, header: Header, inherited_fds: tuple[int, ...], on_stage: OnStage) -> Iterator[Journal]:
    """Open a journal whose watchdog is ready; at the end of the block it has undone the session and exited."""
    journal = None
    pipe_read, pipe_write = os.pipe()
    ready_read, ready_write = os.pipe()
    try:
        arguments = (str(path), str(header.deadline_boottime_ns), str(pipe_read), str(ready_write))
        watchdog = system.start_detached(
            (*WATCHDOG_COMMAND, *arguments), pass_fds=(pipe_read, ready_write, *inherited_fds)
        )
        os.close(ready_write)
        os.close(pipe_read)
        ready_write = pipe_read = -1
        try:
            if not select.select([ready_read], [], [], _START_TIMEOUT_S)[0] or not os.read(ready_read, 1):
                raise RunFailed(f"the watchdog did not start: {' '.join(WATCHDOG_COMMAND)}. Nothing was changed.")
            on_stage("watched")
            journal = journals.Journal.create(path, header)
            yield journal
        finally:
            on_stage("undoing")
            os.close(pipe_write)
            pipe_write = -1
            try:
                watchdog.wait(_EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                watchdog.kill()
                watchdog.wait()
            # Does nothing unless the watchdog failed or was killed.
            journals.undo_session(path, journal=journal)
            on_stage("undone")
    finally:
        if journal is not None:
            journal.close()
        for descriptor in (pipe_read, pipe_write, ready_read, ready_write):
            if descriptor >= 0:
                os.close(descriptor)


def main(arguments: Sequence[str], on_stage: OnStage = lambda _: None) -> int:
    """Run the watchdog process; return 0 if everything was undone, else write the reason to the system's log."""
    path, (deadline_boottime_ns, pipe, ready) = Path(arguments[0]), map(int, arguments[1:])
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    term_read, term_write = os.pipe()
    signal.signal(signal.SIGTERM, lambda _number, _frame: (os.write(term_write, b"!"), None)[1])
    # Created by the watchdog itself, so that the file never exists without a process that removes it.
    journal = journals.Journal(path, journals.open_journal(path))
    with contextlib.suppress(BrokenPipeError):
        os.write(ready, b"!")
    os.close(ready)
    _sleep_until(deadline_boottime_ns, (pipe, term_read))
    on_stage("woken")
    for tries_left in reversed(range(_UNDO_TRIES)):
        try:
            journals.undo_session(path, on_stage, journal=journal)
        except (RunFailed, OSError) as error:
            if not tries_left:
                # The process that started us may be dead, so the system's log is the only place.
                syslog.openlog("ingest-bench")
                syslog.syslog(syslog.LOG_ERR, str(error))
                return 1
            time.sleep(1)
        else:
            break
    return 0


def _sleep_until(deadline_boottime_ns: int, wake_fds: Sequence[int]) -> None:
    poll = select.poll()
    for descriptor in wake_fds:
        poll.register(descriptor, select.POLLIN)
    while (left_ns := deadline_boottime_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) > 0:
        # In slices: poll() does not count a machine's sleep, and takes at most 2^31 ms.
        if poll.poll(min(left_ns // 10**6 + 1, 5000)):
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
