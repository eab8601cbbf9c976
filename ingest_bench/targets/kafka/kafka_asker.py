"""The child process that asks a broker of Kafka inside a namespace: one question on stdin, its answer on stdout.

Both are JSON; an answer with "error" or "unanswered" is none. Started by its path, so that it imports little.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

# The library has the last two there without saying that it exports them.
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]

_UNANSWERED = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)  # noqa: SLF001 - their names
# A topic is not known to each broker at the moment at which it was made.
_AGAIN_S = 0.05


class Broker:
    """A broker, and how long it may take."""

    def __init__(self, host: str, port: int, limit_s: float) -> None:
        self.config: dict[str, Any] = {
            "bootstrap.servers": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            "log_level": 0,
        }
        self.admin = AdminClient(self.config)
        self._place = (host, port)
        self._until = time.monotonic() + limit_s

    def number(self, known: Any) -> str:
        """Its id in the cluster. Who answered has none to the library before it knows the others."""
        found = (one.id for one in known.brokers.values() if (one.host, one.port) == self._place)
        return str(next(found, known.orig_broker_id))

    @property
    def left_s(self) -> float:
        """How long it may still take."""
        return max(0.001, self._until - time.monotonic())


def main(host: str, port: int, limit_s: float) -> None:
    """Answer the question on stdin."""
    question = json.loads(sys.stdin.read())
    try:
        answer = QUESTIONS[question["ask"]](Broker(host, port, limit_s), question)
    except KafkaException as error:
        said = error.args[0]
        answer = {"unanswered" if said.code() in _UNANSWERED else "error": f"{said.name()}: {said.str()}"}
    sys.stdout.write(json.dumps(answer))


def describe(broker: Broker, _question: Mapping[str, Any]) -> dict[str, Any]:
    """What it knows of the cluster, and its own settings."""
    known = broker.admin.list_topics(timeout=broker.left_s)
    resource = ConfigResource(ConfigResource.Type.BROKER, broker.number(known))
    asked = broker.admin.describe_configs([resource], request_timeout=broker.left_s)
    settings = {name: entry.value for name, entry in asked[resource].result(broker.left_s).items()}
    return {"cluster": known.cluster_id, "brokers": sorted(known.brokers), "settings": settings}


def create(broker: Broker, question: Mapping[str, Any]) -> dict[str, Any]:
    """A topic, once all its partitions have a leader. Partitions and replicas are the server's defaults."""
    topic = question["topic"]
    made = broker.admin.create_topics([NewTopic(topic, num_partitions=-1, replication_factor=-1)])
    made[topic].result(broker.left_s)
    while broker.left_s > _AGAIN_S:
        known = broker.admin.list_topics(topic, timeout=broker.left_s).topics[topic]
        if known.error is None and known.partitions and all(one.leader >= 0 for one in known.partitions.values()):
            return {}
        time.sleep(_AGAIN_S)
    return {"error": f"topic {topic}: not each partition has a leader"}


def count(broker: Broker, question: Mapping[str, Any]) -> dict[str, Any]:
    """How many records these topics have: without transactions and compaction each offset is one."""
    consumer = Consumer({**broker.config, "group.id": "ingest-bench"})
    records = 0
    for topic in question["topics"]:
        known = broker.admin.list_topics(topic, timeout=broker.left_s).topics[topic]
        if known.error is not None or not known.partitions:
            return {"error": f"topic {topic}: its partitions are not known ({known.error or 'there are none'})"}
        for partition in known.partitions:
            place = TopicPartition(topic, partition)
            first, last = consumer.get_watermark_offsets(place, timeout=broker.left_s)
            records += last - first
    consumer.close()
    return {"records": records}


QUESTIONS = {"describe": describe, "create": create, "count": count}

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
