"""CQL over Cassandra's native protocol: each document is a row, many rows are an unlogged batch of a prepared INSERT.

Bodies are built ahead: only the keys of a batch's rows change, which are written in place. So sending a batch costs no
encoding, and a user has a connection of its own whose bytes are counted. The public library has neither: a row costs
26 us of CPU there in batches of 50, 206 us with 100 single rows in flight, and 453 us one by one (cassandra-driver
3.30.1 on libev, rows of 490 bytes).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ingest_bench.documents.body import DIGITS
from ingest_bench.protocols import cql_wire
from ingest_bench.protocols.cassandra import MAX_FRAME_BYTES, FrameReader, FrameSummary, RowProtocol
from ingest_bench.protocols.response import InvalidResponseError
from ingest_bench.protocols.thrift_wire import ServerError

if TYPE_CHECKING:
    from ingest_bench.documents.body import BodyTemplate

_KEY = b"0" * DIGITS
# Cassandra's errors by their meaning for a batch; any other one is a server error. A part of a batch may be under way
# when a replica of one of its rows is found to be missing (StorageProxy.mutate goes row by row).
_STATUS = {
    "ProtocolError": 400,
    "AuthenticationError": 401,
    "Unavailable": 504,
    "Overloaded": 503,
    "IsBootstrapping": 503,
    "WriteTimeout": 504,
    "SyntaxError": 400,
    "Unauthorized": 403,
    "Invalid": 400,
    "ConfigError": 400,
    "Unprepared": 503,
}
# The only overload error that is raised when rows are under way (StorageProxy.checkHintOverload).
_TOO_MANY_HINTS = "Too many in flight hints"


class ExpectedFrame(NamedTuple):
    """A successful response: its opcode, the beginning of its body, and the stream of the request."""

    opcode: int
    body_prefix: bytes = b""
    stream: int = 0

    def matches(self, response: cql_wire.CqlResponse) -> bool:
        """Return True if this response was expected."""
        is_same = (response.opcode, response.stream) == (self.opcode, self.stream)
        return is_same and response.body.startswith(self.body_prefix)


READY = ExpectedFrame(cql_wire.READY)
VOID = ExpectedFrame(cql_wire.RESULT, cql_wire.VOID.to_bytes(4, "big"))


def expect_prepared(stream: int, statement: str) -> ExpectedFrame:
    """Return the expected response to the preparation of a statement on a stream."""
    return ExpectedFrame(cql_wire.RESULT, cql_wire.prepared_prefix(statement), stream)


class CqlReader(FrameReader):
    """Reader of the responses to some requests of the native protocol, in any order."""

    encoding = "CQL"
    head_bytes = cql_wire.HEAD.size

    def frame_length(self, offset: int) -> int:
        """Return the length of a frame with its head."""
        length = cql_wire.frame_length(self.view, offset)
        if length > MAX_FRAME_BYTES:
            raise InvalidResponseError(f"a frame of {length} bytes instead of some dozens")
        return length

    def summarize(self, frames: list[bytes]) -> FrameSummary:
        """Return the first error, otherwise status 200."""
        expected = list(self.expected)
        for frame in frames:
            try:
                response = cql_wire.parse_response(frame)
            except ServerError as error:
                return _summarize_error(error)
            if response.opcode == cql_wire.AUTHENTICATE:
                message = b"Authenticate: the server requires a user and password, which are unsupported"
                return FrameSummary(401, message)
            match = next((candidate for candidate in expected if candidate.matches(response)), None)
            if match is None:
                raise InvalidResponseError(
                    f"unexpected response {response.body[:40]!r} (opcode {response.opcode}, stream {response.stream})"
                )
            expected.remove(match)
        return FrameSummary(200)


def _summarize_error(error: ServerError) -> FrameSummary:
    status = _STATUS.get(error.name, 500)
    if error.name == "Overloaded" and _TOO_MANY_HINTS in str(error):
        status = 504
    # A new connection prepares its statements again.
    return FrameSummary(status, str(error).encode(), close=error.name == "Unprepared")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cql(RowProtocol):
    """Protocol `cql`: rows for tables of Cassandra, in turn; one response for all. A row has a generated key."""

    protocol: ClassVar[str] = "cql"
    table: ClassVar[str] = "table"
    # The number of rows in a batch has 16 bits.
    max_rows: ClassVar[int] = 2**16 - 1
    reader_class: ClassVar[type[FrameReader]] = CqlReader
    expected: ClassVar[tuple[ExpectedFrame, ...]] = (VOID,)

    @property
    def statements(self) -> list[str]:
        """The INSERT of each table."""
        return [insert_statement(self.keyspace, table) for table in self.tables]

    @property
    def handshake(self) -> Sequence[tuple[bytes, Sequence[ExpectedFrame]]]:
        """STARTUP and the preparation of the statements, which the server may know already: two round trips."""
        statements = [*enumerate(self.statements)]
        prepare = b"".join(cql_wire.encode_prepare(statement, stream) for stream, statement in statements)
        prepared = [expect_prepared(stream, statement) for stream, statement in statements]
        return ((cql_wire.encode_startup(), (READY,)), (prepare, prepared))

    @property
    def overhead_bytes(self) -> int:
        """Most bytes that an item has in addition to its document: start and end of the batch."""
        return max(len(cql_wire.encode_batch(_row(statement, b""), 1)) for statement in self.statements)

    def build_body(self, documents: Sequence[bytes], seed: int) -> BodyTemplate:
        """Build a batch with gaps for the keys of its rows. The seed decides which ones reuse a key."""
        self.check_rows(len(documents))
        statements = self.statements
        rows = [*map(_row, itertools.cycle(statements), documents)]
        data = b"".join(rows)
        batch, end = cql_wire.encode_batch(data, len(rows)), cql_wire.BATCH_SUFFIX
        before = batch[: len(batch) - len(data) - len(end)]
        return self.build_template(before, rows, end, _row(statements[0], b"").index(_KEY), seed)


def insert_statement(keyspace: str, table: str) -> str:
    """Return the statement that writes a row: with its keyspace, so that its id is the same on all connections."""
    return f'INSERT INTO "{keyspace}"."{table}" (key, document) VALUES (?, ?)'  # noqa: S608 - two validated names


def _row(statement: str, document: bytes) -> bytes:
    return cql_wire.encode_row(statement, _KEY, document)
