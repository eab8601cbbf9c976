"""Messages of a worker that is not trusted: each invalid one is found at the socket."""

from __future__ import annotations

from typing import Any

import pytest

from ingest_bench.load.fleet.transfer import PIECE_BYTES, find_fault

REQUESTS: dict[str, Any] = {"outcomes": {}, "documents": {}, "bytes_sent": 0, "steps": {}, "response_ns": 0}
FIGURES: dict[str, Any] = {"bulks": REQUESTS, "queries": REQUESTS, "in_flight": 0, "oldest_ns": 0, "cpu_ns": {}}
WATCHED: dict[str, Any] = {
    "pid": 7,
    "began": "boot 5",
    "java": "17.0.15",
    "collector": "g1",
    "heap_bytes": None,
    "addresses": [{"host": "192.0.2.1", "port": 9200}],
    "host": {"swappiness": "60"},
    "unavailable": {"kernel-reads": "requires root"},
}


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("hello", {"machine": "m", "pid": 1, "version": "1"}),
        ("hello", {"machine": "m", "pid": 1, "version": "1", "watched": WATCHED}),
        ("observed", {"run": 1, "phase": "watching", "realtime_lead_ns": 5}),
        ("observed", {"run": 1, "phase": "stopped", "files": {"recording.jfr": 7}, "has_ended": True}),
        ("observed", {"run": 1, "phase": "failed", "error": "reason"}),
        ("status", {"phase": "prepared"}),
        ("status", {"phase": "measure", "documents": 5, "seconds_left": 0.5, "figures": FIGURES}),
        ("status", {"phase": "failed", "error": "reason"}),
        ("pong", {"asked_ns": 1, "monotonic_ns": 2}),
        ("piece", {"number": 0, "data": b"x" * PIECE_BYTES}),
        ("client_ready", "2.43"),
        ("heartbeat", {"state": "running", "current_cpu_usage": 0.0, "current_memory_usage": 1}),
        ("quit", None),
    ],
)
def test_messages_of_a_worker_are_valid(kind: str, data: Any) -> None:
    assert find_fault(kind, data) == ""


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("status", {}),
        ("status", None),
        ("status", {"phase": "ready", "worker": "w"}),
        ("status", {"phase": "fetched"}),
        ("status", {"phase": "ready", "documents": -1}),
        ("status", {"phase": "measure", "documents": 2**64 - 1}),
        ("status", {"phase": "measure", "seconds_left": float("inf")}),
        ("status", {"phase": "measure", "figures": FIGURES | {"bulks": REQUESTS | {"outcomes": {"unknown": 1}}}}),
        ("status", {"phase": "measure", "figures": FIGURES | {"bulks": REQUESTS | {"steps": {"1000000": 1}}}}),
        ("status", {"phase": "measure", "figures": FIGURES | {"queries": [{}, {}, 0, [], 0]}}),
        ("status", {"phase": "failed"}),
        ("status", {"phase": "ready", "error": "reason"}),
        ("status", {"phase": "failed", "error": ["a", "b"]}),
        ("hello", {"machine": 1}),
        ("hello", {"machine": "m", "pid": 1, "version": "1", "more": 1}),
        ("hello", {"machine": "m", "pid": 1, "version": "1", "watched": WATCHED | {"java": "x"}}),
        ("hello", {"machine": "m", "pid": 1, "version": "1", "watched": WATCHED | {"host": {"thp": "a\nb"}}}),
        ("hello", {"machine": "m", "pid": 1, "version": "1", "watched": WATCHED | {"pid": 0}}),
        ("observed", {"run": 1, "phase": "stopped", "files": {"../run.json": 7}}),
        ("observed", {"run": 1, "phase": "stopped", "files": {".hidden": 7}}),
        ("observed", {"run": 1, "phase": "stopped", "files": {"gc.log": -1}}),
        ("observed", {"run": 1, "phase": "stopped", "files": {f"{number}": 0 for number in range(1001)}}),
        ("observed", {"run": 1, "phase": "failed"}),
        ("observed", {"run": 1, "phase": "measure"}),
        ("observed", {b"run": 1, "phase": "watching"}),
        ("observed", {"run": b"1", "phase": "watching"}),
        ("observed", object()),
        ("pong", {}),
        ("pong", {"asked_ns": 0, "monotonic_ns": 2**63 - 1}),
        ("piece", {"number": 0, "data": "text"}),
        ("piece", {"number": 0, "data": b"x" * (PIECE_BYTES + 1)}),
        ("piece", {"number": 0}),
        ("heartbeat", None),
        ("heartbeat", {"state": "missing", "current_cpu_usage": 0.0}),
        ("heartbeat", {"state": "ready", "current_cpu_usage": "all"}),
        ("quit", {}),
        ("stats", {"user_classes_count": {}}),
        ("locustfile", {"version": "2"}),
        ("client_ready", 5),
        ("client_ready", ""),
    ],
)
def test_a_message_that_no_worker_sends_has_a_fault_that_names_its_kind(kind: str, data: Any) -> None:
    fault = find_fault(kind, data)
    assert fault.startswith(f"a message {kind!r}: ") or fault == "a message of an unknown kind"


@pytest.mark.parametrize("kind", ["unknown", 7, None])
def test_an_unknown_kind_is_a_fault(kind: Any) -> None:
    assert find_fault(kind, {}) == "a message of an unknown kind"


def test_a_message_that_is_nested_too_deeply_is_a_fault() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    assert find_fault("pong", nested) == "a message 'pong': nested too deeply"
