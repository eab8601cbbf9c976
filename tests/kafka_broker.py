"""Process with librdkafka's mock brokers. It prints their addresses and ends when its stdin is closed."""

from __future__ import annotations

import sys

from confluent_kafka import Producer

if __name__ == "__main__":
    holder = Producer({"test.mock.num.brokers": int(sys.argv[1]), "log_level": 0})
    for broker in holder.list_topics(timeout=10).brokers.values():
        sys.stdout.write(f"{broker.host} {broker.port}\n")
    sys.stdout.flush()
    sys.stdin.read()
