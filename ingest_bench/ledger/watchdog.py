"""A session of changes that a second process takes back: when we are done, when the time is over, when we die.

The watchdog is started before the first change. It has a session of its own, so neither Ctrl-C nor the end of a
terminal reaches it, and it shares our locks, so nobody can begin before it is done. It holds one end of a pipe; the
other end closes when we end, by whatever way. It alone undoes, so that the way back is always the same; only when it
was killed, we do it. Both keep the journal open: what was changed is put back though the file was deleted.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import syslog
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench import system
from ingest_bench.errors import InvalidRun, RunFailed, SpecError
from ingest_bench.ledger import book, sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ingest_bench.ledger.namespaces import Kind
    from ingest_bench.ledger.steps import Step

    Stage = Callable[[str], None]

# Tests put a driver here that is killed at a chosen moment.
COMMAND: tuple[str, ...] = system.python("ingest_bench.ledger")

_START_LIMIT_S = 60.0
# The watchdog's own patience for a change that is under way, and then some commands.
_END_LIMIT_S = 90.0
_TRIES = 3


@dataclass(slots=True)
class Session:
    """Changes to the machine that are taken back, whatever happens to us."""

    ledger: book.Ledger
    header: book.Header
    on_stage: Stage
    waited: bool = field(default=False)

    def change(self, steps: Sequence[Step]) -> None:
        """Make the changes one after the other, each noted before it is made."""
        for step in steps:
            if step.do.path and step.do.path not in self.header.resources:
                raise RunFailed(f"{step.name}: not done, this session has no lock on {step.do.path}")
            self.ledger.change(step, self.on_stage)

    def is_over(self) -> bool:
        """Whether everything was put back already: the time is over, or somebody called for it."""
        return self.ledger.is_closed() or time.clock_gettime_ns(time.CLOCK_BOOTTIME) >= self.header.until_boottime_ns

    def wait(self) -> None:
        """Sleep until it is over. Without this call, to be overtaken by the end is an error."""
        self.waited = True
        while not (self.is_over() or self.ledger.is_lost()):
            time.sleep(0.2)


@contextlib.contextmanager
def session(
    key: str,
    what: str,
    *,
    time_limit_s: float,
    resources: tuple[str, ...] = (),
    within: tuple[Kind, ...] = (),
    on_stage: Stage = lambda _: None,
) -> Iterator[Session]:
    """A session of changes to what `key` names; nobody else can have one on the same key, or on one of the resources.

    A file that a change writes to is a resource. The changes are the whole machine's, but for the kinds of namespaces
    that they are `within`: only there can they be taken back, and only there are the resources the same. In another
    network namespace the key is another one, too. Leftovers of an earlier session are put back first. InvalidRun at
    the end of the block when the time was over before.
    """
    _refuse_no_limit(time_limit_s)
    path = sessions.file_of(key, within)
    with sessions.locked(key, what, resources, within) as locks:
        sessions.finish_leftovers(key, resources, within)
        on_stage("locked")
        header = book.new_header(what, time_limit_s, resources, within)
        with _watched(path, header, locks, on_stage) as ledger:
            on_stage("ledger made")
            opened = Session(ledger, header, on_stage)
            yield opened
            was_lost, was_over = ledger.is_lost(), opened.is_over()
    if was_lost:
        raise RunFailed(
            f"{what}: everything was put back, but another program deleted or changed {path} meanwhile: after a kill "
            "nothing could have been put back. Keep other programs out of that folder and try again."
        )
    if was_over and not opened.waited:
        raise InvalidRun(f"{what}: the time limit of {time_limit_s:g} s was over before the work; allow more")


def main(arguments: Sequence[str], on_stage: Stage = lambda _: None) -> int:
    """The watchdog process: exit status 0 when everything was put back; else the system's log says what was not."""
    path, (until_boottime_ns, pipe, ready) = Path(arguments[0]), map(int, arguments[1:])
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    asked, ask = os.pipe()
    signal.signal(signal.SIGTERM, lambda _number, _frame: (os.write(ask, b"!"), None)[1])
    # Created by the watchdog itself, so that the file never exists without a process that removes it.
    opened = book.Ledger(path, book.open_file(path))
    with contextlib.suppress(BrokenPipeError):
        os.write(ready, b"!")
    os.close(ready)
    _sleep_until(until_boottime_ns, (pipe, asked))
    on_stage("woken")
    for tries_left in reversed(range(_TRIES)):
        try:
            book.finish(path, on_stage, opened=opened)
        except (RunFailed, OSError) as error:
            if not tries_left:
                # Whoever started us may be dead: the system's log is where somebody looks.
                syslog.openlog("ingest-bench")
                syslog.syslog(syslog.LOG_ERR, str(error))
                return 1
            time.sleep(1)
        else:
            break
    return 0


def _sleep_until(until_boottime_ns: int, wakers: Sequence[int]) -> None:
    poll = select.poll()
    for waker in wakers:
        poll.register(waker, select.POLLIN)
    while (left_ns := until_boottime_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) > 0:
        # In slices: the kernel does not count a machine's sleep for poll, and it takes at most 2^31 ms.
        if poll.poll(min(left_ns // 10**6 + 1, 5000)):
            return


@contextlib.contextmanager
def _watched(path: Path, header: book.Header, locks: tuple[int, ...], on_stage: Stage) -> Iterator[book.Ledger]:
    """Open a journal whose watchdog is ready; at the end of the block it has finished its work and exited."""
    ledger = None
    pipe_read, pipe_write = os.pipe()
    ready_read, ready_write = os.pipe()
    try:
        dog = _start((str(path), str(header.until_boottime_ns)), (pipe_read, ready_write), locks)
        os.close(ready_write)
        os.close(pipe_read)
        ready_write = pipe_read = -1
        try:
            if not select.select([ready_read], [], [], _START_LIMIT_S)[0] or not os.read(ready_read, 1):
                raise RunFailed(f"the watchdog did not start: {' '.join(COMMAND)}; nothing was changed")
            on_stage("watched")
            ledger = book.Ledger.create(path, header)
            yield ledger
        finally:
            on_stage("undoing")
            os.close(pipe_write)
            pipe_write = -1
            _end(dog, path, ledger)
            on_stage("undone")
    finally:
        if ledger is not None:
            ledger.close()
        for descriptor in (pipe_read, pipe_write, ready_read, ready_write):
            if descriptor >= 0:
                os.close(descriptor)


def _start(arguments: tuple[str, ...], pipes: tuple[int, int], locks: tuple[int, ...]) -> subprocess.Popen[bytes]:
    return system.start_survivor((*COMMAND, *arguments, *map(str, pipes)), pass_fds=(*pipes, *locks))


def _end(dog: subprocess.Popen[bytes], path: Path, ledger: book.Ledger | None) -> None:
    """The watchdog is gone, and everything is put back; by us when it could not."""
    try:
        dog.wait(_END_LIMIT_S)
    except subprocess.TimeoutExpired:
        dog.kill()
        dog.wait()
    book.finish(path, opened=ledger)


def _refuse_no_limit(time_limit_s: float) -> None:
    if not 0 < time_limit_s < float("inf"):
        raise SpecError("a time limit is needed, such as --for 60s: when it is over, everything is put back")
