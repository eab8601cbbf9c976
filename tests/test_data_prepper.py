"""A Data Prepper of the user's own: what its nodes are told, what they say, and what a real one loses."""

from __future__ import annotations

import json
import os
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_forwarder import number
from test_run import carried_out

from ingest_bench import targets
from ingest_bench.analysis.run import delivery
from ingest_bench.documents.body import Body
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.experiment import catalog
from ingest_bench.jvm.java import Java
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.results import RunRecord, Summary
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.network.plan import places
from ingest_bench.protocols.json_array import JsonArray
from ingest_bench.protocols.verdict import Answer
from ingest_bench.targets import counting
from ingest_bench.targets.data_prepper import DataPrepper, account
from ingest_bench.targets.server_capabilities import capabilities

# A whole one, unpacked; no package has it.
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
# A forwarded batch is never smaller than what a peer has room for.
TOO_LARGE = """
batch_delay = "100ms"
delay = "100ms"
buffer_size = "100"
forwarding_batch_size = "500"
forwarding_batch_timeout = "1s"
"""


def home(folder: Path, version: str = "2.15.0") -> Path:
    """What is looked at of a distribution."""
    made = folder / "data-prepper"
    for file in ("bin/data-prepper", f"lib/data-prepper-main-{version}.jar", "config/log4j2-rolling.properties"):
        (made / file).parent.mkdir(parents=True, exist_ok=True)
        (made / file).touch()
    return made


def asked(**setting: str) -> TargetOptions:
    return TargetOptions(name="data-prepper", nodes=2, setting=setting)


def test_a_node_is_started_as_its_own_script_does_with_what_was_asked_for_in_its_files(tmp_path: Path) -> None:
    installed = home(tmp_path)
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
    assert targets.of(options).requirements(options).java_version == 17
    java = Java(home=tmp_path / "java", version=17, source="a test")
    nodes = (Endpoint("198.18.0.1", 2021), Endpoint("198.18.1.1", 2021))
    plan = DataPrepper().launch_plan(options, java, tmp_path / "node", 1, nodes, ("-Dours=1",))
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


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({}, 'data-prepper needs the home that you give: where its archive is unpacked, such as home = "/opt/'),
        ({"home": "data-prepper"}, "target.setting.home: 'data-prepper' is no absolute path"),
        ({"home": "/nowhere"}, "target.setting.home: /nowhere is no home of Data Prepper: /nowhere/lib cannot be read"),
        ({"batch_delay": "1500us"}, "target.setting.batch_delay: '1500us' is no whole number of milliseconds"),
        ({"forwarding_batch_size": "15001"}, "target.setting.forwarding_batch_size: '15001' is not between 1 and"),
        ({"waiting": "blocking"}, 'target.setting: data-prepper has no "waiting"'),
    ],
)
def test_what_it_cannot_have_is_one_sentence(setting: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError) as refused:
        targets.of(asked()).requirements(asked(**setting))
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("version", ["1.5.1", "2.0.1", "3.0.0"])
def test_another_version_than_those_whose_settings_are_known_is_refused(tmp_path: Path, version: str) -> None:
    installed = home(tmp_path, version)
    with pytest.raises(SpecError, match=f"has Data Prepper {version}; give one of 2.1 or later, before 3"):
        DataPrepper().requirements(asked(home=str(installed)))


def test_a_folder_without_its_jar_and_one_with_two_of_them_are_no_home(tmp_path: Path) -> None:
    installed = home(tmp_path)
    (installed / "lib" / "data-prepper-main-2.16.0.jar").touch()
    with pytest.raises(SpecError, match=r"lib/data-prepper-main-\*\.jar cannot be read \(2 of them are there\)"):
        DataPrepper().requirements(asked(home=str(installed)))
    for jar in installed.joinpath("lib").iterdir():
        jar.unlink()
    with pytest.raises(SpecError, match=r"\(0 of them are there\)"):
        DataPrepper().requirements(asked(home=str(installed)))


def test_its_nodes_get_no_address_that_it_takes_for_its_own() -> None:
    listens = DataPrepper().listens(asked())
    for ends in (places.to_node(2, seen_as_local=listens.seen_as_local), places.between(1, 2, seen_as_local=False)):
        assert ip_address(ends.server_address) in ip_network("198.18.0.0/15")
        assert ends.server_address == "198.19.2.2"
    assert ip_address(places.node_address(2)).is_loopback


def test_doctor_says_that_it_needs_a_home() -> None:
    (line,) = capabilities({"data-prepper": DataPrepper()})
    assert not line.present
    assert "data-prepper needs the home that you give" in line.detail


# 400 documents: 190 of its own, 210 for the peer. Of these 10 found no room in the queue, 100 were taken, 60 refused
# and then taken back, 40 refused and dropped. 130 came from the peer.
SAID = """
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


def test_what_it_dropped_and_what_is_inside_follow_from_its_metrics() -> None:
    found = account.of(counting.totals(SAID), delivered=380)
    told = {name: found[name] for name in ("accepted", "delivered", "dropped", "inside", "unsure", "returned")}
    assert told == {"accepted": 400, "delivered": 380, "dropped": 40, "inside": 10, "unsure": 30, "returned": 70}
    queued = account.of(
        counting.totals(SAID.replace('Forwarded_total{serviceName="dataprepper",} 210', "Forwarded_total{} 230")), 0
    )
    assert queued["inside"] == 30


def test_counts_without_seconds_are_columns_and_rates_are_none() -> None:
    record = RunRecord(
        run="only/1",
        replicate=1,
        cell="only",
        levels={},
        state="measured",
        counters={**account.of(counting.totals(SAID), delivered=380)},
        server={"workers": 1, "batch_delay_ns": 100_000_000},
    )
    assert delivery.own(record, 2, 0, 10**10) == {
        "forwards_cap_per_s": 20,
        "forwarded_documents": 100,
        "dropped_documents": 40,
        "returned_documents": 70,
        "forwards_failed": 0,
    }


def test_after_a_408_nobody_knows_and_a_body_that_is_too_large_was_not_taken() -> None:
    wire = DataPrepper().wire(asked(), catalog.workload("geonames"))
    protocol = JsonArray.on(wire, "", LoadOptions())
    body = Body(b"[{}]", 1, sizes=np.array([4]))

    def judged(status: int) -> tuple[int, int]:
        found = protocol.judge(Answer(status, b"", 0, 0), body)
        return found.acked, found.failed

    assert [judged(status) for status in (200, 408, 413)] == [(1, 0), (0, 0), (0, 1)]


def test_its_sink_is_read_back_by_the_numbers_in_front(tmp_path: Path) -> None:
    sink = tmp_path / "delivered.ndjson"
    sink.write_text(
        '{"traceId":"0000000003","traceId2":1}\n{"traceId":"0000000000"}\n{"traceId":"0000000003","a":{}}\n'
    )
    node: Any = SimpleNamespace(home=tmp_path)
    back = delivery.read([account.delivered(node)])
    assert [*back.delivered.nonzero()[0]] == [0, 3]
    assert [*back.again.nonzero()[0]] == [3]
    sink.write_text('{"traceId":"0000000003"}\n{"other":1}\n')
    with pytest.raises(RunFailed, match="has no number of ours in front"):
        account.delivered(node)


def run(folder: Path, settings: str) -> Summary:
    if not REAL:
        pytest.skip("INGEST_BENCH_DATA_PREPPER_HOME names no Data Prepper")
    _, (found,) = carried_out(folder, TWO.format(home=REAL, settings=settings))
    assert found.state == "measured", found.reason
    names = ("delivered_documents", "inside_documents", "lost_documents")
    assert sum(number(found, name) for name in names) == number(found, "documents_acked") > 1000
    return found


# Without markers that are promised: no machine has it by itself.
@pytest.mark.data_prepper
def test_with_batches_that_fit_a_real_one_delivers_each_document_once(tmp_path: Path) -> None:
    found = run(tmp_path, FITS)
    assert number(found, "forwarded_documents") > 0
    for column in ("lost_documents", "delivered_twice", "dropped_documents"):
        assert number(found, column) == 0


@pytest.mark.data_prepper
def test_a_real_one_drops_what_a_peer_has_no_room_for_and_the_row_says_so(tmp_path: Path) -> None:
    found = run(tmp_path, TOO_LARGE)
    assert number(found, "lost_documents") == number(found, "dropped_documents") > 0
    assert any("acknowledged documents are lost" in remark.text for remark in found.remarks)
