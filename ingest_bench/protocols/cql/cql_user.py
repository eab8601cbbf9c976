"""A Locust user on one connection over Cassandra's native protocol."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ingest_bench.idl import cql
from ingest_bench.protocols import pumped
from ingest_bench.protocols.cql.cql_frames import READY, VOID, Frames, known

if TYPE_CHECKING:
    from ingest_bench.documents.body import Body
    from ingest_bench.protocols.verdict import Response


class Batching(pumped.FramedUser):
    """Sends batches of prepared statements.

    Each connection begins with STARTUP, and then prepares them, of which the server may know all: that costs two
    round trips, which are a part of its first request.
    """

    abstract = True
    protocol = "cql"
    statements: tuple[str, ...] = ()

    def frames(self) -> Frames:
        """Of the requests that are under way."""
        self._frames = Frames()
        preparing = b"".join(cql.encode_prepare(statement, stream) for stream, statement in enumerate(self.statements))
        known_all = tuple(known(stream, statement) for stream, statement in enumerate(self.statements))
        self._greetings = ((cql.encode_startup(), (READY,)), (preparing, known_all))
        return self._frames

    def exchange(self, body: Body) -> Response:
        """The answer to one request; ConnectionBrokenError without one. `connection` knows what was sent, and when."""
        connection = self.connection
        connection.close_if_ended()
        if connection.is_open:
            return connection.exchange(b"", body.data, self.timeout_ns)
        until_ns, before_bytes = time.monotonic_ns() + self.timeout_ns, 0
        self._frames.greets = True
        try:
            for greeting, wanted in self._greetings:
                self._frames.wanted = wanted
                answer = connection.exchange(b"", greeting, until_ns - time.monotonic_ns())
                if answer.status != 200:
                    connection.close()
                    return answer
                before_bytes += connection.bytes_sent
            self._frames.wanted, self._frames.greets = (VOID,), False
            return connection.exchange(b"", body.data, until_ns - time.monotonic_ns())
        finally:
            connection.bytes_sent += before_bytes
