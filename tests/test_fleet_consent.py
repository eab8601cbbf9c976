"""Consent of a worker: its credentials go to the servers that it names, its files of a load to `run`."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import unpatched_locust  # noqa: F401 - before Locust
from test_load_process import plan_for

from ingest_bench.errors import RunFailed
from ingest_bench.inputs.records import to_json
from ingest_bench.inputs.urls import parse_url
from ingest_bench.lab.server import remote_observer
from ingest_bench.load.fleet.transfer import Observed, find_fault
from ingest_bench.load.fleet.worker import FleetMember, allow_credentials
from ingest_bench.load.plan import LoadPlan
from ingest_bench.model.network import LinkCheck, PortRange, Profile, RealInterface
from ingest_bench.model.target import Endpoint, ServerAddress, Tls

HERE = Endpoint("127.0.0.1", 9200)
URL, NAMED = parse_url("https://127.0.0.1:9200"), parse_url("https://localhost:9200")
RUNS = Tls(name="127.0.0.1", ca_pem="the CA of the run")


def plan(tmp_path: Path, **changes: Any) -> LoadPlan:
    headers = changes.pop("headers", {})
    server = ServerAddress(**{"endpoint": HERE, "has_credentials": True, "tls": RUNS, **changes})
    return dataclasses.replace(plan_for(HERE, tmp_path), headers=headers, server=server)


def test_ca_host_and_certificate_name_are_the_workers_own(tmp_path: Path) -> None:
    requested = plan(
        tmp_path,
        other_addresses=(ServerAddress(endpoint=HERE, tls=Tls(name="thief", ca_pem="thief", client_cert="/file")),),
    )
    allowed = allow_credentials(requested, NAMED, "the CA of the worker")
    assert allowed.server_addresses == (
        dataclasses.replace(
            requested.server,
            host_header="localhost:9200",
            tls=Tls(name="localhost", ca_pem="the CA of the worker"),
            other_addresses=allowed.server_addresses[1:],
        ),
        ServerAddress(
            endpoint=HERE,
            host_header="localhost:9200",
            tls=Tls(name="localhost", ca_pem="the CA of the worker", client_cert="/file"),
        ),
    )
    assert allow_credentials(requested, URL, "").server.tls == Tls(name="127.0.0.1")


def test_without_a_url_credentials_go_nowhere(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"this worker may not send its own. .*--credentials-to"):
        allow_credentials(plan(tmp_path), None, "")


def test_headers_that_the_run_adds_are_dropped(tmp_path: Path) -> None:
    assert allow_credentials(plan(tmp_path, headers={"host": "thief"}), URL, "").headers == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"host_header": "thief.example:9200"},
        {"host_header": "localhost:9200"},
        {"tls": None},
        {"endpoint": Endpoint("127.0.0.1", 9201)},
        {"endpoint": Endpoint("127.0.0.2", 9200)},
        {"resolver": Endpoint("127.0.0.1", 53)},
        {"other_addresses": (ServerAddress(endpoint=Endpoint("127.0.0.2", 9200), tls=RUNS),)},
        {"other_addresses": (ServerAddress(endpoint=HERE, tls=RUNS, host_header="thief.example:9200"),)},
    ],
)
def test_credentials_go_to_no_other_server(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(RunFailed, match=r"this worker sends its credentials to https://127\.0\.0\.1:9200 only"):
        allow_credentials(plan(tmp_path, **changes), URL, "")


def test_http_url_allows_no_tls_and_https_url_no_plain_http(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="the load goes to https://"):
        allow_credentials(plan(tmp_path), parse_url("http://127.0.0.1:9200"), "")
    with pytest.raises(RunFailed, match="the load goes to http://"):
        allow_credentials(plan(tmp_path, tls=None), URL, "")


def test_a_worker_without_a_client_certificate_names_the_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("INGEST_BENCH_CLIENT_CERT", "INGEST_BENCH_CLIENT_KEY"):
        monkeypatch.delenv(name, raising=False)
    options: Any = SimpleNamespace(credentials_to=URL, ca_pem="")
    requested = plan(tmp_path, tls=dataclasses.replace(RUNS, client_cert="/file"))
    with pytest.raises(RunFailed, match=r"names none\. Set INGEST_BENCH_CLIENT_CERT and INGEST_BENCH_CLIENT_KEY"):
        FleetMember(options, tmp_path, print)._accept_plan(requested, {})


def test_an_observer_shapes_only_what_its_machine_allows() -> None:
    link = RealInterface(name="eth1", port=(PortRange(9200, 9200),))
    request = remote_observer._Request(
        run=1, raw=Path("raw"), probes=(), limit_s=5, is_profiling=False, profile=Profile(name="p"), endpoint=HERE
    )
    with remote_observer._shape(request, "eth1") as path:
        assert path is None
    for changes in ({"name": "eth0"}, {"port": ()}, {"interface_mtu": True}, {"shared_settings": True}):
        changed = dataclasses.replace(request, link=dataclasses.replace(link, **changes))
        with pytest.raises(RunFailed, match="may not be shaped like this on this machine; --may-shape allows 'eth1'"):
            remote_observer._shape(changed, "eth1")


def joined_observer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[FleetMember, list[dict[str, Any]]]:
    """Return an observer, and the list of what it sends."""
    options: Any = SimpleNamespace(watched=object())
    member = FleetMember(options, folder, print)
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(member, "_runner", object())
    monkeypatch.setattr(member, "_send", lambda _, data: sent.append(data))
    return member, sent


def test_observer_that_cannot_start_names_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    member, sent = joined_observer(tmp_path / "file", monkeypatch)
    member._messages.put(("watch", {"run": 3, "request": {"probes": []}}))
    member._messages.put(("dismissed", {}))
    member._serve()
    assert [(state["run"], state["phase"]) for state in sent] == [(3, "failed")]


class EndedChild:
    """A process that reported that its JVM has ended, and exited."""

    has_ended = False

    def __init__(self) -> None:
        read_end, write_end = os.pipe()
        os.close(write_end)
        self.stdout = os.fdopen(read_end, "rb")

    def read_lines(self) -> list[str]:
        self.has_ended = True
        return [json.dumps(to_json(Observed(run=1, phase="stopped", has_ended=True)))]


def test_observer_leaves_after_the_run_in_which_its_jvm_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member, sent = joined_observer(tmp_path, monkeypatch)
    child: Any = EndedChild()
    with child.stdout:
        member._forward_observer(child, tmp_path)
    assert [state["phase"] for state in sent] == ["stopped"]
    member._messages.put(("released", {}))
    with pytest.raises(RunFailed, match="the watched JVM has ended"):
        member._serve()


def test_links_of_several_observers_are_added() -> None:
    check = LinkCheck(name="rtt", expected="", measured="", tolerance="", passed=None)
    observers: list[Any] = [
        SimpleNamespace(
            state=Observed(run=1, phase="stopped", link={"wire_packets": 5, "qdisc_drops": drops}, link_checks=(check,))
        )
        for drops in (1, None)
    ]
    first, second = ({"wire_packets": 5, "qdisc_drops": drops} for drops in (1, None))
    assert remote_observer.link_fields([]) == {}
    assert remote_observer.link_fields(observers[:1]) == {"link": first, "link_checks": (check,)}
    assert remote_observer.link_fields(observers) == {
        "link": {"wire_packets": 10, "qdisc_drops": None},
        "link_checks": tuple(dataclasses.replace(check, link=f"node {number}") for number in (1, 2)),
        "node_links": (first, second),
    }


def test_the_run_reads_only_files_of_its_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = None
    member = FleetMember(nothing, tmp_path, print)
    answers: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(member, "_send", lambda kind, data: answers.append((kind, data)))
    monkeypatch.setattr(member, "_runner", object())
    for name in ("samples-0.bin", "secret"):
        (tmp_path / name).write_bytes(b"content")
    member._files = {"samples-0.bin": tmp_path / "samples-0.bin"}
    member._files["load-0.json"] = tmp_path / "missing"
    for name in ("samples-0.bin", "secret", "../secret", str(tmp_path / "secret"), "load-0.json"):
        member._on_read(nothing, SimpleNamespace(data={"name": name, "number": 0}))
    assert [(kind, data["data"]) for kind, data in answers] == [("piece", b"content"), *[("piece", b"")] * 4]
    assert all(not find_fault(kind, data) and "KeyError" in data["error"] for kind, data in answers[1:4])
    assert answers[4][1]["error"] == "cannot be read (No such file or directory)"
