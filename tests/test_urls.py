"""The URL of a server that runs already: what it may be, what goes with it, and who we are to it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ingest_bench import targets
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.experiment import order, spec
from ingest_bench.inputs import credentials, records, urls
from ingest_bench.lab import campaign
from ingest_bench.lab import steps as procedure
from ingest_bench.lab.runner import RunOptions
from ingest_bench.lab.server import borrowed
from ingest_bench.lab.server.borrowed import Thing
from ingest_bench.lab.steps.parts import Ask, Procedure
from ingest_bench.model.experiment import Plan
from ingest_bench.model.target import Endpoint, Place, TargetOptions
from ingest_bench.targets import running
from ingest_bench.targets.elastic.elasticsearch import ELASTICSEARCH as ELASTICSEARCH_NODE
from ingest_bench.targets.http import Answer, Http
from ingest_bench.targets.small import counters

URL = "https://search.example:9243"
OPENSEARCH = {"name": "n1", "version": {"distribution": "opensearch", "number": "2.11.0"}}
ELASTICSEARCH = {"name": "n1", "version": {"number": "7.10.2", "build_flavor": "default"}}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("http://127.0.0.1:9200", ("http", "127.0.0.1", 9200)),
        ("https://search.example/", ("https", "search.example", 9200)),
        ("http://[::1]:9201", ("http", "::1", 9201)),
    ],
)
def test_a_url_is_scheme_host_and_port(text: str, found: tuple[str, str, int]) -> None:
    url = urls.parse(text)
    assert (url.scheme, url.host, url.port) == found


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
        "http://[::1",
    ],
)
def test_what_is_no_url_of_a_server_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(ValueError, match="write it like https://") as refused:
        urls.parse(text)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        ("http://h", ""),
        ("http://h/", ""),
        ("http://h/a", "/a"),
        ("https://h:1/a/b%20c/", "/a/b%20c"),
        ("http://h/..a", "/..a"),
    ],
)
def test_a_path_of_a_url_is_the_prefix_of_all_requests(text: str, prefix: str) -> None:
    url = urls.parse(text)
    assert (url.path_prefix, str(url).endswith(prefix)) == (prefix, True)
    assert urls.parse(str(url)) == url


@pytest.mark.parametrize(
    "text", ["http://h\nost:9200", "http://h\tost:9200", "http://host:92\r00", "http://h\u202eost"]
)
def test_a_url_is_never_another_one_than_was_written(text: str) -> None:
    with pytest.raises(SpecError, match="a line feed or another control character is in this URL"):
        spec.load("running", running={"url": text})


def test_a_port_of_0_is_not_taken_for_none() -> None:
    with pytest.raises(SpecError, match="port: 0 is not between 1 and 65,535"):
        spec.load("running", running={"url": "http://h:0"})


@pytest.mark.parametrize("text", ["https://me:hunter2@search.example:9200", "me:hunter2@x", "http://x:9200/@hunter2"])
def test_a_password_in_the_url_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(SpecError, match="INGEST_BENCH_PASSWORD") as refused:
        spec.load("running", running={"url": text})
    assert "hunter2" not in str(refused.value)
    with pytest.raises(SpecError, match="INGEST_BENCH_PASSWORD") as refused:
        spec.load("running", [f"url={text}"])
    assert "hunter2" not in str(refused.value)


def of_url(*overrides: str, experiment: str = "running", **fixed: Any) -> Plan:
    return order.order(spec.load(experiment, overrides, running={"url": URL}, fixed=fixed))


def test_the_plan_keeps_the_url_and_takes_the_place_of_target_and_network() -> None:
    kept = records.from_json(Plan, json.loads(json.dumps(records.to_json(of_url(experiment="workloads")))))
    assert len(kept.runs) == 5
    for run in kept.runs:
        assert str(run.cell.target.url) == URL
        assert run.cell.network is None
    assert campaign.check(kept) == ()
    assert kept.description == "workloads, on a server that runs already, as it is"
    assert of_url().description.startswith("A server that runs already")


def test_several_servers_are_a_factor() -> None:
    levels = f"{URL},http://other.example:9200"
    found = order.order(spec.load("running", [f"url={levels}"]))
    assert {str(run.cell.target.url) for run in found.runs} == set(levels.split(","))


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("heap=2g", "target.heap"),
        ("gc=g1", "target.gc"),
        ("receive_predictor=32KiB", "target.receive_predictor"),
        ("allocator=pooled", "target.allocator"),
        ("jvm=-Xss1m", "target.jvm"),
        ("setting.http.port=1", "target.setting"),
        ("version=2.19.6", "target.version"),
        ("target=sink", "target.name"),
        ("socket_receive_buffer=64KiB", "target.socket_receive_buffer"),
        ("network=jumbo", "network.profile"),
        ("network.mtu=1400", "network.mtu"),
    ],
)
def test_what_only_a_server_of_ours_can_have_is_refused_by_its_key(override: str, key: str) -> None:
    with pytest.raises(SpecError, match=key):
        of_url(override)


def test_a_fault_needs_a_link_of_ours(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('[[fault]]\nkind = "pause"\nat = "1s"\nfor = "1s"\n')
    with pytest.raises(SpecError, match="fault pause"):
        spec.load(str(tmp_path / "x.toml"), running={"url": URL})


def test_a_ca_without_a_server_to_verify_is_refused() -> None:
    with pytest.raises(SpecError, match="ca_file"):
        spec.load("quickstart", fixed={"ca_file": "/ca.pem"})


def recognised(root: Any, status: int = 200) -> running.Found:
    body = root if isinstance(root, bytes) else json.dumps(root).encode()
    return running.recognised(Answer(status, body), URL, targets.TARGETS)


@pytest.mark.parametrize(
    ("root", "name", "version"),
    [
        (OPENSEARCH, "opensearch", "2.19.6"),
        ({"version": {"distribution": "opensearch", "number": "3.0.0-beta1"}}, "opensearch", "3.8.0"),
        (ELASTICSEARCH, "elasticsearch", "7.17.29"),
        ({"version": {"number": "8.19.21"}}, "elasticsearch", "8.19.21"),
        ({"version": {"number": "5.6.16"}}, "elasticsearch", "5.6.16"),
        ({"name": "sink", "version": {"number": "4.1.115.Final"}, "receive": "65536"}, "sink", "java17"),
    ],
)
def test_a_server_is_recognised_by_what_it_says(root: Any, name: str, version: str) -> None:
    found = recognised(root)
    assert (found.name, found.version) == (name, version)
    assert bool(found.notes) == (found.number != version and name != "sink")


@pytest.mark.parametrize(
    ("status", "root", "said"),
    [
        (200, {"version": {"number": "6.8.0"}}, "it is elasticsearch 6.8.0; known are opensearch 2.19.6"),
        (200, {"version": {"distribution": "opensearch", "number": "1.3.0"}}, "it is opensearch 1.3.0"),
        (200, b"<html>Squid</html>", "neither Elasticsearch nor OpenSearch .* <html>Squid"),
        (200, [1], "neither"),
        (200, {"version": "9"}, "neither"),
        (200, {"version": {"number": "7.²"}}, "neither"),
        (200, {"version": {"number": "9" * 5000}}, "neither"),
        (200, {"version": {"number": "\x1b[31m7"}}, "neither"),
        (200, b"[" * 100_000, "neither"),
        (200, {"name": "direct-memory", "version": {"number": "17"}, "collectors": []}, "it is direct-memory, which"),
        (401, b"", "401.*INGEST_BENCH_API_KEY"),
        (403, b"", "403"),
        (404, b"not here", "404.*not here"),
        (502, b"<html>bad gateway", "502"),
    ],
)
def test_what_cannot_be_measured_is_named(status: int, root: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        recognised(root, status)


@pytest.mark.parametrize("body", [b"{}", b"[]", b"<html>", b"[" * 100_000, b'{"nodes": {"a": []}}'])
def test_a_server_that_only_says_that_it_is_one_is_named(body: bytes) -> None:
    it = recognised(ELASTICSEARCH)
    asked: Any = SimpleNamespace(origin=URL, request=lambda *_: Answer(200, body))
    for ask in (lambda: running.spoken(asked, it, targets.TARGETS), lambda: running.described(asked, it)):
        with pytest.raises(SpecError, match=r"it is elasticsearch 7\.\S+, and answers GET /_nodes/\w+ as none does"):
            ask()


@pytest.mark.parametrize("heap", [b"1e999", b"NaN", b'"much"', b"{}", b"-1", b"9" * 400])
def test_a_server_whose_heap_is_no_number_is_named(heap: bytes) -> None:
    node = b'{"jvm": {"version": "21", "gc_collectors": ["G1"], "mem": {"heap_max_in_bytes": %s}}}' % heap
    asked: Any = SimpleNamespace(origin=URL, request=lambda *_: Answer(200, b'{"nodes": {"a": %s}}' % node))
    with pytest.raises(SpecError, match="answers GET /_nodes/jvm as none does"):
        running.described(asked, recognised(ELASTICSEARCH))


def server_answering(**answers: Any) -> Any:
    """Return a server that gives these answers, by the last part of the path."""

    def request(_method: str, path: str, **_more: Any) -> Answer:
        return Answer(200, json.dumps(answers[path.rpartition("/")[2]]).encode())

    return SimpleNamespace(origin=URL, request=request)


COMPATIBLE = {"version": {"number": "7.10.2"}, "tagline": "The OpenSearch Project: https://opensearch.org/"}


def test_opensearch_in_compatibility_mode_is_not_taken_for_elasticsearch() -> None:
    http = server_answering(**{"": COMPATIBLE, "_local": {"nodes": {"a": {"version": "2.19.6"}}}})
    target = running.found(http, targets.TARGETS)
    assert (target.name, target.number, target.version, target.notes) == ("opensearch", "2.19.6", "2.19.6", ())


@pytest.mark.parametrize("nodes", [{}, {"a": 1}, {"a": {}}, {"a": {"version": "2"}, "b": {"version": "2"}}])
def test_opensearch_that_hides_its_version_everywhere_is_named(nodes: Any) -> None:
    with pytest.raises(SpecError, match=r"set compatibility\.override_main_response_version to false"):
        running.found(server_answering(**{"": COMPATIBLE, "_local": {"nodes": nodes}}), targets.TARGETS)


def test_texts_that_a_server_says_about_itself_are_bounded() -> None:
    bounded = running.bounded({"java": "x" * 5_000_000, "collectors": "G1", "heap_bytes": 1})
    assert len(bounded["java"]) < 20_000
    assert (bounded["collectors"], bounded["heap_bytes"]) == ("G1", 1)
    jvm = {"version": "x" * 5_000_000, "gc_collectors": ["y" * 5_000_000], "mem": {"heap_max_in_bytes": 1}}
    plugins: dict[str, Any] = {"nodes": {"a": {"modules": [], "plugins": []}}}
    answers = {"": OPENSEARCH, "jvm": {"nodes": {"a": {"jvm": jvm}}}, "plugins": plugins}
    description = running.identified(server_answering(**answers), TargetOptions(), targets.TARGETS).told
    assert len(json.dumps(description)) < 50_000


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"count": "x"}', b'{"count": 1e999}', b'{"count": -1}'])
def test_a_server_of_ours_that_does_not_count_is_named(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    asked: Any = None
    http = Http("http://h", asked, {}, Endpoint("h", 80), tuple)
    monkeypatch.setattr(Http, "request", lambda *_, **__: Answer(200, body))
    with pytest.raises(RunFailed, match="GET http://h/_count tells no number of documents"):
        counters.documents((http, http))


def test_servers_of_ours_whose_counters_are_not_alike_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Any = None
    http = Http("http://h", asked, {}, Endpoint("h", 80), tuple)
    answers = iter([b'{"reads": 1}', b'{"reads": {"a": 1}}'])
    monkeypatch.setattr(Http, "request", lambda *_, **__: Answer(200, next(answers)))
    with pytest.raises(RunFailed, match="http://h: its counters and those of the others are not alike"):
        counters.added_up((http, http))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html>", "POST http://h/i/_refresh.* was answered with what is not JSON: <html>"),
        (b"[" * 100_000, "with what is not JSON"),
        (b"{}", "GET http://h/i/_count.* tells no number of documents: {}"),
        (b'{"count": -1}', "tells no number of documents"),
    ],
)
def test_a_server_that_does_not_count_is_named(monkeypatch: pytest.MonkeyPatch, body: bytes, said: str) -> None:
    asked: Any = None
    http = Http("http://h", asked, {}, Endpoint("h", 80), tuple)
    monkeypatch.setattr(Http, "request", lambda *_, **__: Answer(200, body))
    with pytest.raises(RunFailed, match=said):
        ELASTICSEARCH_NODE.count([http], ["i"])


def test_the_nearest_version_has_the_same_first_number() -> None:
    known = ["2.19.6", "2.3.0", "3.8.0"]
    assert running.nearest("2.4.1", known) == "2.3.0"
    assert running.nearest("2.18.0", known) == "2.19.6"
    assert running.nearest("4.0.0", known) is None


def test_a_mapping_is_left_alone_where_the_server_has_the_module_that_it_needs() -> None:
    asked = TargetOptions(name="elasticsearch", version="8.19.21")
    assert "english by standard" in ELASTICSEARCH_NODE.replacements(asked)
    whole = ELASTICSEARCH_NODE.with_modules("8.19.21", {"analysis-common", "mapper-extras", "percolator"})
    assert whole.replacements(asked) == ""
    mapping = {"mappings": {"properties": {"query": {"type": "percolator"}}}}
    assert whole.index_body(asked, mapping)["mappings"] == mapping["mappings"]
    with pytest.raises(SpecError, match="percolator"):
        ELASTICSEARCH_NODE.index_body(asked, mapping)


def test_credentials_become_one_header() -> None:
    basic = credentials.headers({"INGEST_BENCH_USER": "me", "INGEST_BENCH_PASSWORD": "pä:ss"})
    assert base64.b64decode(basic["authorization"].removeprefix("Basic ")).decode() == "me:pä:ss"
    assert credentials.headers({"INGEST_BENCH_API_KEY": "abc=="}) == {"authorization": "ApiKey abc=="}
    assert credentials.headers({}) == {}


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
def test_credentials_that_make_no_header_are_refused_and_not_repeated(environment: dict[str, str]) -> None:
    with pytest.raises(SpecError, match="INGEST_BENCH") as refused:
        credentials.headers(environment)
    assert "hunter2" not in str(refused.value)
    assert str(refused.value).isprintable()


def of_track(folder: Path, steps: list[dict[str, Any]], indices: tuple[str, ...] = ("mine",)) -> Procedure:
    (folder / "docs.json").write_text('{"a":1}\n')
    table = {
        "version": 2,
        "description": "x",
        "indices": [{"name": name} for name in indices],
        "corpora": [
            {"name": "c", "documents": [{"source-file": "docs.json", "document-count": 1, "target-index": indices[0]}]}
        ],
        "schedule": [{"operation": step} for step in steps],
    }
    (folder / "track.json").write_text(json.dumps(table))
    (run,) = of_url(experiment="track", track=str(folder)).runs
    place = Place(endpoint=Endpoint("192.0.2.1", 9200))
    return procedure.of(run.cell, place, Path(), may_delete=True, mark="only-mine")


BULK = {"operation-type": "bulk", "bulk-size": 10}
CREATE = {"operation-type": "create-index"}


def test_the_footprint_is_every_index_that_is_made_deleted_or_written(tmp_path: Path) -> None:
    found = borrowed.write_set(of_track(tmp_path, [{"operation-type": "delete-index"}, CREATE, BULK]))
    assert found.things == (Thing("index", "mine"),)
    assert found.made == found.deleted == {Thing("index", "mine")}


def test_an_index_of_a_foreign_server_carries_the_mark_of_its_run(tmp_path: Path) -> None:
    asked = of_track(tmp_path, [CREATE, BULK]).parts[0]
    assert isinstance(asked, Ask)
    assert asked.requests[0].body is not None
    assert asked.requests[0].body["mappings"]["_meta"]["run"] == "only-mine"


@pytest.mark.parametrize("name", ["*", "logs-*", "_all", "<x-{now}>", "-x", ".security", "UPPER"])
def test_a_name_that_may_mean_other_indices_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError, match=r"no plain name|no index can be called"):
        borrowed.write_set(of_track(tmp_path, [{"operation-type": "delete-index"}, BULK], (name,)))


@pytest.mark.parametrize("operation", ["refresh", "force-merge"])
def test_what_concerns_all_indices_is_refused(tmp_path: Path, operation: str) -> None:
    with pytest.raises(SpecError, match="more than the indices of this run"):
        borrowed.write_set(of_track(tmp_path, [BULK, {"operation-type": operation, "index": "_all"}]))


def test_a_track_that_deletes_needs_the_users_word(tmp_path: Path) -> None:
    of_track(tmp_path, [{"operation-type": "delete-index"}, CREATE, BULK])
    ordered = of_url(experiment="track", track=str(tmp_path))
    with pytest.raises(SpecError, match="--allow-delete"):
        campaign.check(ordered, RunOptions())
    assert not [line for line in campaign.check(ordered, RunOptions(allow_delete=True)) if "delete" in line]
