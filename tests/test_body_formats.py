"""The shipped custom targets: their bodies have the published form of each server, with every document in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers import WORKLOAD

from ingest_bench import targets
from ingest_bench.documents.body import Body, IdSequence
from ingest_bench.errors import SpecError
from ingest_bench.experiment import spec
from ingest_bench.model.load import LoadOptions, ProtocolOptions, TrackFile
from ingest_bench.protocols.protocol import Protocol, create_protocol

FOLDER = Path(__file__).parent.parent / "docs" / "custom-targets"
DOCUMENTS = [{"n": 1, "text": 'a "quoted" \\ line\nand ünïcödé'}, {}, {"nested": {"list": [None, 1.5]}}]
LINES = [rb'weather,location=us\ midwest temperature=82,note="a \"b\"" 1465839830100400200', rb"cpu value=1i"]

POINTS = TrackFile(path="points.txt", index="", is_text=True)

# A form: a type; a dictionary of keys, optional ones with a question mark; a list of items of one form; a tuple.
ANY_VALUE: dict[str, Any] = {"stringValue?": str, "boolValue?": bool, "intValue?": str, "doubleValue?": float}
ATTRIBUTES = [{"key": str, "value": ANY_VALUE}]
# opentelemetry-proto 1.9, collector/logs/v1/logs_service.proto and logs/v1/logs.proto; OTLP 1.9, "JSON Protobuf
# Encoding": keys in lowerCamelCase, enums as numbers, 64-bit numbers as text.
LOG_RECORD = {
    **dict.fromkeys(("timeUnixNano?", "observedTimeUnixNano?", "severityText?", "traceId?", "spanId?"), str),
    "severityNumber?": int,
    "body?": ANY_VALUE,
    "attributes?": ATTRIBUTES,
    "flags?": int,
    "eventName?": str,
}
SCOPE = {"name?": str, "version?": str, "attributes?": ATTRIBUTES}
OTLP = {"resourceLogs": [{"resource?": dict, "scopeLogs": [{"scope?": SCOPE, "logRecords": [LOG_RECORD]}]}]}
# Splunk, "Format events for HTTP Event Collector": metadata, and "event" as text or object.
HEC = {**dict.fromkeys(("host?", "source?", "sourcetype?", "index?"), str), "time?": float, "event": object}
# confluentinc/kafka-rest, api/v2/openapi.yaml (ProduceRequest) and api/v3/openapi.yaml (ProduceRequest).
KAFKA_V2 = {"records": [{"partition?": int, "key?": object, "value": object}]}
KAFKA_V3 = {"partition_id?": int, "key?": dict, "value": {"type?": str, "data": object}, "timestamp?": str}
# apache/pulsar, org.apache.pulsar.websocket.data: ProducerMessages and ProducerMessage.
PULSAR = {
    **dict.fromkeys(("keySchema?", "valueSchema?", "producerName?"), str),
    "schemaVersion?": int,
    "messages": [{"payload": str, "key?": str, "properties?": dict}],
}
# Grafana Loki, "HTTP API", POST /loki/api/v1/push: time in nanoseconds as text, and line.
LOKI = {"streams": [{"stream": dict, "values": [(str, str)]}]}
# apache/logging-flume, org.apache.flume.source.http.JSONHandler and org.apache.flume.event.JSONEvent.
FLUME = [{"headers": dict, "body": str}]


def check_form(value: Any, form: Any) -> None:
    """Fail unless a JSON value has a form."""
    if isinstance(form, dict):
        assert {key for key in form if not key.endswith("?")} <= value.keys() <= {key.rstrip("?") for key in form}
        for key, inner in value.items():
            check_form(inner, form.get(key) or form[f"{key}?"])
    elif isinstance(form, list):
        for item in value:
            check_form(item, form[0])
    elif isinstance(form, tuple):
        for item, inner in zip(value, form, strict=True):
            check_form(item, inner)
    else:
        assert isinstance(value, form)


def load(body: str, form: Any) -> Any:
    value = json.loads(body)
    check_form(value, form)
    return value


def read_otlp(body: str) -> list[Any]:
    ((scope,),) = (resource["scopeLogs"] for resource in load(body, OTLP)["resourceLogs"])
    return [json.loads(record["body"]["stringValue"]) for record in scope["logRecords"]]


def read_loki(body: str) -> list[Any]:
    (stream,) = load(body, LOKI)["streams"]
    assert all(re.fullmatch("[0-9]{19}", time) for time, _ in stream["values"])
    documents = [json.loads(line) for _, line in stream["values"]]
    assert [int(document.pop("number")) for document in documents] == [*range(len(documents))]
    return documents


READERS: dict[str, Callable[[str], list[Any]]] = {
    "otlp": read_otlp,
    "splunk-hec": lambda body: [load(line, HEC)["event"] for line in body.splitlines()],
    "kafka-rest-v2": lambda body: [record["value"] for record in load(body, KAFKA_V2)["records"]],
    "kafka-rest-v3": lambda body: [load(line, KAFKA_V3)["value"]["data"] for line in body.splitlines()],
    "pulsar": lambda body: [json.loads(message["payload"]) for message in load(body, PULSAR)["messages"]],
    "loki": read_loki,
    "flume": lambda body: [json.loads(event["body"]) for event in load(body, FLUME)],
}


def protocol_of(name: str, **options: Any) -> Protocol:
    target = spec.build_target({"file": str(FOLDER / f"{name}.toml")}, "target")
    return create_protocol(targets.resolve(target).wire(target, WORKLOAD), "i", LoadOptions(**options))


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("gzip", [False, True])
def test_body_has_the_published_form_and_every_document(name: str, gzip: bool) -> None:
    documents = [json.dumps(document, ensure_ascii=False).encode() for document in DOCUMENTS]
    body = protocol_of(name, gzip=gzip).build_body(documents, 1).fill(IdSequence(0, 1, "none", 1))
    assert READERS[name](bytes(body.text).decode()) == DOCUMENTS


def build_text_body(protocol: Protocol) -> bytes:
    body = protocol.for_file(POINTS).build_body(LINES, 1)
    assert isinstance(body, Body)
    return bytes(body.data)


def test_lines_of_text_are_sent_as_they_are_or_escaped() -> None:
    assert build_text_body(protocol_of("influx")) == b"\n".join((*LINES, b""))
    events = load(build_text_body(protocol_of("flume")).decode(), FLUME)
    assert [event["body"].encode() for event in events] == LINES


def test_lines_of_text_are_refused_where_json_is_required() -> None:
    with pytest.raises(SpecError, match=r'points\.txt: lines of text are not JSON\. Use format = "lines", or as_text'):
        protocol_of("kafka-rest-v2").for_file(POINTS)
    with pytest.raises(SpecError, match=r'points\.txt: lines of text have no fields, .*"sequence"'):
        protocol_of("loki").for_file(POINTS)
    with pytest.raises(SpecError, match=r"points\.txt: lines of text cannot be sent with bulk"):
        create_protocol(ProtocolOptions(keys={"path": "/_bulk"}), "i", LoadOptions()).for_file(POINTS)
