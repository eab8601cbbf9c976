"""`ingest-bench run --url` as a process, against running servers: the sink, and OpenSearch."""

from __future__ import annotations

import base64
import json
import os
import re
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
from commands import Place, nothing_left
from running import free_port, running

from ingest_bench import system
from ingest_bench.documents import corpus
from ingest_bench.model.samples import SAMPLE
from ingest_bench.model.target import TargetOptions
from ingest_bench.targets.http import Http
from ingest_bench.targets.rpc_child import CqlNode

pytestmark = [pytest.mark.jvm, pytest.mark.processes]

CLOSED = ("--warm-up", "500ms", "--measure", "2s", "--set", "bulk_documents=100", "--out", "out")
SHORT = ("--set", "arrivals=50/s", *CLOSED)
# For the first load of a node.
LONGER = ("--warm-up", "4s", "--measure", "4s", *CLOSED[4:])
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
    """A node without indices: a failed test may have left some."""
    for index in indices(started_node):
        started_node.request_json("DELETE", f"/{index}")
    return started_node


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates.create_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def here() -> Iterator[Place]:
    with commands.place() as place:
        yield place


@contextmanager
def proxy(backend: str, certificate: Path | None = None, *clients: Path, **environment: str) -> Iterator[int]:
    """Yield the port of a proxy in front of a server."""
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


def run(place: Place, *arguments: str, exit_code: int = 0) -> str:
    """Run the command; a measured run has counted all acknowledged documents."""
    output = place.run(*arguments, exit_code=exit_code)
    if exit_code == 0:
        values = place.read_row()
        assert values["documents_counted"] == values["documents_acked"] != "0"
    return output


def create_index(node: Http, index: str) -> None:
    # With a replica the cluster would never be green.
    node.request_json("PUT", f"/{index}", b'{"settings":{"number_of_replicas":0}}')


def indices(node: Http) -> set[str]:
    return set(node.request_json("GET", "/_all/_settings"))


@pytest.mark.nightly
@pytest.mark.opensearch
def test_a_node_is_measured_and_nothing_is_left_in_it(node: Http, here: Place) -> None:
    create_index(node, "existing")
    (here.folder / "x.toml").write_text('probes = ["reads", "gc", "host"]\n[target]\nheap = "4g"\n')
    run(here, "x.toml", "--url", node.origin, "--set", "query_users=1", "--set", "arrivals=50/s", *LONGER)
    values = here.read_row()
    summary = json.loads((here.results[-1] / "summary.json").read_text())
    assert values["target"] == "opensearch 2.19.6"
    assert int(values["heap_bytes"]) == 512 << 20
    assert int(values["gc_young_collections"]) + int(values["gc_old_collections"]) >= 0
    assert int(values["direct_buffer_used_max_bytes"]) > 0
    assert values["reads"] == values["gc_pauses"] == values["server_cpu_s"] == ""
    assert "host" in str(summary)
    assert indices(node) == {"existing"}


@pytest.mark.nightly
@pytest.mark.opensearch
def test_the_bulk_example_prepares_counts_and_cleans_up(here: Place, node: Http) -> None:
    example = Path(__file__).parent.parent / "docs" / "custom-targets" / "bulk.toml"
    here.run("--target", str(example), "--url", node.origin, *LONGER)
    values = here.read_row()
    assert values["target"] == "bulk"
    assert values["documents_counted"] == values["documents_acked"] != "0"
    assert indices(node) == set()
    # An index of the user is neither used nor deleted.
    node.request_json("PUT", "/rides")
    output = here.run("--target", str(example), "--url", node.origin, *CLOSED, exit_code=3)
    assert re.search(
        r"failed: only/1: bulk: prepare: PUT http://\S+/rides got status 400: index \[rides.*already exists", output
    )
    assert indices(node) == {"rides"}


@pytest.mark.opensearch
def test_own_documents_get_a_new_index_and_the_refused_ones_are_quoted(node: Http, here: Place) -> None:
    create_index(node, "existing")
    text = "".join(f'{{"price": {price}, "at": "2026-11-29"}}\n' for price in range(99)) + '{"price": "n/a"}\n'
    (here.folder / "Orders (1).ndjson").write_text(text)
    run(here, "--url", node.origin, "--documents", "Orders (1).ndjson", *SHORT)
    values = here.read_row()
    assert int(values["documents_acked"]) == 99 * int(values["documents_failed"]) > 0
    (summary,) = json.loads((here.results[-1] / "summary.json").read_text())
    (note,) = [note["text"] for note in summary["notes"] if note["text"].startswith("refused documents: ")]
    assert f"{values['documents_failed']} x 400 mapper_parsing_exception: failed to parse field [price] of type" in note
    assert note.endswith('For input string: "n/a"')
    assert indices(node) == {"existing"}
    # An alias of that name leads to an index that the run did not create.
    name = corpus.index_name(Path("Orders (1).ndjson"))
    alias = {"actions": [{"add": {"index": "existing", "alias": name}}]}
    node.request_json("POST", "/_aliases", json.dumps(alias).encode())
    output = run(here, "--url", node.origin, "--documents", "Orders (1).ndjson", *SHORT, exit_code=2)
    assert f'there is an index "{name}" already; it is not touched' in output
    assert indices(node) == {"existing"}


@pytest.mark.nightly
def test_cassandra_is_found_by_its_pid_and_keeps_no_keyspace(tmp_path: Path, here: Place) -> None:
    options = TargetOptions(name="cassandra", version="5.0.9", heap_bytes=1 << 30)
    with running(tmp_path, options) as (http, process):
        place = ("--attach", str(process.jvm_pid)) if system.is_root() else ("--url", f"cassandra://{http.endpoint}")
        run(here, *place, *CLOSED)
        values = here.read_row()
        assert values["target"] == "cassandra 5.0.9"
        assert values["bytes_read"] in ("", values["bytes_sent"])
        node = CqlNode(http.endpoint.host, http.endpoint.port)
        keyspaces = b" ".join(
            name or b"" for (name,) in node._query("SELECT keyspace_name FROM system_schema.keyspaces")
        )
        node.close()
        assert b"system" in keyspaces
        assert b"ingest_bench" not in keyspaces


@pytest.mark.nightly
def test_a_server_behind_a_path_of_a_proxy_is_measured_there(sink: Http, here: Place) -> None:
    with proxy(sink.origin, FRONT_PREFIX="/search/a%20b") as port:
        url = f"http://127.0.0.1:{port}/search/a%20b"
        run(here, "--url", f"{url}/", *SHORT)
        assert "GET / got status 404" in run(here, "--url", url.removesuffix("b"), *SHORT, exit_code=2)


@pytest.mark.nightly
@pytest.mark.opensearch
def test_ctrl_c_leaves_no_index_and_the_rest_can_be_resumed(node: Http, here: Place) -> None:
    with nothing_left(), here.command("run", "--url", node.origin, "--out", "out", terminal=True) as command:
        command.until("load measure")
        assert indices(node) == {"nyc_taxis"}
        os.write(command.output_fd, commands.CTRL_C)
        assert command.end() == 130, command.text
    assert indices(node) == set()
    plan = here.results[0] / "plan.json"
    plan.write_text(plan.read_text().replace('"measure_ns": 20000000000', '"measure_ns": 1000000000'))
    run(here, "--resume", str(here.results[0]))
    assert here.read_row()["state"] == "measured"
    assert indices(node) == set()


STREAMS = Path(__file__).with_name("data") / "streams"
CREATED = ("_data_stream/logs-app", "_index_template/logs", "_component_template/logs-settings", "_template/old-rides")


@pytest.mark.nightly
@pytest.mark.opensearch
def test_other_objects_of_a_track_are_deleted_and_existing_ones_kept(node: Http, here: Place) -> None:
    track = ("--track", str(STREAMS), "--url", node.origin, "--allow-delete", "--out", "out")
    node.request_json("PUT", "/_ingest/pipeline/clean", b'{"description":"of another user","processors":[]}')
    output = run(here, *track, exit_code=2)

    assert here.results == []
    assert 'there is an ingest pipeline "clean" already; it is not touched' in output
    assert b"of another user" in node.request("GET", "/_ingest/pipeline/clean").body
    node.request_json("DELETE", "/_ingest/pipeline/clean")
    output = run(here, *track)
    assert indices(node) == set()
    for place in (*CREATED, "_ingest/pipeline/clean"):
        assert node.request("GET", f"/{place}").status == 404, place


@pytest.mark.nightly
def test_credentials_go_over_tls_and_into_no_file(
    sink: Http, issued: Certificates, here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGEST_BENCH_USER", "me")
    monkeypatch.setenv("INGEST_BENCH_PASSWORD", PASSWORD)
    secrets = (PASSWORD, WANTED.removeprefix("Basic "))
    with proxy(sink.origin, issued.server, FRONT_WANTS=WANTED) as port:
        url = ("--url", f"https://localhost:{port}", "--ca-file", str(issued.ca))
        with nothing_left(), here.command("run", *url, "--set", "query_users=1", *SHORT) as command:
            command.until("load measure")
            lines = commands.running(command)
            assert "ingest_bench.load.worker" in lines
            assert "http_child.py" in lines
            processes = psutil.process_iter(["cmdline"])
            command_lines = "\n".join(" ".join(process.info["cmdline"] or ()) for process in processes)
            assert command.end() == 0, command.text
        assert not [secret for secret in secrets if secret in command_lines + command.text]
        values = here.read_row()
        assert values["documents_counted"] == values["documents_acked"] != "0"
        assert int(values["queries"]) > 0
    files = [path for path in here.folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files for secret in secrets if secret.encode() in path.read_bytes()]


def test_running_server_that_requires_an_api_key_is_measured_as_it_is(
    sink: Http, here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGEST_BENCH_API_KEY", KEY)
    with proxy(sink.origin, FRONT_WANTS=f"ApiKey {KEY}") as port:
        run(here, "--url", f"http://localhost:{port}", *SHORT)
    values = here.read_row()
    assert (values["state"], values["network"]) == ("measured", "as-is")
    assert values["target"].startswith("sink 4.1.")
    assert values["sink_reads"] == values["mss"] == values["gc_pauses"] == ""
    assert not [path for path in here.folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


@pytest.mark.nightly
def test_a_load_uses_all_addresses_and_a_dead_one_is_named(sink: Http, here: Place) -> None:
    dead = f"127.0.0.1:{free_port()}"
    with proxy(sink.origin) as first, proxy(sink.origin) as second:
        urls = (f"http://127.0.0.1:{first}", f"http://{dead}", f"http://localhost:{second}")
        output = run(here, *(word for url in urls for word in ("--url", url)), "--set", "users=6", *CLOSED)
        assert f"{dead} does not respond: its part of the load goes to the others" in output
    (folder,) = here.results[-1].glob("*/1/load")
    report = json.loads((folder / "load.json").read_text())
    assert report["addresses"] == [f"127.0.0.1:{first}", dead, f"localhost:{second}"]
    assert any(f"connect to {dead}: Connection refused" in error for error in report["errors"])
    samples = np.fromfile(folder / "samples-0.bin", dtype=SAMPLE)
    assert set(samples["address"].tolist()) == {0, 2}
    # Two users began with each; the two of the dead one went on to the next.
    assert (samples["attempts"] > 1).sum() == 2


def test_the_addresses_of_two_clusters_are_refused(sink: Http, here: Place) -> None:
    other = json.dumps({"name": "sink", "receive": "1", "version": {"number": "1"}, "cluster_uuid": "another"})
    with proxy(sink.origin, FRONT_SAYS=other) as port:
        output = run(here, "--url", sink.origin, "--url", f"http://localhost:{port}", *SHORT, exit_code=2)
    assert f"localhost:{port}: it belongs to another cluster (another)" in output
    assert "begin with one scheme" in run(
        here, "--url", sink.origin, "--url", "https://localhost:9200", *SHORT, exit_code=2
    )


@pytest.mark.nightly
def test_a_client_certificate_is_sent_and_its_key_is_written_nowhere(
    sink: Http, issued: Certificates, here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = issued.client()
    late, late_key = issued.client("late", days=-1)
    locked = key.with_name("locked.key")
    subprocess.run(
        ["openssl", "rsa", "-aes256", "-passout", "pass:secret", "-in", key, "-out", locked],
        check=True,
        capture_output=True,
        timeout=60,
    )
    with proxy(sink.origin, issued.server, issued.ca) as port:
        url = ("--url", f"https://localhost:{port}", "--ca-file", str(issued.ca))
        for arguments, part in (
            ((), "it requires a client certificate: --client-cert and --client-key"),
            (("--client-cert", str(cert)), "client_key"),
            (("--client-cert", str(cert), "--client-key", "nowhere.key"), "nowhere.key cannot be read"),
            (("--client-cert", str(cert), "--client-key", str(late_key)), "they do not belong together"),
            (("--client-cert", str(cert), "--client-key", str(issued.ca)), "both must be PEM files"),
            (("--client-cert", str(cert), "--client-key", str(locked)), "has a passphrase"),
            (("--client-cert", str(late), "--client-key", str(late_key)), "it refuses our client certificate"),
        ):
            output = run(here, *url, *arguments, *SHORT, exit_code=2)
            # The server's alert is lost if the connection is reset after it.
            is_lost = part.startswith("it ") and "it ended TLS without a response" in output
            assert part in output or is_lost, f"{arguments}: {output}"
        assert here.results == []
        output = run(here, *url, "--client-cert", str(cert), "--client-key", str(key), *SHORT)
        monkeypatch.setenv("INGEST_BENCH_CLIENT_CERT", str(cert))
        assert "INGEST_BENCH_CLIENT_KEY is not set" in run(here, *url, *SHORT, exit_code=2)
        monkeypatch.setenv("INGEST_BENCH_CLIENT_KEY", str(key))
        output = run(here, *url, *SHORT)
    secret = key.read_bytes().splitlines()[3]
    files = [path for path in here.folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if secret in path.read_bytes()]


@pytest.mark.nightly
def test_problems_of_a_url_are_reported_before_the_start(
    sink: Http, issued: Certificates, here: Place, tmp_path: Path
) -> None:
    plain = sink.origin.rpartition(":")[2]
    elsewhere = certificates.create_certificates(tmp_path, "DNS:elsewhere.example")
    with (
        proxy(sink.origin, issued.server) as tls,
        proxy(sink.origin, elsewhere.server) as other,
    ):
        tried: list[tuple[tuple[str, ...], int, str]] = [
            ((f"http://127.0.0.1:{free_port()}",), 3, "(Connection refused)"),
            ((f"https://localhost:{tls}",), 2, "its certificate cannot be verified"),
            ((f"https://localhost:{other}", "--ca-file", str(elsewhere.ca)), 2, "Hostname mismatch"),
            ((f"http://localhost:{tls}",), 2, "Is it https://?"),
            ((f"https://localhost:{plain}",), 2, "Is it http://?"),
            ((sink.origin, "--ca-file", str(issued.ca)), 2, "Give an https:// URL"),
            (
                (f"https://localhost:{tls}", "--ca-file", str(issued.ca.with_name("names"))),
                2,
                "it holds no certificate",
            ),
        ]
        for arguments, exit_code, part in tried:
            output = run(here, "--url", *arguments, *SHORT, exit_code=exit_code)
            assert part in output, f"{arguments}: {output}"
    assert here.results == []
