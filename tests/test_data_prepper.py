"""Target `data-prepper`: configuration, accounts of documents, and losses of a real installation."""

from __future__ import annotations

import json
import os
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_run import carried_out, number

from ingest_bench import targets
from ingest_bench.analysis.run import delivery
from ingest_bench.documents.body import Body
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.experiment import catalog
from ingest_bench.jvm.java import Java
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import LinkName
from ingest_bench.model.results import Summary
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.network.plan import link_plan
from ingest_bench.protocols.json_array import JsonArray
from ingest_bench.protocols.response import Response
from ingest_bench.targets import counting, data_prepper
from ingest_bench.targets.base import NodeStart, check_targets
from ingest_bench.targets.data_prepper import DataPrepper

# The folder of an installation; no package has it.
REAL = os.environ.get("INGEST_BENCH_DATA_PREPPER_HOME", "")
TWO = """
probes = []
[target]
name = "data-prepper"
nodes = 2
heap = "256m"
[target.setting]
home = "{home}"
{settings}
[load]
workload = "geonames"
users = 2
bulk_documents = 100
warm_up = "1s"
measure = "3s"
"""
FITS = """
batch_delay = "100ms"
delay = "100ms"
batch_size = "500"
buffer_size = "20000"
forwarding_batch_size = "500"
forwarding_batch_timeout = "100ms"
"""
# A forwarded batch never fits into the buffer of a peer.
TOO_LARGE = """
batch_delay = "100ms"
delay = "100ms"
buffer_size = "100"
forwarding_batch_size = "500"
forwarding_batch_timeout = "1s"
"""


def make_home(folder: Path, version: str = "2.15.0") -> Path:
    """Make the files of a distribution that are checked."""
    home = folder / "data-prepper"
    for file in ("bin/data-prepper", f"lib/data-prepper-main-{version}.jar", "config/log4j2-rolling.properties"):
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).touch()
    return home


def data_prepper_options(**setting: str) -> TargetOptions:
    return TargetOptions(name="data-prepper", nodes=2, setting=setting)


def test_a_node_is_started_with_the_chosen_settings_in_its_files(tmp_path: Path) -> None:
    installed = make_home(tmp_path)
    options = TargetOptions(
        name="data-prepper",
        nodes=2,
        setting={
            "home": str(installed),
            "batch_delay": "20ms",
            "forwarding_batch_timeout": "1s",
            "workers": "5",
            "bounded_blocking.buffer_size": "300",
        },
    )
    assert targets.resolve(options).requirements(options).java_version == 17
    java = Java(home=tmp_path / "java", version=17, source="test")
    nodes = (Endpoint("198.18.0.1", 2021), Endpoint("198.18.1.1", 2021))
    plan = DataPrepper().launch_plan(NodeStart(options, java, tmp_path / "node", 1, nodes, ("-Dours=1",)))
    main = plan.argv.index("org.opensearch.dataprepper.DataPrepperExecute")
    pipelines, configuration = (json.loads(Path(file).read_text()) for file in plan.argv[main + 1 :])
    assert plan.argv[main - 2 : main] == ("-cp", f"{installed}/lib/*")
    assert {"-Dours=1", f"-Ddata-prepper.dir={installed}"} < set(plan.argv)
    assert installed / "lib" / "data-prepper-main-2.15.0.jar" in plan.readable
    forwarder = configuration["peer_forwarder"]
    assert forwarder["static_endpoints"] == ["198.18.0.1", "198.18.1.1"]
    assert (forwarder["batch_delay"], forwarder["forwarding_batch_timeout"]) == (20, "1000ms")
    assert (forwarder["batch_size"], forwarder["buffer_size"], forwarder["forwarding_batch_size"]) == (48, 512, 1500)
    assert forwarder["client_timeout"] == 60_000
    (pipeline,) = pipelines.values()
    assert (pipeline["workers"], pipeline["delay"]) == (5, 3000)
    assert pipeline["buffer"] == {"bounded_blocking": {"buffer_size": 300, "batch_size": 200}}
    assert pipeline["sink"] == [{"file": {"path": str(tmp_path / "node" / "delivered.ndjson")}}]


@pytest.mark.parametrize("version", ["1.5.1", "2.0.1", "3.0.0"])
def test_an_unsupported_version_is_refused(tmp_path: Path, version: str) -> None:
    installed = make_home(tmp_path, version)
    with pytest.raises(SpecError, match=f"has Data Prepper {version}; give one of 2.1 or later, before 3"):
        DataPrepper().requirements(data_prepper_options(home=str(installed)))


def test_a_home_must_have_exactly_one_main_jar(tmp_path: Path) -> None:
    installed = make_home(tmp_path)
    (installed / "lib" / "data-prepper-main-2.16.0.jar").touch()
    for jars in (2, 0):
        message = rf"lib/data-prepper-main-\*\.jar cannot be read \(found {jars} instead of one\)"
        with pytest.raises(SpecError, match=message):
            DataPrepper().requirements(data_prepper_options(home=str(installed)))
        for jar in installed.joinpath("lib").iterdir():
            jar.unlink()


def test_nodes_get_no_loopback_addresses() -> None:
    listens = DataPrepper().listens(data_prepper_options())
    for ends in (
        link_plan.cluster_link_names(LinkName((2,)), in_loopback_range=listens.accepts_loopback_peers),
        link_plan.cluster_link_names(LinkName((1, 2)), in_loopback_range=False),
    ):
        assert ip_address(ends.server_address) in ip_network("198.18.0.0/15")
        assert ends.server_address == "198.19.2.2"
    assert ip_address(link_plan.node_address(2)).is_loopback


def test_doctor_reports_a_missing_home() -> None:
    (line,) = check_targets({"data-prepper": DataPrepper()})
    assert not line.present
    assert "data-prepper requires the folder" in line.detail


# 400 documents: 190 of its own, 210 for the peer. Of these, 10 did not fit into the queue, 100 were accepted, 60 were
# refused and returned, 40 were refused and dropped. 130 came from the peer.
METRICS = """
# TYPE ingest_BlockingBuffer_recordsWritten_total counter
ingest_BlockingBuffer_recordsWritten_total{serviceName="dataprepper",} 400.0
ingest_BlockingBuffer_recordsInBuffer{serviceName="dataprepper",} 7.0
core_peerForwarder_recordsToBeForwarded_total{serviceName="dataprepper",} 210.0
core_peerForwarder_recordsToBeProcessedLocally_total{serviceName="dataprepper",} 190.0
core_peerForwarder_recordsActuallyProcessedLocally_total{serviceName="dataprepper",} 260.0
core_peerForwarder_recordsSuccessfullyForwarded_total{serviceName="dataprepper",} 100.0
core_peerForwarder_recordsFailedForwarding_total{serviceName="dataprepper",} 110.0
core_peerForwarder_recordsReceivedFromPeers_total{serviceName="dataprepper",} 130.0
core_peerForwarder_ingest_trace_peer_forwarder_recordsInBuffer{serviceName="dataprepper",} 3.0
"""


def test_documents_are_accounted_for_by_metrics() -> None:
    account = data_prepper.account_documents(counting.sum_metrics(METRICS), delivered=380)
    values = {name: account[name] for name in ("accepted", "delivered", "dropped", "inside", "unsure", "returned")}
    assert values == {"accepted": 400, "delivered": 380, "dropped": 40, "inside": 10, "unsure": 30, "returned": 70}
    queued = data_prepper.account_documents(
        counting.sum_metrics(
            METRICS.replace('Forwarded_total{serviceName="dataprepper",} 210', "Forwarded_total{} 230")
        ),
        0,
    )
    assert queued["inside"] == 30


def test_documents_are_unknown_after_a_408_and_refused_after_a_413() -> None:
    wire = DataPrepper().wire(data_prepper_options(), catalog.load_workload("geonames"))
    protocol = JsonArray.from_options(wire, "", LoadOptions())
    body = Body(b"[{}]", 1, sizes=np.array([4]))

    def judge(status: int) -> tuple[int, int]:
        verdict = protocol.judge(Response(status, b"", 0, 0), body)
        return verdict.acked, verdict.failed

    assert [judge(status) for status in (200, 408, 413)] == [(1, 0), (0, 0), (0, 1)]


def test_the_sink_is_read_back_by_document_numbers(tmp_path: Path) -> None:
    sink = tmp_path / "delivered.ndjson"
    sink.write_text(
        '{"traceId":"0000000003","traceId2":1}\n{"traceId":"0000000000"}\n{"traceId":"0000000003","a":{}}\n'
    )
    node: Any = SimpleNamespace(home=tmp_path)
    back = delivery.parse_delivered(DataPrepper().read_delivered([node]))
    assert [*back.delivered.nonzero()[0]] == [0, 3]
    assert [*back.repeated.nonzero()[0]] == [3]
    sink.write_text('{"traceId":"0000000003"}\n{"other":1}\n')
    with pytest.raises(RunFailed, match="does not begin with our number"):
        DataPrepper().read_delivered([node])


def run(folder: Path, settings: str) -> Summary:
    if not REAL:
        pytest.skip("INGEST_BENCH_DATA_PREPPER_HOME names no Data Prepper")
    _, (summary,) = carried_out(folder, TWO.format(home=REAL, settings=settings))
    assert summary.state == "measured", summary.reason
    names = ("delivered_documents", "pending_documents", "lost_documents")
    assert sum(number(summary, name) for name in names) == number(summary, "documents_acked") > 1000
    return summary


# With a marker of its own: no machine has an installation by default.
@pytest.mark.data_prepper
def test_batches_that_fit_are_delivered_once(tmp_path: Path) -> None:
    summary = run(tmp_path, FITS)
    assert number(summary, "forwarded_documents") > 0
    for column in ("lost_documents", "delivered_twice", "dropped_documents"):
        assert number(summary, column) == 0


@pytest.mark.data_prepper
def test_batches_that_do_not_fit_are_dropped_and_reported(tmp_path: Path) -> None:
    summary = run(tmp_path, TOO_LARGE)
    assert number(summary, "lost_documents") == number(summary, "dropped_documents") > 0
    assert any("acknowledged documents are lost" in note.text for note in summary.notes)
