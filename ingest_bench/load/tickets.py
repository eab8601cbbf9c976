"""When the next request is due. A ticket is a planned time; open and closed loop differ only in who drops it."""

from __future__ import annotations

import time
from typing import Protocol


class Tickets(Protocol):
    """What users wait on."""

    def open(self, start_ns: int, end_ns: int) -> None:
        """From `start_ns` on tickets are given, and none that is planned at `end_ns` or later."""

    def take(self) -> int:
        """The planned time of the caller's next request, once it is due; 0: there is none any more."""

    def close(self) -> None:
        """No more tickets: who waits gets 0."""


class ClosedLoop:
    """A user's ticket drops when its last request is finished: no queue, so no lock is needed."""

    def __init__(self) -> None:
        self.end_ns = 0

    def open(self, start_ns: int, end_ns: int) -> None:  # noqa: ARG002 - users are held until the start
        """Tickets until `end_ns`."""
        self.end_ns = end_ns

    def take(self) -> int:
        """Now, until the end."""
        now_ns = time.monotonic_ns()
        return now_ns if now_ns < self.end_ns else 0

    def close(self) -> None:
        """No more tickets."""
        self.end_ns = 0
