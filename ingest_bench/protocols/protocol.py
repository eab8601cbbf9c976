"""Table of the wire protocols, `PROTOCOLS`. A new protocol is one file and one line here.

    bulk.py        action lines and documents, a result for each (Elasticsearch, OpenSearch, sink); queries
    json_array.py  documents over HTTP, one status for all: an array, lines, or one per request
    opensearch_grpc.py  the bulk API over gRPC, by the user in grpc_user.py
    frames.py      documents over TCP, each behind its length
    kafka.py       records for a topic, sent by librdkafka (kafka_user.py), a result for each
    cql.py         Cassandra's native protocol         thrift.py     Thrift as Cassandra 0.7 speaks it
    cassandra.py   the common part of both             *_wire.py     their encoding
    response.py    response, verdict, errors           upstream.py   server addresses, traffic counters, deadlines
    connection.py  one socket, one exchange at a time  tls.py        the same over TLS
    http1.py       HTTP/1.1 framing                    http2.py      HTTP/2: requests as streams
    users.py       Locust users on such a connection

`documents.source` groups documents, `Protocol.build_body` builds a body of them, a user of `load.users` sends it
through `Protocol.user_class`, and `Protocol.judge` decides the result of each document.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping

from ingest_bench.documents.source import BodyBuilder
from ingest_bench.errors import SpecError
from ingest_bench.inputs.names import check_name
from ingest_bench.model.load import HTTP_PROTOCOLS
from ingest_bench.protocols.bulk import Bulk
from ingest_bench.protocols.cql import Cql
from ingest_bench.protocols.frames import Frames
from ingest_bench.protocols.json_array import JsonArray
from ingest_bench.protocols.kafka import Kafka
from ingest_bench.protocols.opensearch_grpc import OpenSearchGrpc
from ingest_bench.protocols.thrift import Thrift

if typing.TYPE_CHECKING:
    from ingest_bench.documents.body import Body
    from ingest_bench.model.load import LoadOptions, ProtocolOptions, TrackFile
    from ingest_bench.protocols.response import Response, Verdict
    from ingest_bench.protocols.users import ProtocolUser


class Protocol(BodyBuilder, typing.Protocol):
    """Encoding of documents and meaning of responses. Only this package knows wire formats."""

    @property
    def picks_nodes(self) -> bool:
        """True if a library picks the node for each document, so that a request has no single node."""

    def for_file(self, file: TrackFile) -> Protocol:
        """Return the protocol for the documents of a file; SpecError if it cannot send that file."""

    def user_class(self) -> type[ProtocolUser]:
        """Return a Locust user class with one connection."""

    def judge(self, response: Response, body: Body, may_be_stored: bool = False) -> Verdict:
        """Decide for each item: acknowledged, to be retried, or failed and why.

        `may_be_stored`: an earlier attempt may have stored some items, though it had no response.
        """


PROTOCOLS: Mapping[str, Callable[[ProtocolOptions, str, LoadOptions], Protocol]] = {
    "bulk": Bulk.from_options,
    "json-array": JsonArray.from_options,
    "frames": Frames.from_options,
    "cql": Cql.from_options,
    "thrift": Thrift.from_options,
    "kafka": Kafka.from_options,
    "opensearch-grpc": OpenSearchGrpc.from_options,
}
"""Creates a protocol from the target's keys, the name of the index (topic, table) and the load options."""


def create_protocol(protocol_options: ProtocolOptions, index: str, options: LoadOptions) -> Protocol:
    """Create the protocol of a target; SpecError for an unknown one or an invalid key."""
    name = protocol_options.protocol
    check_name(name, PROTOCOLS, f'{protocol_options.toml_key}: unknown protocol "{name}"')
    if options.http_version == "2" and name not in HTTP_PROTOCOLS:
        raise SpecError(f"load.http_version: {name} is not HTTP. Remove the key.")
    if options.http_version == "1.1" and (options.http2_stream_window_bytes or options.http2_connection_window_bytes):
        raise SpecError('load.http2_stream_window and load.http2_connection_window require load.http_version = "2"')
    return PROTOCOLS[name](protocol_options, index, options)
