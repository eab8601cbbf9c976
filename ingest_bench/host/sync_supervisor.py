"""Seccomp supervisor that can delay a node's fsync calls. Counterpart of `supervised.py`.

Without a delay, each call costs one round trip to this process. When this process is killed, so is the server.
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
from ingest_bench.host.cgroups import add_limit

_SOCKET = ".syncs"
# linux/seccomp.h: SECCOMP_IOCTL_NOTIF_RECV and _SEND, struct seccomp_notif and seccomp_notif_resp.
_RECV, _SEND = 0xC0502100, 0xC0182101
_NOTIF_BYTES, _CONTINUE = 80, 1
# A new process makes a few system calls between its connection and sending its listener.
_HAND_OVER_S = 10.0


class SyncSupervisor:
    """Delays the sync calls of a node. If several delays overlap, the longest applies."""

    def __init__(self, folder: Path) -> None:
        self._calls = self._waited_ns = 0
        self._path = folder / _SOCKET
        self._delays_ns: list[int] = []
        self._lock = threading.RLock()
        # Start of the wait, listener, notification id; the longest wait first.
        self._waiting: deque[tuple[int, int, int]] = deque()
        self._wake_read, self._wake_write = os.pipe()
        self._stopping = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="syncs", daemon=True)

    def wrap(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the argv that runs *argv* with its sync calls supervised."""
        return system.build_script_argv(supervised.__file__, str(self._path), *argv)

    def delay(self, delay_ns: int) -> Callable[[], None]:
        """Delay each sync call, also one that waits already; return the function that ends the delay.

        At the end, waiting calls continue at once, or when the longest remaining delay is over.
        """
        return add_limit(self._lock, self._delays_ns, delay_ns, self._wake)

    def delayed_calls(self) -> tuple[int, int]:
        """Return the number of delayed calls and the nanoseconds they waited; raise RunFailed if the thread failed."""
        self._raise_error()
        with self._lock:
            now_ns = time.monotonic_ns()
            return self._calls, self._waited_ns + sum(now_ns - since_ns for since_ns, _, _ in self._waiting)

    @contextmanager
    def serve(self) -> Iterator[SyncSupervisor]:
        """Answer sync calls for the block; leave nothing behind in the folder."""
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as self._socket:
                self._socket.bind(f"/proc/self/fd/{folder}/{_SOCKET}")
                self._socket.listen()
                self._thread.start()
                try:
                    yield self
                finally:
                    self._stopping = True
                    self._wake()
                    self._thread.join()
                    self._path.unlink(missing_ok=True)
                self._raise_error()
        finally:
            for descriptor in (folder, self._wake_read, self._wake_write):
                os.close(descriptor)

    def _wake(self) -> None:
        os.write(self._wake_write, b"!")

    def _raise_error(self) -> None:
        if self._error is not None:
            raise RunFailed(f"syncs: the supervisor of sync calls failed: {self._error!r}")

    def _run(self) -> None:
        """Answer until the end. After a failure the kernel refuses sync calls (ENOSYS), and the run says why."""
        listeners: set[int] = set()
        try:
            self._answer_calls(listeners)
        except Exception as error:  # noqa: BLE001 - `_raise_error` raises it in another thread
            self._error = error
        finally:
            for descriptor in listeners:
                os.close(descriptor)

    def _answer_calls(self, listeners: set[int]) -> None:
        poll = select.poll()
        for descriptor in (self._socket.fileno(), self._wake_read):
            poll.register(descriptor, select.POLLIN)
        while not self._stopping:
            left_ns = self._next_due_ns()
            for descriptor, event in poll.poll(None if left_ns is None else max(0, left_ns) // 10**6 + 1):
                if descriptor == self._wake_read:
                    os.read(self._wake_read, 4096)
                elif descriptor == self._socket.fileno():
                    for listener in self._accept_listener():
                        listeners.add(listener)
                        poll.register(listener, select.POLLIN)
                elif event & select.POLLIN:
                    self._receive_call(descriptor)
                else:
                    # All processes with this filter have exited.
                    poll.unregister(descriptor)
                    listeners.remove(descriptor)
                    with self._lock:
                        self._waiting = deque(call for call in self._waiting if call[1] != descriptor)
                    os.close(descriptor)
            self._continue_due_calls()

    def _accept_listener(self) -> list[int]:
        """Return the listener of a new process; empty if it died on the way."""
        connection, _ = self._socket.accept()
        with connection, contextlib.suppress(ConnectionError):
            connection.settimeout(_HAND_OVER_S)
            _, listeners, _, _ = socket.recv_fds(connection, 1, 1)
            if listeners:
                connection.send(b"!")
            return listeners
        return []

    def _receive_call(self, listener: int) -> None:
        notification = bytearray(_NOTIF_BYTES)
        try:
            fcntl.ioctl(listener, _RECV, notification)
        except OSError as error:
            # The calling thread has exited meanwhile.
            if error.errno in (errno.ENOENT, errno.EINTR):
                return
            raise
        (number,) = struct.unpack_from("=Q", notification)
        with self._lock:
            delay_ns = max(self._delays_ns, default=0)
            if delay_ns:
                self._waiting.append((time.monotonic_ns(), listener, number))
                self._calls += 1
        if not delay_ns:
            self._continue_call(listener, number)

    def _next_due_ns(self) -> int | None:
        """Return the nanoseconds until the first waiting call is due; None if no call waits."""
        with self._lock:
            if not self._waiting:
                return None
            return self._waiting[0][0] + max(self._delays_ns, default=0) - time.monotonic_ns()

    def _continue_due_calls(self) -> None:
        while (left_ns := self._next_due_ns()) is not None and left_ns <= 0:
            with self._lock:
                since_ns, listener, number = self._waiting.popleft()
                self._continue_call(listener, number)
                self._waited_ns += time.monotonic_ns() - since_ns

    @staticmethod
    def _continue_call(listener: int, number: int) -> None:
        # ENOENT: the calling thread has exited meanwhile.
        with contextlib.suppress(FileNotFoundError):
            fcntl.ioctl(listener, _SEND, bytearray(struct.pack("=QqiI", number, 0, 0, _CONTINUE)))


def require_sync_supervisor() -> str:
    """Return how sync calls are trapped here; MissingCapability if they cannot be. Nothing is changed."""
    if os.uname().machine not in supervised.MACHINES:
        raise MissingCapability(f"syncs: the system call numbers of {os.uname().machine} are not in the table")
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    if not actions.exists() or "user_notif" not in actions.read_text(encoding="ascii").split():
        raise MissingCapability("syncs: this kernel has no seccomp user notification (user_notif, Linux 5.0)")
    return "seccomp traps fsync, fdatasync, msync and syncfs"
