"""How documents go over the wire, and what an answer means: one file each, and one line in PROTOCOLS.

    bulk.py        action lines and documents, an answer for each (Elasticsearch, OpenSearch, the sink)
    json_array.py  documents alone over HTTP, an answer for all: an array, lines, or one a request
    kafka/         records for a topic by librdkafka, an answer for each   held.py   bytes of a library's connections
    queries.py     queries beside the indexing              rows.py        what CQL and Thrift have in common
    lookups.py     where a name leads, asked anew
    verdict.py     an answer, and what became of each document
    way.py         where the server is, and what all connections did        deadlines.py   requests that take too long
    channel.py     a plain socket to one of the addresses       connection.py  the exchange on it
    pumped.py      one that the event loop itself sends on      incoming.py    an answer as it comes
    http1/         HTTP/1.1: framing, TLS, and the Locust user on such a connection
    cql/           Cassandra's native protocol: rows of several tables in one batch
    thrift/        Thrift, as Cassandra 0.7 speaks it: rows for several column families in one call

A body goes one way: `documents.source` groups documents, `Protocol.body` makes a body of them, a user of `load.users`
sends it through `Protocol.user`, and `Protocol.judge` says what became of it.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from pathlib import Path

from ingest_bench.errors import SpecError
from ingest_bench.inputs.records import suggest
from ingest_bench.protocols.bulk import Bulk
from ingest_bench.protocols.cql import Cql
from ingest_bench.protocols.json_array import JsonArray
from ingest_bench.protocols.kafka import Kafka
from ingest_bench.protocols.thrift import Thrift

if typing.TYPE_CHECKING:
    from ingest_bench.documents.body import Body, BodyTemplate
    from ingest_bench.model.load import LoadOptions, ProtocolOptions
    from ingest_bench.protocols.verdict import Response, Verdict
    from ingest_bench.protocols.way import Address, Upstream


class UserConnection(typing.Protocol):
    """What a sample takes from the connection of a user."""

    sent_ns: int
    """When the first byte of the last request was given to the kernel; 0: never."""
    written_ns: int
    """When the kernel had taken the last byte of it; 0: never, or nobody knows."""
    first_byte_ns: int
    """When the first byte of the answer to it had come; 0: never."""
    done_ns: int
    """When the last byte of the last answer had come."""
    bytes_sent: int
    """How much of the last request the kernel took."""
    local_port: int
    """Of the connection on which the last request went; 0: there was none."""
    last_address: Address
    """Where the last request went, or should have."""

    @property
    def is_open(self) -> bool:
        """Whether the next request goes on a connection that is there already."""

    def note_refused(self) -> None:
        """The last request was, and the connection is open."""


class ProtocolUser(typing.Protocol):
    """A Locust user on one connection, which `load.users` sends with (over HTTP: `http1.user.Poster`)."""

    upstream: Upstream
    timeout_ns: int
    pumps: bool
    """Whether it can `pump`, as `load.users.pump.Pumping` says."""

    @property
    def connection(self) -> UserConnection:
        """The one that `on_start` made."""

    def on_start(self) -> None:
        """A connection of its own."""

    def exchange(self, body: Body) -> Response:
        """The answer to one request; ConnectionBrokenError without one."""

    def on_stop(self) -> None:
        """No connection."""


class Protocol(typing.Protocol):
    """How documents go over the wire, and what an answer means. Nothing else in the house knows a wire format."""

    @property
    def overhead_bytes(self) -> int:
        """What an item has at most beside its document."""

    @property
    def picks_nodes(self) -> bool:
        """Whether a library picks the node for each document, so that of several none is a request's own."""

    @property
    def max_documents(self) -> int | None:
        """How many documents go into one request at most; None: as many as are asked for."""

    def build_body(self, documents: Sequence[bytes], seed: int) -> Body | BodyTemplate:
        """These documents as a body, or with gaps where a user writes ids. The seed says which ids are old."""

    def for_file(
        self, path: Path, *, has_action_lines: bool, index: str | None, is_data_stream: bool = False
    ) -> Protocol:
        """The same for the documents of a file; SpecError for a file that cannot go this way.

        `ready`: they are items as a bulk has them, action lines and all. `index`: each item says that it goes there.
        """

    def user_class(self) -> type[ProtocolUser]:
        """A Locust user on one connection."""

    def judge(self, answer: Response, body: Body, is_unsure: bool = False) -> Verdict:
        """What became of each item: acknowledged, to be sent again, or failed and why.

        `is_unsure`: an attempt before this one may have been carried out, without that we heard of it.
        """


class ProtocolKind(typing.Protocol):
    """A protocol before its keys are known."""

    @classmethod
    def from_wire(cls, wire: ProtocolOptions, index: str, options: LoadOptions) -> Protocol:
        """Made of the keys that a target gives it, the name of what documents go into, and what the user chose."""


PROTOCOLS: Mapping[str, type[ProtocolKind]] = {
    "bulk": Bulk,
    "json-array": JsonArray,
    "cql": Cql,
    "thrift": Thrift,
    "kafka": Kafka,
}


def create_protocol(wire: ProtocolOptions, index: str, options: LoadOptions) -> Protocol:
    """The protocol that is spoken there; SpecError for one that is not known, and for its keys."""
    if wire.protocol not in PROTOCOLS:
        raise SpecError(f'{wire.toml_key}: there is no protocol "{wire.protocol}"; {suggest(wire.protocol, PROTOCOLS)}')
    return PROTOCOLS[wire.protocol].from_wire(wire, index, options)
