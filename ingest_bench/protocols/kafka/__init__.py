"""Kafka's own protocol, by librdkafka: each document is a record, and each record is acknowledged by itself.

kafka_user.py   a Locust user with a producer, and so a connection, of its own

Records are gathered into batches by the library, across its partitions; a request of ours is done once each of its
records is. Bytes are what the kernel counted on the producer's connections (`protocols.held`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from ingest_bench.documents.body import Body
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.model.load import BulkAction
from ingest_bench.model.values import HOUR, MIB, MS, Between
from ingest_bench.protocols.verdict import HTTP_ERROR, MESSAGE_BYTES, PARTIAL, REJECTED, Verdict, acknowledge_all

if TYPE_CHECKING:
    from ingest_bench.model.load import LoadOptions, ProtocolOptions
    from ingest_bench.protocols.kafka.kafka_user import KafkaUser
    from ingest_bench.protocols.verdict import Response

# Nothing was done with the record: rd_kafka_resp_err_t of librdkafka 2.16, as confluent_kafka writes its names.
AGAIN = frozenset(
    ("NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "NOT_ENOUGH_REPLICAS", "UNKNOWN_TOPIC_OR_PART", "_QUEUE_FULL")
)
# The same, for good. After any other error nobody knows whether the record was stored.
REFUSED = frozenset(
    (
        "MSG_SIZE_TOO_LARGE",
        "INVALID_MSG_SIZE",
        "RECORD_LIST_TOO_LARGE",
        "TOPIC_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "INVALID_REQUIRED_ACKS",
        "INVALID_RECORD",
        "POLICY_VIOLATION",
        "TOPIC_EXCEPTION",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaKeys:
    """The keys of the protocol `kafka`: what a producer of librdkafka is told, with its own defaults."""

    acks: Literal["0", "1", "all"] = "all"
    """Replicas that must have a record before it is acknowledged: none, the leader, all in-sync replicas."""
    linger_ns: Annotated[int, Between(0, HOUR // 4, "the library takes 15 minutes")] = 5 * MS
    """How long a record waits for others of its batch."""
    batch_size_bytes: Annotated[int, Between(1, 2**31 - 1, "the library takes 31 bits")] = 1_000_000
    """How much a batch holds at most."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    """How a batch is compressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kafka:
    """Records for one topic, which is called as the index. They have no ids of ours."""

    picks_nodes: ClassVar[bool] = True
    max_documents: ClassVar[None] = None
    overhead_bytes: ClassVar[int] = 0

    topic: str
    config: Mapping[str, str | float | bool]
    """What the library is told, but for where the server is."""

    @classmethod
    def from_wire(cls, wire: ProtocolOptions, index: str, options: LoadOptions) -> Kafka:
        """The protocol for a load with these options; SpecError for a key that it has not, or that cannot be."""
        keys = records.from_toml(KafkaKeys, wire.keys, wire.toml_key)
        if options.gzip:
            raise SpecError('load.gzip: kafka packs batches, not requests; write compression = "gzip"')
        if options.nodes != "all":
            raise SpecError(f'load.nodes: kafka sends to the leader of a partition, not to node {options.nodes}; "all"')
        if options.action != BulkAction():
            raise SpecError("load.action: kafka has no ids, indices, pipelines or refresh; these are of the bulk API")
        return cls(topic=index, config=_config(keys, options.timeout_ns))

    def for_file(self, path: Path, *, has_action_lines: bool, index: str | None, is_data_stream: bool = False) -> Kafka:
        """The same for the documents of a file; SpecError for ready bulk bodies."""
        del index, is_data_stream
        if has_action_lines:
            raise SpecError(f"{path}: these are ready bulk bodies, and this server takes documents alone (kafka)")
        return self

    def build_body(self, documents: Sequence[bytes], seed: int) -> Body:
        """These documents one behind the other."""
        del seed
        sizes = np.fromiter(map(len, documents), dtype=np.int64, count=len(documents))
        return Body(b"".join(documents), len(documents), sizes=sizes)

    def user_class(self) -> type[KafkaUser]:
        """A Locust user that sends them."""
        # Locust must not be loaded where bodies are made and nothing is sent.
        from ingest_bench.protocols.kafka.kafka_user import KafkaUser  # noqa: PLC0415

        return type("KafkaProducing", (KafkaUser,), {"abstract": True, "topic": self.topic, "config": self.config})

    def judge(self, answer: Response, body: Body, is_unsure: bool = False) -> Verdict:
        """What became of each record: the answer names those that were not acknowledged, each with its error."""
        del is_unsure
        if answer.status == 200:
            return acknowledge_all(body.documents)
        errors = {int(item): name for item, name in json.loads(answer.body).items()}
        kinds = Counter(f"{answer.status} {name}" for name in errors.values())
        acked = body.documents - len(errors)
        said = f"{answer.status}: {', '.join(f'{count} x {kind}' for kind, count in kinds.most_common(3))}"[
            :MESSAGE_BYTES
        ]
        again = tuple(item for item, name in errors.items() if name in AGAIN)
        if answer.status == 429:
            return Verdict(outcome=REJECTED, acked=acked, rejected_items=again, rejections=kinds, message=said)
        # With others in doubt, or refused, all of it ends here: one ticket has one end.
        outcome = PARTIAL if acked and answer.status < 500 else HTTP_ERROR
        in_doubt = sum(name not in AGAIN | REFUSED for name in errors.values())
        return Verdict(
            outcome=outcome, acked=acked, failed=len(errors), in_doubt=in_doubt, failures=kinds, message=said
        )


def combine_errors(errors: Mapping[int, str]) -> int:
    """What these errors of records mean together, as HTTP says it (RFC 9110, 15): 200, 429, 400 or 503."""
    names = set(errors.values())
    if not names:
        return 200
    if names <= AGAIN:
        return 429
    return 400 if names <= AGAIN | REFUSED else 503


def _config(keys: KafkaKeys, timeout_ns: int) -> dict[str, str | float | bool]:
    timeout_ms = max(1, timeout_ns // 10**6)
    return {
        "acks": keys.acks,
        "linger.ms": keys.linger_ns / 10**6,
        "batch.size": keys.batch_size_bytes,
        "compression.type": keys.compression,
        # A request of ours is tried again by our own rule, and counted.
        "message.send.max.retries": 0,
        "enable.idempotence": False,
        # To each broker from the start: of users that connect at the same time nobody knows whose connection is whose.
        "enable.sparse.connections": False,
        "message.timeout.ms": timeout_ms,
        "request.timeout.ms": timeout_ms,
        "message.max.bytes": 64 * MIB,
        # As much as the library takes: a body is given to it at once.
        "queue.buffering.max.messages": 10**7,
        "queue.buffering.max.kbytes": 2**21,
        "socket.nagle.disable": True,
        # What fails is said by the records that fail.
        "log_level": 0,
    }
