"""Protocol `opensearch-grpc`: messages, results of items, errors of calls, and runs against a real OpenSearch."""

from __future__ import annotations

import dataclasses
import itertools
import ssl
from pathlib import Path
from typing import Any

import certificates
import grpc_server as grpc
import pytest
from bulk_server import answer
from grpc_server import INVALID_ARGUMENT, OK, RESOURCE_EXHAUSTED, encode_error, encode_items, grpc_server, pb
from http2_server import http2_server
from test_load_process import loaded, outcomes, plan_for
from test_run import carried_out, number
from test_users import Clock, documents, outcome, send, started

from ingest_bench import targets
from ingest_bench.documents.body import Body, BodyTemplate, IdSequence
from ingest_bench.errors import SpecError
from ingest_bench.model.load import BulkAction, LoadOptions, ProtocolOptions, TrackFile
from ingest_bench.model.samples import Sample
from ingest_bench.model.target import Endpoint, ServerAddress, TargetOptions, Tls
from ingest_bench.protocols.opensearch_grpc import OpenSearchGrpc
from ingest_bench.targets.elastic import node_options
from ingest_bench.targets.elastic.versions import OPENSEARCH

DOCUMENTS = [b'{"n":%d}' % number for number in range(4)]


def protocol(**action: Any) -> OpenSearchGrpc:
    options = LoadOptions(action=BulkAction(**action))
    return OpenSearchGrpc.from_options(ProtocolOptions(protocol="opensearch-grpc"), "taxis", options)


def parse(speaks: OpenSearchGrpc, body: Body | BodyTemplate) -> Any:
    """Return a request as the server decodes it."""
    assert isinstance(body, Body)
    return pb.BulkRequest.FromString(speaks.encode_fields() + bytes(body.data))


def test_items_have_the_options_of_the_bulk_api() -> None:
    speaks = protocol(indices=2, pipeline="p", refresh="wait_for", operation="create")
    request = parse(speaks, speaks.build_body(DOCUMENTS, 1))
    assert (request.HasField("index"), request.pipeline, request.refresh) == (False, "p", pb.REFRESH_WAIT_FOR)
    items = [(item.operation_container.create.x_index, item.object) for item in request.bulk_request_body]
    assert items == [(f"taxis-{number % 2}", document) for number, document in enumerate(DOCUMENTS)]
    simple = protocol()
    request = parse(simple, simple.build_body(DOCUMENTS, 1))
    assert (request.index, request.HasField("pipeline"), request.HasField("refresh")) == ("taxis", False, False)


@pytest.mark.parametrize("on_conflict", ["index", "update"])
def test_ids_are_written_into_each_item(on_conflict: str) -> None:
    # The name of the index looks like a gap.
    speaks = protocol(conflicts="sequential", conflict_probability_ppm=10**6, on_conflict=on_conflict, indices=2)
    speaks = dataclasses.replace(speaks, indices=("0000000000", "b"))
    body = speaks.build_body(DOCUMENTS, 1).fill(IdSequence(3, 96, "sequential", 1))
    items = parse(speaks, body).bulk_request_body
    containers = [item.operation_container for item in items]
    operations = [getattr(container, container.WhichOneof("operation_container")) for container in containers]
    assert [operation.x_id for operation in operations] == ["0000000003"] * 4
    assert [operation.x_index for operation in operations] == ["0000000000", "b"] * 2
    kinds = [container.WhichOneof("operation_container") for container in containers]
    assert kinds == ["index", *[on_conflict] * 3]
    assert [item.object or item.update_action.doc for item in items] == DOCUMENTS


def test_data_stream_is_created_and_text_is_refused() -> None:
    stream = protocol().for_file(TrackFile(path="f", index="logs", is_data_stream=True))
    (item,) = parse(stream, stream.build_body(DOCUMENTS[:1], 1)).bulk_request_body
    assert item.operation_container.create.x_index == "logs"
    with pytest.raises(SpecError, match="lines of text cannot be sent"):
        protocol().for_file(TrackFile(path="f", index="", is_text=True))


def sent_to(address: Endpoint, **own: Any) -> tuple[Sample, Any]:
    """Send four documents and return the sample and the state of the worker."""
    speaks = own.pop("protocol", protocol())
    user, kept = started(address, protocol=speaks, **own)
    body = speaks.build_body(DOCUMENTS, 1)
    send(user, body if isinstance(body, Body) else body.fill(IdSequence(0, 1, "none", 1)))
    user.upstream.deadlines.close()
    return kept.only, user.state


def test_each_item_has_its_result_and_one_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    first = [OK, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, INVALID_ARGUMENT]
    with grpc_server(lambda _, number: encode_items([first, [OK]][number - 1])) as server:
        server.keep_bodies = True
        sample, state = sent_to(server.address)
    assert (outcome(sample), documents(sample), sample.attempts) == ("partial", (4, 2, 2), 2)
    assert sample.bytes_sent == server.bytes_read
    assert [grpc.parse_documents(body) for body in server.bodies] == [[{"n": n} for n in range(4)], [{"n": 2}]]
    assert (dict(state.item_failures), state.item_reasons["400 kind"]) == ({"400 kind": 2}, "why: because")
    assert clock.waited_s == [0.05]


def test_documents_with_ids_count_what_the_index_gained() -> None:
    with grpc_server(lambda _, __: encode_items([OK] * 4, result="updated")) as server:
        sample, state = sent_to(server.address, protocol=protocol(conflicts="random"))
    assert (documents(sample), state.documents_repeated) == ((4, 4, 0), 4)


def test_too_large_message_is_not_retried_like_a_full_queue() -> None:
    text = "gRPC message exceeds maximum size 10485760: 20971520"
    with grpc_server(lambda _, __: encode_error(RESOURCE_EXHAUSTED, text)) as server:
        sample, state = sent_to(server.address)
    assert (outcome(sample), documents(sample), sample.attempts, sample.status) == ("http-error", (4, 0, 4), 1, 413)
    assert "grpc.netty.max_msg_size" in state.errors()[0]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (encode_items([OK] * 3), "the response has 3 items, the bulk had 4 documents"),
        (grpc.encode_message(b"\x09"), "not the response to a bulk"),
        (bytes((OK,)) + b"\1\0\0\0\0", "5 bytes are not one uncompressed message"),
        (bytes((OK,)), "0 bytes are not one uncompressed message"),
    ],
)
def test_invalid_result_is_no_acknowledgement(reply: bytes, message: str) -> None:
    with grpc_server(lambda _, __: reply) as server:
        sample, state = sent_to(server.address)
    assert (outcome(sample), documents(sample)) == ("invalid-response", (4, 0, 0))
    assert message in state.errors()[0]


def test_port_of_rest_is_named_as_the_mistake() -> None:
    with http2_server(lambda _, __: answer(b'{"error":"no handler"}', "400 Bad Request")) as server:
        sample, state = sent_to(server.address)
    assert outcome(sample) == "invalid-response"
    assert 'HTTP without gRPC, status 400: \'{"error":"no handler"}\'. Send to the port of gRPC.' in state.errors()[0]


def test_text_of_an_error_is_decoded() -> None:
    with grpc_server(lambda _, __: encode_error(13, "größer: 100%")) as server:
        sample, state = sent_to(server.address)
    assert (outcome(sample), sample.status, documents(sample)) == ("http-error", 500, (4, 0, 0))
    assert "500: größer: 100%" in state.errors()[0]


@pytest.mark.processes
def test_load_over_tls_has_exact_times_and_bytes(tmp_path: Path) -> None:
    certs = certificates.create_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certs.server)
    context.set_alpn_protocols(["h2"])
    reply = lambda message, _: encode_items([OK] * len(grpc.parse_documents(message)))  # noqa: E731
    with grpc_server(reply, tls=context) as server:
        plan = plan_for(server.address, tmp_path)
        secured = dataclasses.replace(plan.server, tls=Tls(name="localhost", ca_pem=certs.ca.read_text()))
        report, samples, _ = loaded(
            dataclasses.replace(plan, server=secured, wire=ProtocolOptions(protocol="opensearch-grpc"))
        )
    assert outcomes(samples) == {"ok"}
    assert report.bytes_written == server.bytes_read == samples["bytes_sent"].sum()
    assert len(samples) == server.requests > 0
    for earlier, later in itertools.pairwise(("sent_ns", "written_ns", "first_byte_ns", "done_ns")):
        assert (samples[earlier] <= samples[later]).all()


def test_load_goes_to_the_port_of_grpc_and_the_api_stays() -> None:
    options = TargetOptions(version="3.8.0", protocol="opensearch-grpc")
    other = ServerAddress(endpoint=Endpoint("b", 9200))
    address = OPENSEARCH.load_address(options, ServerAddress(endpoint=Endpoint("a", 9200), other_addresses=(other,)))
    assert [str(address), *map(str, address.other_addresses)] == ["a:9400", "b:9400"]
    settings = node_options.server_settings(OPENSEARCH.version(options), options)
    assert settings["aux.transport.types"] == "transport-grpc"
    plain = dataclasses.replace(options, protocol=None)
    assert "aux.transport.types" not in node_options.server_settings(OPENSEARCH.version(plain), plain)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "opensearch 2.19.6 has no gRPC; opensearch 3.8.0 has"),
        ({"name": "kafka"}, 'kafka does not take "opensearch-grpc": not for this server; remove it'),
        ({"version": "3.8.0", "allocator": "pooled"}, r"target\.allocator: gRPC has Netty and buffers of its own"),
        ({"protocol": "cql"}, 'opensearch does not take "cql": one of bulk, opensearch-grpc'),
    ],
)
def test_server_without_the_protocol_is_named(options: dict[str, Any], message: str) -> None:
    chosen = TargetOptions(**{"protocol": "opensearch-grpc"} | options)
    with pytest.raises(SpecError, match=message):
        targets.resolve(chosen).requirements(chosen)


RUN = """
probes = ["reads", "gc"]
[target]
name = "opensearch"
version = "3.8.0"
protocol = "opensearch-grpc"
heap = "512m"
[load]
workload = "nyc_taxis"
users = 2
bulk_documents = 200
warm_up = "1s"
{more}
"""


@pytest.mark.opensearch
@pytest.mark.netns
def test_run_counts_every_document_and_byte(tmp_path: Path) -> None:
    more = '[load.action]\nconflicts = "random"\non_conflict = "update"\n[network]\nprofile = "ethernet"\n'
    _, (run,) = carried_out(tmp_path, RUN.format(more="measure_documents = 2000\n" + more))
    assert run.state == "measured", run.reason
    assert number(run, "documents_acked") - number(run, "documents_repeated") == number(run, "documents_counted") > 200
    assert number(run, "documents_repeated") > 0
    assert number(run, "bytes_read") == number(run, "bytes_sent")
    assert number(run, "requests_failed") == 0
    # Of the threads of gRPC: Netty's buffers and protobuf's messages are more than the documents.
    assert number(run, "allocated_network_bytes_per_gb") > 1e9


@pytest.mark.nightly
@pytest.mark.opensearch
@pytest.mark.netns
def test_killed_node_returns_with_all_acknowledged_documents_of_grpc(tmp_path: Path) -> None:
    fault = '[[fault]]\nkind = "kill"\nat = "5s"\nfor = "1s"\n'
    text = RUN.format(more='arrivals = "25/s"\nmeasure = "60s"\n' + fault).replace(
        'probes = ["reads", "gc"]', "probes = []"
    )
    _, (run,) = carried_out(tmp_path, text)
    assert run.state == "measured", run.reason
    acked, failed = number(run, "documents_acked"), number(run, "requests_failed")
    assert failed >= 1
    assert acked <= number(run, "documents_counted") <= acked + 200 * failed
    assert number(run, "lost_documents") == 0


@pytest.mark.nightly
@pytest.mark.opensearch
@pytest.mark.netns
def test_documents_that_the_mapping_rejects_fail_one_by_one(tmp_path: Path) -> None:
    lines = [f'{{"n":{number}}}' if number % 10 else '{"n":"x"}' for number in range(1000)]
    (tmp_path / "d.ndjson").write_text("\n".join(lines) + "\n")
    (tmp_path / "mapping.json").write_text('{"properties":{"n":{"type":"long"}}}')
    more = f'documents = "{tmp_path}/d.ndjson"\nmapping = "{tmp_path}/mapping.json"\n'
    results, (run,) = carried_out(tmp_path, RUN.format(more="measure_documents = 2000\n" + more))
    assert run.state == "measured", run.reason
    assert number(run, "documents_counted") == number(run, "documents_acked") > 900
    report = results.run_folder(results.plan.runs[0]).read_load_report()
    assert report is not None
    ((kind, failed),) = report.item_failures.items()
    assert kind == "400 mapper_parsing_exception"
    assert failed == pytest.approx(number(run, "documents_acked") / 9, rel=0.1)
    assert report.item_reasons[kind].startswith("failed to parse field [n] of type [long]")


@pytest.mark.nightly
@pytest.mark.opensearch
@pytest.mark.netns
def test_failed_run_names_the_limit_that_all_bulks_exceed(tmp_path: Path) -> None:
    text = RUN.format(more='measure = "3s"').replace("bulk_documents = 200", "bulk_documents = 30000")
    _, (run,) = carried_out(tmp_path, text)
    assert run.state == "failed"
    assert "413: the bulk is larger than the server accepts (grpc.netty.max_msg_size" in run.reason
