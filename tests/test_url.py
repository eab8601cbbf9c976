"""`ingest-bench run --url` as a process, against real servers that run already: the sink, and OpenSearch."""

from __future__ import annotations

import base64
import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import certificates
import commands
import numpy as np
import psutil
import pytest
from certificates import Certificates
from commands import USERS, Place, nothing_left
from running import free_port, running

from ingest_bench.model.samples import SAMPLE
from ingest_bench.model.target import TargetOptions
from ingest_bench.targets.http import Http

pytestmark = [pytest.mark.jvm, pytest.mark.processes]

CLOSED = ("--warm-up", "500ms", "--measure", "2s", "--set", "bulk_documents=100", "--out", "out")
SHORT = ("--set", "arrivals=50/s", *CLOSED)
PASSWORD = "correct-horse-battery"  # noqa: S105 - of a test
WANTED = "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()
KEY = "VnVhQ2ZHY0JDZGJrUW0tZTVhT3g6dWkybHAyYXhUTm1zeWFrdzl0dk5udw=="


@pytest.fixture(scope="module", autouse=True)
def _cache() -> None:
    commands.fill_cache()


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    with running(tmp_path_factory.mktemp("sink"), TargetOptions(name="sink", heap_bytes=256 << 20)) as (http, _):
        yield http


@pytest.fixture(scope="module")
def started_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    with running(tmp_path_factory.mktemp("node"), TargetOptions(name="opensearch", heap_bytes=512 << 20)) as (http, _):
        yield http


@pytest.fixture
def node(started_node: Http) -> Http:
    """A node without an index, whatever the test before left in it: that one may have failed, or skipped half-way."""
    for index in indices(started_node):
        started_node.expect("DELETE", f"/{index}")
    return started_node


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates.made(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def here() -> Iterator[Place]:
    with commands.place() as place:
        yield place


@contextmanager
def front(backend: str, certificate: Path | None = None, *clients: Path, **environment: str) -> Iterator[int]:
    """The port of a proxy in front of a server."""
    program = Path(__file__).with_name("front.py")
    files = (str(path) for path in (certificate, *clients) if path is not None)
    argv = [sys.executable, str(program), backend.rpartition(":")[2], *files]
    popen = subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, **environment})
    try:
        assert popen.stdout is not None
        yield int(popen.stdout.readline())
    finally:
        popen.kill()
        popen.communicate()


def ran(place: Place, *arguments: str) -> tuple[int, str]:
    with nothing_left(), place.command("run", *arguments) as command:
        code = command.end()
        return code, " ".join(command.text.split())


def row(place: Place) -> dict[str, str]:
    """The one row of the newest results."""
    with (place.results[-1] / "summary.csv").open(encoding="utf-8") as file:
        (found,) = csv.DictReader(file)
    return found


def made_by_somebody(node: Http, index: str) -> None:
    # With a replica the cluster would never be green.
    node.expect("PUT", f"/{index}", b'{"settings":{"number_of_replicas":0}}')


def indices(node: Http) -> set[str]:
    return set(node.expect("GET", "/_all/_settings"))


@pytest.mark.nightly
@pytest.mark.parametrize("user", USERS)
def test_a_sink_that_runs_already_is_measured_as_it_is(sink: Http, user: int | None) -> None:
    with commands.place(user) as place:
        # Others have sent to it before: what it had counted then is not this run's.
        for _ in range(2 if user is None else 1):
            code, said = ran(place, "--url", sink.origin, *SHORT)
            assert code == 0, said
            found = row(place)
            assert (found["state"], found["network"]) == ("measured", "as-is")
            assert found["target"].startswith("sink 4.1.")
            assert found["documents_counted"] == found["documents_acked"] != "0"
            assert int(found["heap_bytes"]) == 256 << 20
            assert found["sink_reads"] == found["mss"] == found["gc_pauses"] == ""


@pytest.mark.nightly
@pytest.mark.opensearch
@pytest.mark.parametrize("user", USERS)
def test_a_node_is_measured_and_nothing_is_left_in_it(node: Http, user: int | None) -> None:
    with commands.place(user) as place:
        made_by_somebody(node, "somebodys")
        (place.folder / "x.toml").write_text('probes = ["reads", "gc", "host"]\n[target]\nheap = "4g"\n')
        code, said = ran(place, "x.toml", "--url", node.origin, "--set", "query_users=1", *SHORT)
        assert code == 0, said
        found = row(place)
        summary = json.loads((place.results[-1] / "summary.json").read_text())
    assert found["target"] == "opensearch 2.19.6"
    assert found["documents_counted"] == found["documents_acked"] != "0"
    assert int(found["heap_bytes"]) == 512 << 20
    assert int(found["gc_young_collections"]) + int(found["gc_old_collections"]) >= 0
    assert int(found["direct_buffer_used_max_bytes"]) > 0
    assert found["reads"] == found["gc_pauses"] == found["server_cpu_s"] == ""
    assert "host" in str(summary)
    assert indices(node) == {"somebodys"}


@pytest.mark.nightly
def test_a_server_behind_a_path_of_a_proxy_is_measured_there(sink: Http, here: Place) -> None:
    with front(sink.origin, FRONT_PREFIX="/search/a%20b") as port:
        url = f"http://127.0.0.1:{port}/search/a%20b"
        code, output = ran(here, "--url", f"{url}/", *SHORT)
        assert code == 0, output
        assert row(here)["documents_counted"] == row(here)["documents_acked"] != "0"
        code, output = ran(here, "--url", url.removesuffix("b"), *SHORT)
        assert (code, "GET / was answered 404" in output) == (2, True), output


@pytest.mark.opensearch
def test_an_index_that_is_there_already_is_not_touched(node: Http, here: Place) -> None:
    node.expect("PUT", "/nyc_taxis/_doc/1?refresh=true", b'{"somebodys":1}')
    code, said = ran(here, "--url", node.origin, *SHORT)
    assert (code, here.results) == (2, []), said
    assert 'there is an index "nyc_taxis" already; it is not touched' in said
    assert node.expect("GET", "/nyc_taxis/_count")["count"] == 1


@pytest.mark.opensearch
@pytest.mark.parametrize("action", ["index", "delete"])
def test_an_action_line_with_two_indices_writes_to_none(node: Http, here: Place, action: str) -> None:
    node.expect("PUT", "/prod/_doc/1?refresh=true", b'{"theirs":1}')
    line = f'{{"{action}":{{"_index":"prod","_id":"1"}},"{action}":{{"_index":"mine","_id":"1"}}}}\n'
    (here.folder / "bulk.json").write_text(line + ('{"ours":1}\n' if action == "index" else ""))
    code, output = ran(here, "--url", node.origin, "--documents", "bulk.json", *SHORT)
    assert (code, here.results) == (2, []), output
    assert f"line 1 is not JSON (the key '{action}' stands twice" in output
    assert node.expect("GET", "/prod/_doc/1")["_source"] == {"theirs": 1}
    assert indices(node) == {"prod"}


@pytest.mark.opensearch
def test_a_track_does_not_write_through_an_alias_of_others(node: Http, here: Place) -> None:
    made_by_somebody(node, "prod")
    node.expect("POST", "/_aliases", b'{"actions":[{"add":{"index":"prod","alias":"all"}}]}')
    folder = here.folder / "track"
    folder.mkdir()
    (folder / "docs.json").write_text('{"n":1}\n')
    (folder / "index.json").write_text('{"aliases":{"all":{"is_write_index":true}}}')
    documents = [{"source-file": "docs.json", "document-count": 1, "target-index": "all"}]
    table = {
        "version": 2,
        "indices": [{"name": "mine", "body": "index.json"}],
        "corpora": [{"name": "c", "documents": documents}],
        "schedule": [{"operation": "create-index"}, {"operation": {"operation-type": "bulk", "bulk-size": 1}}],
    }
    (folder / "track.json").write_text(json.dumps(table))
    code, output = ran(here, "--url", node.origin, "--track", str(folder), "--out", "out")
    assert (code, here.results) == (2, []), output
    assert 'there is an index "all" already; it is not touched' in output
    node.expect("DELETE", "/prod")
    code, output = ran(here, "--url", node.origin, "--track", str(folder), "--out", "out")
    assert code == 0, output
    assert row(here)["documents_counted"] == "1"
    assert indices(node) == set()


@pytest.mark.nightly
@pytest.mark.opensearch
def test_ctrl_c_leaves_no_index_and_the_rest_can_be_resumed(node: Http, here: Place) -> None:
    with nothing_left(), here.command("run", "--url", node.origin, "--out", "out", terminal=True) as command:
        command.until("load measure")
        assert indices(node) == {"nyc_taxis"}
        os.write(command.heard, commands.CTRL_C)
        assert command.end() == 130, command.text
    assert indices(node) == set()
    plan = here.results[0] / "plan.json"
    plan.write_text(plan.read_text().replace('"measure_ns": 20000000000', '"measure_ns": 1000000000'))
    code, said = ran(here, "--resume", str(here.results[0]))
    assert code == 0, said
    assert row(here)["state"] == "measured"
    assert indices(node) == set()


@pytest.mark.nightly
@pytest.mark.opensearch
def test_what_a_killed_run_left_is_named_by_the_next_one(node: Http, here: Place) -> None:
    with nothing_left(), here.command("run", "--url", node.origin, "--out", "out") as command:
        command.until("load measure")
        command.popen.kill()
        command.end()
    assert indices(node) == {"nyc_taxis"}
    code, said = ran(here, "--url", node.origin, *SHORT)
    assert code == 2, said
    assert "a run of ingest-bench left it that was killed" in said
    assert f"curl -X DELETE {node.origin}/nyc_taxis" in said


@pytest.mark.nightly
@pytest.mark.opensearch
def test_a_run_that_fails_leaves_no_index(node: Http, here: Place) -> None:
    code, said = ran(here, "--url", node.origin, "--set", "load.action.pipeline=nobody-made-it", *SHORT)
    assert code == 3, said
    assert "400 illegal_argument_exception" in said
    assert indices(node) == set()


@pytest.mark.nightly
@pytest.mark.opensearch
def test_a_track_deletes_only_by_the_users_word(node: Http, here: Place) -> None:
    folder = Path(__file__).with_name("data") / "track"
    made_by_somebody(node, "rides")
    code, said = ran(here, "--track", str(folder), "--url", node.origin, "--out", "out")
    assert (code, here.results) == (2, []), said
    assert "--allow-delete" in said
    code, said = ran(here, "--track", str(folder), "--url", node.origin, "--allow-delete", "--out", "out")
    assert code == 0, said
    assert row(here)["documents_counted"] == row(here)["documents_acked"] != "0"
    assert indices(node) == set()


STREAMS = Path(__file__).with_name("data") / "streams"
MADE = ("_data_stream/logs-app", "_index_template/logs", "_component_template/logs-settings", "_template/old-rides")


@pytest.mark.nightly
@pytest.mark.opensearch
def test_what_a_track_makes_beside_indices_is_deleted_and_what_is_there_is_not_touched(node: Http, here: Place) -> None:
    track = ("--track", str(STREAMS), "--url", node.origin, "--allow-delete", "--out", "out")
    node.expect("PUT", "/_ingest/pipeline/clean", b'{"description":"of somebody","processors":[]}')
    code, said = ran(here, *track)
    assert (code, here.results) == (2, []), said
    assert 'there is an ingest pipeline "clean" already; it is not touched' in said
    assert b"of somebody" in node.request("GET", "/_ingest/pipeline/clean").body
    node.expect("DELETE", "/_ingest/pipeline/clean")
    code, said = ran(here, *track)
    assert code == 0, said
    assert row(here)["documents_counted"] == row(here)["documents_acked"] != "0"
    assert indices(node) == set()
    for place in (*MADE, "_ingest/pipeline/clean"):
        assert node.request("GET", f"/{place}").status == 404, place


@pytest.mark.nightly
def test_credentials_go_over_tls_and_are_written_nowhere(
    sink: Http, made: Certificates, here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGEST_BENCH_USER", "me")
    monkeypatch.setenv("INGEST_BENCH_PASSWORD", PASSWORD)
    secrets = (PASSWORD, WANTED.removeprefix("Basic "))
    with front(sink.origin, made.server, FRONT_WANTS=WANTED) as port:
        url = ("--url", f"https://localhost:{port}", "--ca-file", str(made.ca))
        with nothing_left(), here.command("run", *url, "--set", "query_users=1", *SHORT) as command:
            command.until("load measure")
            lines = commands.running(command)
            assert "ingest_bench.load.fleet.fleet_worker" in lines
            assert "asker.py" in lines
            everybody = "\n".join(" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"]))
            assert command.end() == 0, command.text
        assert not [secret for secret in secrets if secret in everybody + command.text]
        found = row(here)
        assert found["documents_counted"] == found["documents_acked"] != "0"
        assert int(found["queries"]) > 0
    files = [path for path in here.folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files for secret in secrets if secret.encode() in path.read_bytes()]


def test_an_api_key_is_as_good(sink: Http, here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGEST_BENCH_API_KEY", KEY)
    with front(sink.origin, FRONT_WANTS=f"ApiKey {KEY}") as port:
        code, said = ran(here, "--url", f"http://localhost:{port}", *SHORT)
    assert code == 0, said
    assert not [path for path in here.folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


@pytest.mark.nightly
def test_a_load_goes_to_all_addresses_of_a_cluster_and_one_that_is_dead_is_named(sink: Http, here: Place) -> None:
    dead = f"127.0.0.1:{free_port()}"
    with front(sink.origin) as one, front(sink.origin) as two:
        urls = (f"http://127.0.0.1:{one}", f"http://{dead}", f"http://localhost:{two}")
        code, said = ran(here, *(word for url in urls for word in ("--url", url)), "--set", "users=6", *CLOSED)
        assert code == 0, said
        assert f"{dead} does not answer: its share goes to the others" in said
    found = row(here)
    assert found["documents_counted"] == found["documents_acked"] != "0"
    (folder,) = here.results[-1].glob("*/1/load")
    report = json.loads((folder / "load.json").read_text())
    assert report["addresses"] == [f"127.0.0.1:{one}", dead, f"localhost:{two}"]
    assert any(f"connect to {dead}: Connection refused" in error for error in report["errors"])
    samples = np.fromfile(folder / "samples-0.bin", dtype=SAMPLE)
    assert set(samples["address"].tolist()) == {0, 2}
    # Two users began with each; the two of the dead one went on to the next.
    assert (samples["attempts"] > 1).sum() == 2


@pytest.mark.nightly
def test_the_first_address_may_be_the_dead_one_but_not_all_may_be(sink: Http, here: Place) -> None:
    dead, other = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    code, said = ran(here, "--url", dead, "--url", sink.origin, "--set", "users=2", *SHORT)
    assert code == 0, said
    assert f"{dead.removeprefix('http://')} does not answer: its share goes to the others" in said
    found = row(here)
    assert found["documents_counted"] == found["documents_acked"] != "0"
    code, said = ran(here, "--url", dead, "--url", other, *SHORT)
    assert code != 0
    assert said.count("nobody answers there") == 2, said


def test_the_addresses_of_two_clusters_are_refused(sink: Http, here: Place) -> None:
    other = json.dumps({"name": "sink", "receive": "1", "version": {"number": "1"}, "cluster_uuid": "another"})
    with front(sink.origin, FRONT_SAYS=other) as port:
        code, said = ran(here, "--url", sink.origin, "--url", f"http://localhost:{port}", *SHORT)
    assert code == 2, said
    assert f"localhost:{port}: it is of another cluster (another)" in said
    code, said = ran(here, "--url", sink.origin, "--url", "https://localhost:9200", *SHORT)
    assert (code, "or none is" in said) == (2, True), said


@pytest.mark.nightly
def test_a_server_that_demands_a_certificate_of_ours_gets_it_and_the_key_is_written_nowhere(
    sink: Http, made: Certificates, here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = made.client()
    late, late_key = made.client("late", days=-1)
    locked = key.with_name("locked.key")
    subprocess.run(
        ["openssl", "rsa", "-aes256", "-passout", "pass:secret", "-in", key, "-out", locked],
        check=True,
        capture_output=True,
        timeout=60,
    )
    with front(sink.origin, made.server, made.ca) as port:
        url = ("--url", f"https://localhost:{port}", "--ca-file", str(made.ca))
        for arguments, part in (
            ((), "it demands a certificate of ours: --client-cert and --client-key"),
            (("--client-cert", str(cert)), "belong together"),
            (("--client-cert", str(cert), "--client-key", "nowhere.key"), "nowhere.key cannot be read"),
            (("--client-cert", str(cert), "--client-key", str(late_key)), "they do not belong together"),
            (("--client-cert", str(cert), "--client-key", str(made.ca)), "both must be PEM files"),
            (("--client-cert", str(cert), "--client-key", str(locked)), "has a passphrase"),
            (("--client-cert", str(late), "--client-key", str(late_key)), "it refuses our certificate"),
        ):
            code, said = ran(here, *url, *arguments, *SHORT)
            # The server's alert may be lost behind the reset of its connection.
            told = part in said or (part.startswith("it ") and "it ended TLS before it answered" in said)
            assert (code, told, "Traceback" in said) == (2, True, False), f"{arguments}: {said}"
        assert here.results == []
        code, said = ran(here, *url, "--client-cert", str(cert), "--client-key", str(key), *SHORT)
        assert code == 0, said
        assert row(here)["documents_counted"] == row(here)["documents_acked"] != "0"
        monkeypatch.setenv("INGEST_BENCH_CLIENT_CERT", str(cert))
        code, said = ran(here, *url, *SHORT)
        assert (code, "INGEST_BENCH_CLIENT_KEY is not set" in said) == (2, True), said
        monkeypatch.setenv("INGEST_BENCH_CLIENT_KEY", str(key))
        code, said = ran(here, *url, *SHORT)
        assert code == 0, said
    secret = key.read_bytes().splitlines()[3]
    files = [path for path in here.folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if secret in path.read_bytes()]


@pytest.mark.nightly
def test_what_is_wrong_with_a_url_is_said_before_anything_is_made(
    sink: Http, made: Certificates, here: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = sink.origin.rpartition(":")[2]
    elsewhere = certificates.made(tmp_path, "DNS:elsewhere.example")
    with (
        front(sink.origin, made.server) as tls,
        front(sink.origin, elsewhere.server) as other,
        front(sink.origin, FRONT_SAYS="<html>Squid</html>") as proxy,
    ):
        tried: list[tuple[tuple[str, ...], int, str]] = [
            ((f"http://127.0.0.1:{free_port()}",), 3, "nobody answers there (Connection refused)"),
            ((f"https://localhost:{tls}",), 2, "its certificate cannot be verified"),
            ((f"https://localhost:{other}", "--ca-file", str(elsewhere.ca)), 2, "Hostname mismatch"),
            ((f"http://localhost:{tls}",), 2, "Is it https://?"),
            ((f"https://localhost:{plain}",), 2, "Is it http://?"),
            ((f"http://localhost:{proxy}",), 2, "neither Elasticsearch nor OpenSearch (a proxy?)"),
            ((sink.origin, "--ca-file", str(made.ca)), 2, "is it https://?"),
            (
                (f"https://localhost:{tls}", "--ca-file", str(made.ca.with_name("names"))),
                2,
                "does not contain a certificate",
            ),
            ((f"https://localhost:{tls}", "--ca-file", "nowhere.pem"), 2, "No such file"),
            ((f"http://me:{PASSWORD}@localhost:{plain}",), 2, "INGEST_BENCH_PASSWORD"),
        ]
        for arguments, exit_code, part in tried:
            code, said = ran(here, "--url", *arguments, *SHORT)
            assert (code, part in said, "Traceback" in said) == (exit_code, True, False), f"{arguments}: {said}"
            assert PASSWORD not in said
    with front(sink.origin, FRONT_WANTS=WANTED) as port:
        monkeypatch.setenv("INGEST_BENCH_USER", "me")
        monkeypatch.setenv("INGEST_BENCH_PASSWORD", "another")
        code, said = ran(here, "--url", f"http://localhost:{port}", *SHORT)
        assert code == 2, said
        assert "does not know who we are (401)" in said
    assert here.results == []
