"""librdkafka's own mock of brokers, in a process of its own: it says where each listens, and ends with its stdin."""

from __future__ import annotations

import sys

from confluent_kafka import Producer

if __name__ == "__main__":
    holder = Producer({"test.mock.num.brokers": int(sys.argv[1]), "log_level": 0})
    for broker in holder.list_topics(timeout=10).brokers.values():
        sys.stdout.write(f"{broker.host} {broker.port}\n")
    sys.stdout.flush()
    sys.stdin.read()
