"""A Locust user on one connection over framed Thrift."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest_bench.protocols import pumped
from ingest_bench.protocols.thrift.thrift_frames import Frames

if TYPE_CHECKING:
    from ingest_bench.documents.body import Body
    from ingest_bench.protocols.verdict import Response


class Caller(pumped.FramedUser):
    """Each connection has to name a keyspace once. That call goes with the first one, and is a part of that request."""

    abstract = True
    protocol = "thrift"
    greeting = b""

    def frames(self) -> Frames:
        """Of the calls that are under way."""
        self._frames = Frames()
        return self._frames

    def exchange(self, body: Body) -> Response:
        """The answer to one request; ConnectionBrokenError without one. `connection` knows what was sent, and when."""
        self.connection.close_if_ended()
        if self.connection.is_open:
            return self.connection.exchange(b"", body.data, self.timeout_ns)
        self._frames.calls, self._frames.greets = ("set_keyspace", "batch_mutate"), True
        try:
            return self.connection.exchange(self.greeting, body.data, self.timeout_ns)
        finally:
            self._frames.calls, self._frames.greets = ("batch_mutate",), False
