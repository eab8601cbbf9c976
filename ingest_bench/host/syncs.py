"""Who is asked before a node syncs a file, and may let it wait: the other end of `supervised`.

While nobody lets them wait, each costs one way to us and back. When we are killed the server is too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.host import supervised
from ingest_bench.model.capability import Capability
from ingest_bench.trials import Trial, tried

_SOCKET = ".syncs"
# linux/seccomp.h: SECCOMP_IOCTL_NOTIF_RECV and _SEND, struct seccomp_notif and seccomp_notif_resp.
_RECV, _SEND = 0xC0502100, 0xC0182101
_NOTIF_BYTES, _CONTINUE = 80, 1
# Between the connection and what is sent on it stand a few system calls.
_HAND_OVER_S = 10.0


class Syncs:
    """The syncs of a node. Several may let them wait at once: then it is the longest time that counts."""

    def __init__(self, folder: Path) -> None:
        self._held = self._held_ns = 0
        self._path = folder / _SOCKET
        self._delays: list[int] = []
        self._lock = threading.Lock()
        # Since when, of which listener, and by which number: those that wait longest first.
        self._waiting: deque[tuple[int, int, int]] = deque()
        self._wake_read, self._wake_write = os.pipe()
        self._over = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._answer, name="syncs", daemon=True)

    def command(self, argv: Sequence[str]) -> tuple[str, ...]:
        """The argv that runs `argv` so that we are asked."""
        return system.script(supervised.__file__, str(self._path), *argv)

    def delay(self, delay_ns: int) -> Callable[[], None]:
        """Each sync waits so long, also one that waits already; what is returned ends it.

        Those that wait go on at once then, or as soon as what lasts besides lets them.
        """
        with self._lock:
            self._delays.append(delay_ns)

        def end() -> None:
            with self._lock:
                self._delays.remove(delay_ns)
            os.write(self._wake_write, b"!")

        return end

    def held(self) -> tuple[int, int]:
        """How many have had to wait so far, and for how many nanoseconds together; RunFailed when it has broken."""
        if self._error is not None:
            raise RunFailed(f"syncs: nobody was there to be asked: {self._error!r}")
        with self._lock:
            now_ns = time.monotonic_ns()
            return self._held, self._held_ns + sum(now_ns - since_ns for since_ns, _, _ in self._waiting)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Whoever asks is answered for the block's time."""
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as self._door:
                self._door.bind(f"/proc/self/fd/{folder}/{_SOCKET}")
                self._door.listen()
                self._thread.start()
                try:
                    yield
                finally:
                    self._over = True
                    os.write(self._wake_write, b"!")
                    self._thread.join()
                    self._path.unlink(missing_ok=True)
                if self._error is not None:
                    raise RunFailed(f"syncs: nobody was there to be asked: {self._error!r}")
        finally:
            for descriptor in (folder, self._wake_read, self._wake_write):
                os.close(descriptor)

    def _answer(self) -> None:
        """Until it is over. Who asks a supervisor that has broken is refused (ENOSYS), and the run says why."""
        listeners: set[int] = set()
        try:
            self._serve(listeners)
        except Exception as error:  # noqa: BLE001 - nobody would see it in this thread
            self._error = error
        finally:
            for descriptor in listeners:
                os.close(descriptor)

    def _serve(self, listeners: set[int]) -> None:
        poll = select.poll()
        for descriptor in (self._door.fileno(), self._wake_read):
            poll.register(descriptor, select.POLLIN)
        while not self._over:
            left_ns = self._left_ns()
            for descriptor, event in poll.poll(None if left_ns is None else max(0, left_ns) // 10**6 + 1):
                if descriptor == self._wake_read:
                    os.read(self._wake_read, 4096)
                elif descriptor == self._door.fileno():
                    for new in self._taken():
                        listeners.add(new)
                        poll.register(new, select.POLLIN)
                elif event & select.POLLIN:
                    self._ask(descriptor)
                else:
                    # All that had this filter have ended.
                    poll.unregister(descriptor)
                    listeners.remove(descriptor)
                    self._forget(descriptor)
                    os.close(descriptor)
            self._let_go()

    def _taken(self) -> list[int]:
        """The listener of who comes in; nothing of one that died on its way."""
        connection, _ = self._door.accept()
        with connection, contextlib.suppress(ConnectionError):
            connection.settimeout(_HAND_OVER_S)
            _, found, _, _ = socket.recv_fds(connection, 1, 1)
            if found:
                connection.send(b"!")
            return found
        return []

    def _ask(self, listener: int) -> None:
        asked = bytearray(_NOTIF_BYTES)
        try:
            fcntl.ioctl(listener, _RECV, asked)
        except OSError as error:
            # Who asked has ended meanwhile.
            if error.errno in (errno.ENOENT, errno.EINTR):
                return
            raise
        (number,) = struct.unpack_from("=Q", asked)
        with self._lock:
            delay_ns = max(self._delays, default=0)
            if delay_ns:
                self._waiting.append((time.monotonic_ns(), listener, number))
                self._held += 1
        if not delay_ns:
            self._go_on(listener, number)

    def _left_ns(self) -> int | None:
        """How long the first one still waits; None: nobody waits."""
        with self._lock:
            if not self._waiting:
                return None
            return self._waiting[0][0] + max(self._delays, default=0) - time.monotonic_ns()

    def _let_go(self) -> None:
        """Those whose time is over go on, and all do when nobody lets them wait any more."""
        while (left_ns := self._left_ns()) is not None and left_ns <= 0:
            with self._lock:
                since_ns, listener, number = self._waiting.popleft()
                self._go_on(listener, number)
                self._held_ns += time.monotonic_ns() - since_ns

    def _forget(self, listener: int) -> None:
        with self._lock:
            self._waiting = deque(one for one in self._waiting if one[1] != listener)

    @staticmethod
    def _go_on(listener: int, number: int) -> None:
        # ENOENT: it has ended meanwhile.
        with contextlib.suppress(FileNotFoundError):
            fcntl.ioctl(listener, _SEND, bytearray(struct.pack("=QqiI", number, 0, 0, _CONTINUE)))


@contextmanager
def syncs(folder: Path) -> Iterator[Syncs]:
    """The syncs of the node that has that folder; nothing of it is left there."""
    made = Syncs(folder)
    with made.answering():
        yield made


def require() -> None:
    """MissingCapability where a sync cannot wait for us; nothing is changed."""
    if os.uname().machine not in supervised.MACHINES:
        raise MissingCapability(f"syncs: of a {os.uname().machine} we do not know the numbers of its system calls")
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    if not actions.exists() or "user_notif" not in actions.read_text(encoding="ascii").split():
        raise MissingCapability("syncs: this kernel has no seccomp that asks a supervisor (user_notif, Linux 5.0)")


def capability() -> Capability:
    """Whether a node's syncs can be slow."""
    return tried(Trial(name="syncs", attempt=_usable, remedy="Everything but the fault slow-fsync is as ever."))


def _usable() -> str:
    require()
    return "seccomp asks before each fsync, fdatasync, msync and syncfs"
