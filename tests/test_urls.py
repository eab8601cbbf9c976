"""The URL of a server that runs already: what it may be, what goes with it, and who we are to it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import certificates
import pytest
from example_tracks import write_track
from running import canned_http

from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.experiment import catalog, spec
from ingest_bench.inputs import credentials, records, urls
from ingest_bench.lab import campaign, planning
from ingest_bench.lab.planning import Procedure, Requests
from ingest_bench.lab.runner import RunOptions
from ingest_bench.lab.server import borrowed
from ingest_bench.lab.server.borrowed import ServerObject
from ingest_bench.model.experiment import Plan
from ingest_bench.model.target import Endpoint, ServerAddress, TargetOptions
from ingest_bench.targets import detect
from ingest_bench.targets.elastic.node import ElasticTarget
from ingest_bench.targets.elastic.versions import ELASTICSEARCH as ELASTICSEARCH_NODE
from ingest_bench.targets.http import Http, Response

URL = "https://search.example:9243"
OPENSEARCH = {"name": "n1", "version": {"distribution": "opensearch", "number": "2.11.0"}}
ELASTICSEARCH = {"name": "n1", "version": {"number": "7.10.2", "build_flavor": "default"}}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("http://127.0.0.1:9200", ("http", "127.0.0.1", 9200, "")),
        ("https://search.example/", ("https", "search.example", 9200, "")),
        ("http://[::1]:9201/a", ("http", "::1", 9201, "/a")),
        ("https://h:1/a/b%20c/", ("https", "h", 1, "/a/b%20c")),
        ("cassandra://h", ("cassandra", "h", 9042, "")),
        ("http://h/..a", ("http", "h", 9200, "/..a")),
    ],
)
def test_url_is_scheme_host_port_and_path_prefix(text: str, result: tuple[str, str, int, str]) -> None:
    url = urls.parse_url(text)
    assert (url.scheme, url.host, url.port, url.path_prefix) == result
    assert urls.parse_url(str(url)) == url


@pytest.mark.parametrize(
    "text",
    [
        "localhost:9200",
        "ftp://x:1",
        "http://",
        "http://x:99999",
        "http://x:9200/path?",
        "http://x:9200/path?key=hunter2",
        "http://x:9200/../hunter2",
        "http://x:9200/a/./hunter2",
        "http://x:9200/a//hunter2",
        "http://x:9200/hunter2%",
        "http://x:9200/hunter 2",
        "http://x?key=hunter2",
        "cassandra://x:9042/hunter2",
        "http://[::1",
    ],
)
def test_invalid_url_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"write it like (https|cassandra)://") as refused:
        urls.parse_url(text)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("http://h\nost:9200", "the URL contains a line feed or another control character"),
        ("http://host:92\r00", "the URL contains a line feed or another control character"),
        ("http://h\u202eost", "the URL contains a line feed or another control character"),
        ("http://h:0", "port: 0 is not between 1 and 65,535"),
        ("https://me:hunter2@search.example:9200", "INGEST_BENCH_PASSWORD"),
        ("me:hunter2@x", "INGEST_BENCH_PASSWORD"),
        ("http://x:9200/@hunter2", "INGEST_BENCH_PASSWORD"),
    ],
)
def test_invalid_url_of_an_experiment_is_refused_without_its_password(text: str, message: str) -> None:
    for overrides, running in (((), {"url": text}), ((f"url={text}",), None)):
        with pytest.raises(SpecError, match=message) as refused:
            spec.load_experiment("running", overrides, running=running)
        assert "hunter2" not in str(refused.value)


def of_url(*overrides: str, experiment: str = "running", **fixed: Any) -> Plan:
    return spec.build_plan(spec.load_experiment(experiment, overrides, running={"url": URL}, fixed=fixed))


def test_url_replaces_target_and_network_of_the_plan() -> None:
    kept = records.from_json(Plan, json.loads(json.dumps(records.to_json(of_url(experiment="workloads")))))
    assert len(kept.runs) == 5
    for run in kept.runs:
        assert str(run.cell.target.url) == URL
        assert run.cell.network is None
    assert campaign.check_plan(kept) == ()
    assert kept.description == "workloads, on a server that runs already, as it is"
    assert of_url().description.startswith("A server that runs already")


def test_several_servers_are_a_factor() -> None:
    levels = f"{URL},http://other.example:9200"
    result = spec.build_plan(spec.load_experiment("running", [f"url={levels}"]))
    assert {str(run.cell.target.url) for run in result.runs} == set(levels.split(","))


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("heap=2g", "target.heap"),
        ("setting.http.port=1", "target.setting"),
        ("target=sink", "target.name"),
        ("network=jumbo", "network.profile"),
        ("network.mtu=1400", "network.mtu"),
        ("host.swappiness=1", "host.swappiness"),
    ],
)
def test_options_of_launched_servers_are_refused_with_a_url(override: str, key: str) -> None:
    with pytest.raises(SpecError, match=key):
        of_url(override)


def test_fault_requires_a_launched_server(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('[[fault]]\nkind = "pause"\nat = "1s"\nfor = "1s"\n')
    with pytest.raises(SpecError, match="fault pause"):
        spec.load_experiment(str(tmp_path / "x.toml"), running={"url": URL})


def test_ca_file_gives_certificates_alone(tmp_path: Path) -> None:
    server = certificates.create_certificates(tmp_path).server
    text = credentials.read_ca_certificates(server)
    assert "PRIVATE KEY" in server.read_text()
    assert text == (tmp_path / "server.crt").read_text().strip()
    # Python trusts the CAs of the machine if it gets an empty text.
    for content in ("", (tmp_path / "server.key").read_text()):
        server.write_text(content)
        with pytest.raises(SpecError, match=r"--ca-file .*: it holds no certificate; a PEM file is needed"):
            credentials.read_ca_certificates(server)


def test_ca_file_without_https_is_refused() -> None:
    with pytest.raises(SpecError, match="ca_file"):
        spec.load_experiment("quickstart", fixed={"ca_file": "/ca.pem"})


def recognised(root: Any, status: int = 200) -> detect.Detected:
    body = root if isinstance(root, bytes) else json.dumps(root).encode()
    return detect.recognize(Response(status, body), URL, str)


@pytest.mark.parametrize(
    ("root", "name", "version"),
    [
        (OPENSEARCH, "opensearch", "2.19.6"),
        ({"version": {"distribution": "opensearch", "number": "3.0.0-beta1"}}, "opensearch", "3.8.0"),
        (ELASTICSEARCH, "elasticsearch", "7.17.29"),
        ({"version": {"distribution": "opensearch", "number": "1.3.20"}}, "opensearch", "2.19.6"),
        ({"version": {"distribution": "opensearch", "number": "4.0.0"}}, "opensearch", "3.8.0"),
        ({"version": {"number": "5.6.16"}}, "elasticsearch", "5.6.16"),
        ({"version": {"number": "6.8.23"}}, "elasticsearch", "5.6.16"),
        ({"version": {"number": "8.19.21"}}, "elasticsearch", "8.19.21"),
        ({"version": {"number": "9.1.0"}}, "elasticsearch", "8.19.21"),
        ({"name": "sink", "version": {"number": "4.1.115.Final"}, "receive": "65536"}, "sink", "4.1.115.Final"),
    ],
)
def test_server_is_identified_by_its_response(root: Any, name: str, version: str) -> None:
    result = recognised(root)
    assert (result.name, result.version) == (name, version)
    untried = f"{name} {result.number} was not tried; it is treated as {version}"
    assert result.notes == (() if result.number == version or name == "sink" else (untried,))


@pytest.mark.parametrize(
    ("status", "root", "response"),
    [
        (200, b"<html>Squid</html>", "neither Elasticsearch nor OpenSearch .* <html>Squid"),
        (200, [1], "neither"),
        (200, {"version": "9"}, "neither"),
        (200, {"version": {"number": "7.²"}}, "neither"),
        (200, {"version": {"number": "9" * 5000}}, "neither"),
        (200, {"version": {"number": "\x1b[31m7"}}, "neither"),
        (200, b"[" * 100_000, "neither"),
        (
            200,
            {"name": "direct-memory", "version": {"number": "17"}, "collectors": []},
            "direct-memory is measured only if",
        ),
        (401, b"", "401.*INGEST_BENCH_API_KEY"),
        (403, b"", "403"),
        (404, b"not here", "404.*not here"),
        (502, b"<html>bad gateway", "502"),
    ],
)
def test_unsupported_server_is_named(status: int, root: Any, response: str) -> None:
    with pytest.raises(SpecError, match=response):
        recognised(root, status)


@pytest.mark.parametrize("body", [b"{}", b"[]", b"<html>", b"[" * 100_000, b'{"nodes": {"a": []}}'])
def test_response_that_only_claims_a_server_is_refused(body: bytes) -> None:
    server = recognised(ELASTICSEARCH)
    http = canned_http({**API, "/_nodes/plugins": (200, body), "/_nodes/jvm": (200, body)})
    for ask in (
        lambda: detect.adapt_target(http, server),
        lambda: detect.describe(http, server),
    ):
        with pytest.raises(
            SpecError,
            match=r"it reports to be elasticsearch 7\.\S+, but its response to GET /_nodes/\w+ has another format",
        ):
            ask()


@pytest.mark.parametrize("heap", [b"1e999", b"NaN", b'"much"', b"{}", b"-1", b"9" * 400])
def test_invalid_heap_of_a_server_is_named(heap: bytes) -> None:
    node = b'{"jvm": {"version": "21", "gc_collectors": ["G1"], "mem": {"heap_max_in_bytes": %s}}}' % heap
    http = canned_http({"/_nodes/jvm": (200, b'{"nodes": {"a": %s}}' % node)})
    with pytest.raises(SpecError, match="its response to GET /_nodes/jvm has another format"):
        detect.describe(http, recognised(ELASTICSEARCH))


INVALID = b"Validation Failed: 1: id is missing;"
# The responses to the checks of the API.
API = {
    "/ingest-bench-check/_refresh?ignore_unavailable=true": (200, b"{}"),
    "/ingest-bench-check/_count?ignore_unavailable=true": (200, b'{"count": 0}'),
    "/ingest-bench-check/_bulk": (400, INVALID),
}


@pytest.mark.parametrize(
    ("number", "bulk", "path"),
    [
        ("6.8.23", (400, b"Validation Failed: 1: type is missing;2: id is missing;"), "/nyc_taxis/doc/_bulk"),
        ("6.8.23", (400, INVALID), "/nyc_taxis/_bulk"),
        ("9.1.0", (400, INVALID), "/nyc_taxis/_bulk"),
        # Without permission for that index: as in the nearest version.
        ("6.8.23", (403, b""), "/nyc_taxis/doc/_bulk"),
        ("9.1.0", (403, b""), "/nyc_taxis/_bulk"),
    ],
)
def test_api_of_the_server_decides_about_document_types(number: str, bulk: tuple[int, bytes], path: str) -> None:
    http = canned_http({**API, "/ingest-bench-check/_bulk": bulk})
    server = recognised({"version": {"number": number}})
    target = detect.adapt_target(http, server)
    assert isinstance(target, ElasticTarget)
    options = TargetOptions(name=server.name, version=server.version)
    assert target.wire(options, catalog.load_workload("nyc_taxis")).keys["path"] == path
    body = target.index_body(options, {"mappings": {"properties": {}}})
    assert ("doc" in body["mappings"]) == ("doc" in path)


@pytest.mark.parametrize(("path", "status"), [(path, status) for path in API for status in (404, 405, 500)])
def test_server_without_the_api_of_a_run_is_refused(path: str, status: int) -> None:
    http = canned_http({**API, path: (status, b"<html>")})
    with pytest.raises(SpecError, match=rf"opensearch 2\.11\.0 does not have the API .* got status {status} .* <html>"):
        detect.adapt_target(http, recognised(OPENSEARCH))


def server_answering(**answers: Any) -> Http:
    """Return a server that gives these answers, by the last part of the path."""
    nodes = {"root": "/", "local": "/_nodes/_local", "jvm": "/_nodes/jvm", "plugins": "/_nodes/plugins"}
    return canned_http(API | {nodes[name]: (200, json.dumps(answer).encode()) for name, answer in answers.items()})


COMPATIBLE = {"version": {"number": "7.10.2"}, "tagline": "The OpenSearch Project: https://opensearch.org/"}


def test_opensearch_in_compatibility_mode_is_identified() -> None:
    http = server_answering(root=COMPATIBLE, local={"nodes": {"a": {"version": "2.19.6"}}})
    target = detect.detect(http)
    assert (target.name, target.number, target.version, target.notes) == ("opensearch", "2.19.6", "2.19.6", ())


@pytest.mark.parametrize("nodes", [{}, {"a": 1}, {"a": {}}, {"a": {"version": "2"}, "b": {"version": "2"}}])
def test_hidden_version_of_opensearch_is_named(nodes: Any) -> None:
    with pytest.raises(SpecError, match=r"Set compatibility\.override_main_response_version to false"):
        detect.detect(server_answering(root=COMPATIBLE, local={"nodes": nodes}))


def test_texts_of_a_server_are_shortened() -> None:
    bounded = detect.shorten_texts({"java": "x" * 5_000_000, "collectors": "G1", "heap_bytes": 1})
    assert len(bounded["java"]) < 20_000
    assert (bounded["collectors"], bounded["heap_bytes"]) == ("G1", 1)
    jvm = {"version": "x" * 5_000_000, "gc_collectors": ["y" * 5_000_000], "mem": {"heap_max_in_bytes": 1}}
    plugins: dict[str, Any] = {"nodes": {"a": {"modules": [], "plugins": []}}}
    http = server_answering(root=OPENSEARCH, jvm={"nodes": {"a": {"jvm": jvm}}}, plugins=plugins)
    description = detect.identify(http, TargetOptions()).description
    assert len(json.dumps(description)) < 50_000


@pytest.mark.parametrize(
    ("body", "response"),
    [
        (b"<html>", "POST http://h/i/_refresh.* is not JSON: <html>"),
        (b"[" * 100_000, "is not JSON"),
        *(
            (body, "GET http://h/i/_count.* has no number of documents: ")
            for body in (b"{}", b"[]", b'{"count": "x"}', b'{"count": 1e999}', b'{"count": -1}')
        ),
    ],
)
def test_invalid_count_is_named(body: bytes, response: str) -> None:
    http = canned_http({f"/i/{name}?ignore_unavailable=true": (200, body) for name in ("_refresh", "_count")})
    with pytest.raises(RunFailed, match=response):
        ELASTICSEARCH_NODE.count([http], ["i"])


def test_nearest_version_is_compared_number_by_number() -> None:
    versions = ["2.19.6", "2.3.0", "3.8.0"]
    assert detect.nearest_version("2.4.1", versions) == "2.3.0"
    assert detect.nearest_version("2.18.0", versions) == "2.19.6"
    assert detect.nearest_version("4.0.0", versions) == "3.8.0"
    assert detect.nearest_version("1.0.0", versions) == "2.3.0"


def test_mapping_is_unchanged_if_the_server_has_the_module() -> None:
    requests = TargetOptions(name="elasticsearch", version="8.19.21")
    assert "english by standard" in ELASTICSEARCH_NODE.describe_replacements(requests)
    complete = ELASTICSEARCH_NODE.adapt("8.19.21", {"analysis-common", "mapper-extras", "percolator"}, has_types=False)
    assert complete.describe_replacements(requests) == ""
    mapping = {"mappings": {"properties": {"query": {"type": "percolator"}}}}
    assert complete.index_body(requests, mapping)["mappings"] == mapping["mappings"]
    with pytest.raises(SpecError, match="percolator"):
        ELASTICSEARCH_NODE.index_body(requests, mapping)


def test_credentials_become_one_header() -> None:
    basic = credentials.read_authorization({"INGEST_BENCH_USER": "me", "INGEST_BENCH_PASSWORD": "pä:ss"})
    assert base64.b64decode(basic["authorization"].removeprefix("Basic ")).decode() == "me:pä:ss"
    assert credentials.read_authorization({"INGEST_BENCH_API_KEY": "abc=="}) == {"authorization": "ApiKey abc=="}
    assert credentials.read_authorization({}) == {}


@pytest.mark.parametrize(
    "environment",
    [
        {"INGEST_BENCH_USER": "hunter2"},
        {"INGEST_BENCH_PASSWORD": "hunter2"},
        {"INGEST_BENCH_API_KEY": "hunter2\r\nx: y"},
        {"INGEST_BENCH_API_KEY": "hunter2", "INGEST_BENCH_USER": "me"},
        {"INGEST_BENCH_API_KEY": "hunter2\udcff"},
        {"INGEST_BENCH_USER": "me", "INGEST_BENCH_PASSWORD": "hunter2\udcff"},
        {"INGEST_BENCH_USER": "hunter2\udcff", "INGEST_BENCH_PASSWORD": "secret"},
        {"INGEST_BENCH_USER": "me:hunter2", "INGEST_BENCH_PASSWORD": "secret"},
    ],
)
def test_invalid_credentials_are_refused_and_not_repeated(environment: dict[str, str]) -> None:
    with pytest.raises(SpecError, match="INGEST_BENCH") as refused:
        credentials.read_authorization(environment)
    assert "hunter2" not in str(refused.value)
    assert str(refused.value).isprintable()


def of_track(folder: Path, steps: list[dict[str, Any]], indices: tuple[str, ...] = ("mine",)) -> Procedure:
    write_track(
        folder,
        [{"operation": step} for step in steps],
        [{"source-file": "docs.json", "target-index": indices[0]}],
        indices=[{"name": name} for name in indices],
    )
    (run,) = of_url(experiment="track", track=str(folder)).runs
    place = ServerAddress(endpoint=Endpoint("192.0.2.1", 9200))
    return planning.build_procedure(run.cell, place, Path(), may_delete=True, mark="only-mine")


BULK = {"operation-type": "bulk", "bulk-size": 10}
CREATE = {"operation-type": "create-index"}


def test_write_set_has_created_deleted_and_written_objects(tmp_path: Path) -> None:
    result = borrowed.compute_write_set(of_track(tmp_path, [{"operation-type": "delete-index"}, CREATE, BULK]))
    assert result.things == (ServerObject("index", "mine"),)
    assert result.created == result.deleted == {ServerObject("index", "mine")}


def test_created_index_carries_the_mark_of_its_run(tmp_path: Path) -> None:
    requests = of_track(tmp_path, [CREATE, BULK]).steps[0]
    assert isinstance(requests, Requests)
    assert requests.requests[0].body is not None
    assert requests.requests[0].body["mappings"]["_meta"]["run"] == "only-mine"


@pytest.mark.parametrize("name", ["*", "logs-*", "_all", "<x-{now}>", "-x", ".security", "UPPER"])
def test_name_that_may_denote_other_indices_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError, match=r"not a plain name|not a valid index name"):
        borrowed.compute_write_set(of_track(tmp_path, [{"operation-type": "delete-index"}, BULK], (name,)))


@pytest.mark.parametrize("operation", ["refresh", "force-merge"])
def test_request_that_affects_all_indices_is_refused(tmp_path: Path, operation: str) -> None:
    with pytest.raises(SpecError, match="more than the indices of this run"):
        borrowed.compute_write_set(of_track(tmp_path, [BULK, {"operation-type": operation, "index": "_all"}]))


def test_track_that_deletes_requires_allow_delete(tmp_path: Path) -> None:
    of_track(tmp_path, [{"operation-type": "delete-index"}, CREATE, BULK])
    ordered = of_url(experiment="track", track=str(tmp_path))
    with pytest.raises(SpecError, match=r"deletes what it declares \(delete-index\), .* Allow it with --allow-delete"):
        campaign.check_plan(ordered, RunOptions())
    assert not [line for line in campaign.check_plan(ordered, RunOptions(allow_delete=True)) if "delete" in line]
    of_track(tmp_path, [CREATE, BULK])
    campaign.check_plan(of_url(experiment="track", track=str(tmp_path)), RunOptions())
