"""`ingest-bench run --target FILE` as a process: a Jetty, and wrong descriptions of it."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import certificates
import commands
import pytest
from commands import Place
from running import free_port, running
from servers import launched, visible

from ingest_bench import targets
from ingest_bench.experiment import spec
from ingest_bench.model.target import Endpoint
from ingest_bench.probes import recording
from ingest_bench.targets.base import NodeStart

pytestmark = [pytest.mark.jvm, pytest.mark.netns, pytest.mark.processes]

EXAMPLE = Path(__file__).parent.parent / "docs" / "custom-targets"
SHORT = (
    *("--set", "network=ethernet", "--set", "arrivals=50/s"),
    *("--warm-up", "500ms", "--measure", "2s", "--set", "bulk_documents=100", "--out", "out"),
)
NOWHERE = Endpoint("127.0.0.1", 1)


@pytest.fixture(scope="module", autouse=True)
def _cache() -> None:
    """Fetch what only root can fetch."""
    commands.fill_cache()
    options = spec.build_target({"file": str(EXAMPLE / "jetty.toml")}, "target")
    recording.reader_command(targets.fetch(targets.resolve(options).requirements(options)))


@pytest.fixture
def here() -> Iterator[Place]:
    with commands.place() as place:
        yield place


def write_example(place: Place, *changes: tuple[str, str]) -> str:
    """Write the example into the folder, with replacements."""
    text = (EXAMPLE / "jetty.toml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    source = (EXAMPLE / "JettyEvents.java").read_text()
    (place.folder / "JettyEvents.java").write_text(source)
    (place.folder / "mine.toml").write_text(text)
    return "mine.toml"


@pytest.mark.nightly
def test_a_jetty_behind_a_shaped_link_is_measured(here: Place) -> None:
    here.run("--target", write_example(here), *SHORT[2:], "--set", "network=ethernet-100m")
    values = here.read_row()
    (record,) = (json.loads(path.read_text()) for path in here.results[-1].glob("*/1/run.json"))
    assert (values["state"], values["target"], values["documents_check"]) == ("measured", "mine", "counted")
    assert values["documents_counted"] == values["documents_acked"] != "0"
    assert values["bytes_read"] == values["bytes_sent"] != "0"
    assert int(values["reads"]) > 0
    assert float(values["docs_per_s_mean"]) > 0
    assert int(values["heap_bytes"]) == 256 << 20
    assert values["gc_collector"] == "g1"
    assert all(check["passed"] for check in record["link_checks"])


PROBED = """
probes = ["reads", "gc"]
costly_probes = ["allocations"]
[load]
workload = "nyc_taxis"
users = 4
"""
CHEAP = ("tomcat", "undertow")
NIGHTLY = ("flume", "helidon", "jetty-pool", "solr", "vertx", "vertx-body", "webflux")


@pytest.mark.parametrize(
    "name",
    [
        *CHEAP,
        *(pytest.param(name, marks=pytest.mark.nightly) for name in NIGHTLY),
    ],
)
def test_a_server_by_others_is_measured(here: Place, name: str) -> None:
    (here.folder / "probed.toml").write_text(PROBED)
    target = str(EXAMPLE / f"{name}.toml")
    # A closed loop, on a link that a busy machine can fill.
    here.run("probed.toml", "--target", target, *SHORT[4:], "--set", "network=ethernet-100m")
    with (here.results[-1] / "summary.csv").open(encoding="utf-8") as file:
        plain, probed = sorted(csv.DictReader(file), key=lambda row: row["instrumented"])
    for values in (plain, probed):
        assert (values["state"], values["documents_check"]) == ("measured", "counted")
        assert values["documents_counted"] == values["documents_acked"] != "0"
        assert values["bytes_read"] == values["bytes_sent"] != "0"
    # Its network layer is one of those that are known.
    assert int(probed["tlab_network_bytes"]) >= 0


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "window_bytes"), [("jetty-http2", 524_288), ("vertx", 65_535)])
def test_a_server_is_measured_over_http2(here: Place, name: str, window_bytes: int) -> None:
    text = 'probes = ["reads"]\n[load]\nworkload = "nyc_taxis"\nusers = 4\nhttp_version = "2"\nbulk = "1MB"\n'
    (here.folder / "http2.toml").write_text(text)
    options = ("--target", str(EXAMPLE / f"{name}.toml"), "--set", "network=ethernet-100m")
    here.run("http2.toml", *options, *SHORT[4:8], *SHORT[-2:])
    values = here.read_row()
    assert (values["state"], values["documents_check"]) == ("measured", "counted")
    assert values["documents_counted"] == values["documents_acked"] != "0"
    assert values["bytes_read"] == values["bytes_sent"] != "0"
    # A body is larger than the window.
    assert int(values["window_stalls"]) > 0
    assert int(values["server_stream_window_bytes"]) == window_bytes


@pytest.mark.nightly
@pytest.mark.parametrize("program", ["java", "exec java"])
def test_a_command_may_start_the_jvm_or_become_it(here: Place, program: str) -> None:
    # A start script with the classpath of the example.
    options = spec.build_target({"file": str(here.folder / write_example(here))}, "target")
    target = targets.resolve(options)
    java = targets.fetch(target.requirements(options))
    argv = target.launch_plan(NodeStart(options, java, here.folder / "home", 0, (NOWHERE,))).argv
    classpath = argv[argv.index("-cp") + 1]
    script = here.folder / "run.sh"
    script.write_text(f'#!/bin/sh\n{program} -cp "{classpath}" JettyEvents "$1" "$2"\n')
    script.chmod(0o755)
    here.folder.chmod(0o755)
    text = (EXAMPLE / "jetty.toml").read_text()
    before, _, after = text.partition("[start]")
    after = after[after.index("[ready]") :]
    start = '[start]\ncommand = ["./run.sh", "{host}", "{port}"]\n'
    (here.folder / "script.toml").write_text(before + start + after)
    here.run("--target", "script.toml", *SHORT, "--set", "heap=128m")
    values = here.read_row()
    assert values["documents_counted"] == values["documents_acked"] != "0"
    assert values["bytes_read"] == values["bytes_sent"] != "0"
    assert int(values["heap_after_gc_max_bytes"]) <= 128 << 20
    # A JVM without the options is refused.
    script.write_text(script.read_text().replace(program, "env -u JDK_JAVA_OPTIONS java"))
    assert 'its output has no "NOTE: Picked up JDK_JAVA_OPTIONS"' in here.run(
        "--target", "script.toml", *SHORT, exit_code=3
    )


@pytest.mark.nightly
def test_a_running_custom_target_is_measured(here: Place, tmp_path: Path) -> None:
    options = spec.build_target({"file": str(here.folder / write_example(here))}, "target")
    with running(tmp_path, options) as (http, process):
        for options_of_run in (("--url", http.origin), ("--attach", str(process.jvm_pid), "--url", http.origin)):
            here.run("--target", "mine.toml", *options_of_run, *SHORT[2:])
            values = here.read_row()
            # Documents of the first run are not part of the second one.
            assert values["documents_counted"] == values["documents_acked"] != "0"
            assert (values["network"], values["target"]) == ("as-is", "mine")
        assert values["bytes_read"] == values["bytes_sent"]


@pytest.mark.nightly
def test_counts_of_two_servers_are_added(here: Place, tmp_path: Path) -> None:
    options = spec.build_target({"file": str(here.folder / write_example(here))}, "target")
    with visible(), ExitStack() as stack:
        servers = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            endpoint = Endpoint("127.0.0.1", free_port())
            servers.append(stack.enter_context(launched(options, (endpoint,), tmp_path / name))[0])
        urls = [word for http in servers for word in ("--url", http.origin)]
        here.run("--target", "mine.toml", *urls, *SHORT[2:])
        stored = [http.request("GET", "/count").json()["documents"]["stored"] for http in servers]
    values = here.read_row()
    assert all(stored)
    assert str(sum(stored)) == values["documents_counted"] == values["documents_acked"]


TLS = """
[protocol]
name = "json-array"
format = "lines"
path = "/"
[start]
source = "TlsEvents.java"
arguments = ["{host}", "{port}", "{folder}/keys.p12"]
tls = {ca_file = "ca.pem", name = "events.example"}
[ready]
path = "/"
[count]
path = "/"
json = "stored"
"""


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes the certificates, is not installed")
def test_a_launched_server_is_spoken_to_over_tls_under_its_name(here: Place) -> None:
    issued = certificates.create_certificates(here.folder, "DNS:events.example")
    keys = here.folder / "keys.p12"
    argv = ("openssl", "pkcs12", "-export", "-in", str(issued.server), "-out", str(keys), "-passout", "pass:secret")
    subprocess.run(argv, check=True, capture_output=True)
    keys.chmod(0o644)
    here.folder.chmod(0o755)
    shutil.copy(Path(__file__).parent / "java" / "TlsEvents.java", here.folder)
    (here.folder / "tls.toml").write_text(TLS)
    here.run("--target", "tls.toml", *SHORT)
    values = here.read_row()
    assert values["documents_counted"] == values["documents_acked"] != "0"
    # With the handshakes and the frames of records.
    assert int(values["bytes_read"]) > int(values["bytes_sent"]) > 0
    (here.folder / "tls.toml").write_text(TLS.replace("events.example", "other.example"))
    here.run("--target", "tls.toml", *SHORT, exit_code=3)
    (record,) = (json.loads(path.read_text()) for path in here.results[-1].glob("*/1/run.json"))
    assert record["reason"].startswith(
        "tls: start: tls: ca.pem does not verify the server's certificate for the name other."
    )
    assert "Hostname mismatch" in record["reason"]


@pytest.mark.nightly
def test_documents_that_are_acknowledged_and_not_stored_are_an_error(here: Place) -> None:
    # It responds with 200 to any path, and stores nothing.
    target = write_example(here, ('path = "/events"', 'path = "/elsewhere"'))
    assert "acknowledged, 0 counted" in here.run("--target", target, *SHORT, exit_code=3)
