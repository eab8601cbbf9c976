"""Target `data-prepper`: the user's installation of Data Prepper, whose nodes forward documents to each other.

Only Java is fetched: the setting `home` is the folder of the unpacked archive. A node has an HTTP source, its buffer,
the smallest processor that needs the peer forwarder, and a file as sink, which is read back.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import Any, ClassVar

from ingest_bench.errors import InvalidRun, RunFailed, SpecError
from ingest_bench.inputs import untrusted
from ingest_bench.jvm.options import COLLECTORS, default_to_g1, is_requested_heap
from ingest_bench.model.load import ProtocolOptions, Workload
from ingest_bench.model.results import ColumnValue
from ingest_bench.model.target import Endpoint, LaunchPlan, ListenOptions, TargetOptions, ThreadRoles
from ingest_bench.model.values import HOUR, MS
from ingest_bench.targets import counting
from ingest_bench.targets.base import NodeStart, Requirements, Target, plan_java
from ingest_bench.targets.http import Http
from ingest_bench.targets.settings import (
    PEER_FORWARDER_DEFAULTS,
    PEER_FORWARDER_REFUSED,
    peer_forwarder_settings,
    time_between,
)

NAME = "data-prepper"
_MAIN = "org.opensearch.dataprepper.DataPrepperExecute"
# Its default ports: HTTP source, API with metrics, peer forwarder.
_SOURCE_PORT, _API_PORT, _PEER_PORT = 2021, 4900, 4994
_CONFIGURATION, _PIPELINES, _DELIVERED = "data-prepper-config.yaml", "pipelines.yaml", "delivered.ndjson"
_PIPELINE = "ingest"
_PATH = "/log/ingest"
# This processor passes each document on as it is, by a fixed key; `aggregate` would silently drop duplicates.
_PROCESSOR, _KEY = "trace_peer_forwarder", "traceId"
_LOG4J = Path("config", "log4j2-rolling.properties")
_JAR = "data-prepper-main-*.jar"
# The first version whose peer forwarder has `forwarding_batch_size`.
_FIRST_VERSION = (2, 1)

_BUFFER = f"{_PIPELINE}_BlockingBuffer_"
_PEERS = "core_peerForwarder_"
_RECEIVE_BUFFER = f"{_PEERS}{_PIPELINE}_{_PROCESSOR}_"
# The load puts its number before a document's own fields, and Data Prepper keeps their order.
_NUMBERED = re.compile(rb'\{"%s":"(\d{10})"[,}]' % _KEY.encode())
_POLL_S = 0.5
# How long one round may take, beyond all its delays and timeouts.
_ROUND_GRACE_S = 10.0


def _parse_home(text: str) -> str:
    """Return the folder of a distribution; ValueError says why it is not one."""
    home = Path(text)
    # A colon would end an entry of the classpath.
    if not home.is_absolute() or ":" in text:
        raise ValueError(f'{text!r} is not an absolute path without a colon, such as "/opt/data-prepper"')
    try:
        version = read_version(home)
        home.joinpath(_LOG4J).stat()
    except OSError as error:
        raise ValueError(
            f"{home} is not a home of Data Prepper: {error.filename} cannot be read ({error.strerror}); unpack its "
            "archive (opensearch-data-prepper-VERSION-linux-x64.tar.gz) and give the folder that has bin and lib"
        ) from None
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers[:1] != _FIRST_VERSION[:1] or numbers < _FIRST_VERSION:
        raise ValueError(f"{home} has Data Prepper {version}; give one of 2.1 or later, before 3")
    return str(home)


class DataPrepper(Target):
    """The target `data-prepper`. Its home decides the exact version."""

    name = NAME
    default_version = "2"
    thread_roles = ThreadRoles(network=("armeria-common-worker-",), indexing=("-processor-worker-",))
    versions: Mapping[str, Requirements] = {"2": Requirements(artifacts=(), java_version=17)}
    settings: ClassVar = {
        "home": ("home", _parse_home),
        # It knows no shorter times than milliseconds.
        **peer_forwarder_settings(whole_ms=True),
        "request_timeout": ("request_timeout_ns", time_between(2 * MS, HOUR, whole_ms=True)),
        "delay": ("delay_ns", time_between(MS, HOUR, whole_ms=True)),
    }
    defaults: ClassVar = {**PEER_FORWARDER_DEFAULTS, "delay_ns": 3_000_000_000}
    refused: ClassVar = {f"{NAME} has no such option": PEER_FORWARDER_REFUSED}

    def read_properties(self, options: TargetOptions) -> dict[str, Any]:
        """Return its home and what else is chosen; SpecError without a home."""
        properties = super().read_properties(options)
        if "home" not in properties:
            raise SpecError(
                f"{self.name} requires the folder where its archive is unpacked, such as "
                'home = "/opt/data-prepper" in [target.setting]'
            )
        return properties

    def launch_plan(self, node: NodeStart) -> LaunchPlan:
        """Return how to start a node as bin/data-prepper does, with two files of its own, equal for all nodes."""
        home, installed = node.home, Path(self.read_properties(node.options)["home"])
        values = self.complete_properties(node.options)
        contents = {
            _CONFIGURATION: _configuration(values, node.nodes),
            _PIPELINES: _pipelines(values, home / _DELIVERED),
        }
        # JSON is YAML.
        files = {name: json.dumps(content, indent=1) + "\n" for name, content in contents.items()}
        flags = (
            "-Dfile.encoding=UTF-8",
            f"-Dlog4j.configurationFile={installed / _LOG4J}",
            f"-Ddata-prepper.dir={installed}",
        )
        arguments = (str(home / _PIPELINES), str(home / _CONFIGURATION))
        plan = plan_java(node, flags, (installed / "lib" / "*",), _MAIN, *arguments, files=files)
        return replace(plan, readable=(installed / _LOG4J, *installed.joinpath("lib").glob("*.jar")))

    def listens(self, options: TargetOptions) -> ListenOptions:
        """Return the port of its source and the time limit until it is ready."""
        # It needs 5 s on an idle machine, and 80 s on two busy cores (2.15.0).
        # It does not forward to loopback addresses (RemotePeerForwarder.isAddressDefinedLocally).
        return ListenOptions(port=_SOURCE_PORT, ready_timeout_s=300, accepts_loopback_peers=False)

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Return True if its source, its API and all peer forwarders respond; RunFailed names the one that does not."""
        nodes[node].connect()
        with nodes[node].at_port(_API_PORT) as api:
            running = api.request_json("GET", "/list", timeout_s=5)
        if {"name": _PIPELINE} not in running.get("pipelines", ()):
            raise RunFailed(f"it does not run the pipeline {_PIPELINE}: {running}")
        for number, other in enumerate(nodes if len(nodes) > 1 else ()):
            with other.at_port(_PEER_PORT) as peer:
                try:
                    peer.connect()
                except RunFailed as error:
                    raise RunFailed(f"the peer forwarder of node {number + 1} does not respond: {error}") from None
        return True

    def wire(self, options: TargetOptions, workload: Workload) -> ProtocolOptions:
        """Return the protocol: JSON arrays of numbered documents; the number is the key of the forwarding."""
        keys = {
            "path": _PATH,
            "sequence": _KEY,
            # Statuses of requests that were refused before any document was accepted. Not 408: Armeria also sends it
            # while documents are written, and then their state is unknown.
            "refused": ["400", "404", "405", "413", "415"],
        }
        return ProtocolOptions(protocol="json-array", keys=keys, toml_key=f"{self.name}: protocol")

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int:
        """Return the number of accepted documents. `read_counters` waits and returns what became of them."""
        return _account_now(nodes)["accepted"]

    def read_counters(self, nodes: Sequence[Http]) -> dict[str, Any]:
        """Return what became of all documents since the start, by the metrics and sinks of all nodes.

        Wait until all are delivered or dropped, or until nothing has changed for a long time: documents may stay
        inside, such as those of a worker that has ended.
        """
        quiet_s = max(map(_longest_delay_s, nodes))
        last: dict[str, int] = {}
        last_change = time.monotonic()
        while True:
            account = _account_now(nodes)
            is_settled = account["accepted"] + account["unsure"] == account["delivered"] + account["dropped"]
            if not account["inside"] and is_settled:
                return account
            if account != last:
                last, last_change = account, time.monotonic()
            elif time.monotonic() - last_change > quiet_s:
                return account
            time.sleep(_POLL_S)

    def read_delivered(self, nodes: Sequence[Http]) -> tuple[bytes, ...]:
        """Return the document numbers in each node's sink, as `analysis.run.delivery` reads them."""

        def read_number(line: bytes) -> bytes:
            match = _NUMBERED.match(line)
            if match is None:
                raise RunFailed(f"{NAME}: a document of its sink does not begin with our number: {line[:200]!r}")
            return match[1]

        delivered = []
        for http in nodes:
            with _open_home_file(http, _DELIVERED) as file:
                delivered.append(counting.pack_numbers(b"\n".join(map(read_number, file))))
        return tuple(delivered)

    def describe(self, http: Http, options: TargetOptions) -> dict[str, ColumnValue]:
        """Return version and settings; InvalidRun if the heap is not as chosen."""
        # The maximum of the old generation: with G1, that is the whole heap.
        heap_bytes = int(_read_metrics(http).get("jvm_gc_max_data_size_bytes", 0))
        if default_to_g1(options.gc) != "g1":
            heap_bytes = options.heap_bytes
        elif not is_requested_heap(heap_bytes, options.heap_bytes, (COLLECTORS["g1"].bean,), options.jvm):
            raise InvalidRun(f"{self.name}: a heap of {heap_bytes:,} bytes instead of {options.heap_bytes:,}")
        version = read_version(Path(self.read_properties(options)["home"]))
        return {"version": version, "heap_bytes": heap_bytes, **self.complete_properties(options)}


def read_version(home: Path) -> str:
    """Return the version of a distribution, from the name of its main jar; OSError if there is none."""
    home.joinpath("lib").stat()
    jars = sorted(home.joinpath("lib").glob(_JAR))
    if len(jars) != 1:
        raise FileNotFoundError(0, f"found {len(jars)} instead of one", str(home / "lib" / _JAR))
    return jars[0].stem.removeprefix(_JAR.removesuffix("*.jar"))


def _configuration(values: Mapping[str, int], nodes: Sequence[Endpoint]) -> dict[str, Any]:
    """Return data-prepper-config.yaml. It must be equal on all nodes, so that they agree on the owner of a document."""
    names = ("batch_size", "buffer_size", "forwarding_batch_size", "client_thread_count")
    times = ("batch_delay", "client_timeout", "request_timeout")
    forwarder = {
        "port": _PEER_PORT,
        "ssl": False,
        "discovery_mode": "static",
        "static_endpoints": [node.host for node in nodes],
        **{name: values[name] for name in names},
        **{name: values[f"{name}_ns"] // MS for name in times},
        "forwarding_batch_timeout": f"{values['forwarding_batch_timeout_ns'] // MS}ms",
    }
    return {"ssl": False, "server_port": _API_PORT, "metric_registries": ["Prometheus"], "peer_forwarder": forwarder}


def _pipelines(values: Mapping[str, int], delivered: Path) -> dict[str, Any]:
    """Return pipelines.yaml of a node, with `delivered` as the file of its sink."""
    buffer = {"buffer_size": values["source_buffer_size"], "batch_size": values["source_batch_size"]}
    pipeline = {
        "workers": values["workers"],
        "delay": values["delay_ns"] // MS,
        "source": {"http": {"port": _SOURCE_PORT, "path": _PATH, "ssl": False}},
        "buffer": {"bounded_blocking": buffer},
        "processor": [{_PROCESSOR: {}}],
        "sink": [{"file": {"path": str(delivered)}}],
    }
    return {_PIPELINE: pipeline}


def account_documents(metrics: Mapping[str, float], delivered: int) -> dict[str, int]:
    """Return what became of a node's documents, by its metrics and the number of documents in its sink. Pure.

    Data Prepper does not count dropped documents. Those that it failed to forward are returned to the node itself or
    dropped (`RemotePeerForwarder`); the returned ones are what it processed itself beyond its own. `unsure`: documents
    that peers have received beyond what the senders know.
    """

    def read(name: str) -> int:
        return int(metrics.get(name, 0))

    forwarded = read(f"{_PEERS}recordsSuccessfullyForwarded_total")
    failed = read(f"{_PEERS}recordsFailedForwarding_total")
    own = read(f"{_PEERS}recordsToBeProcessedLocally_total")
    returned = read(f"{_PEERS}recordsActuallyProcessedLocally_total") - own
    waiting = read(f"{_PEERS}recordsToBeForwarded_total") - forwarded - failed
    buffered = sum(
        read(f"{buffer}records{state}") for buffer in (_BUFFER, _RECEIVE_BUFFER) for state in ("InBuffer", "InFlight")
    )
    return {
        "accepted": read(f"{_BUFFER}recordsWritten_total"),
        "delivered": delivered,
        "dropped": failed - returned,
        "inside": buffered + waiting,
        "unsure": read(f"{_PEERS}recordsReceivedFromPeers_total") - forwarded,
        "forwarded": forwarded,
        "returned": returned,
        "forwards": read(f"{_PEERS}requestsSuccessful_total"),
        "forwards_failed": read(f"{_PEERS}requestsFailed_total"),
    }


def _account_now(nodes: Sequence[Http]) -> dict[str, int]:
    """Return the account of all nodes, added up."""
    total: Counter[str] = Counter()
    for http in nodes:
        metrics = _read_metrics(http)
        with _open_home_file(http, _DELIVERED) as file:
            total.update(account_documents(metrics, sum(1 for _ in file)))
    return dict(total)


def _read_metrics(http: Http) -> dict[str, float]:
    """Return a node's metrics, those of one name added up."""

    def parse(body: bytes) -> dict[str, float]:
        metrics = counting.sum_metrics(body.decode("utf-8", "replace"))
        if f"{_BUFFER}recordsWritten_total" not in metrics:
            raise ValueError(f"it has no {_BUFFER}recordsWritten_total (another version?)")
        return metrics

    with http.at_port(_API_PORT) as api:
        return api.read(NAME, "/metrics/prometheus", parse)


def _longest_delay_s(http: Http) -> float:
    """Return how long a document may wait without any visible change, by the node's own files."""
    with _open_home_file(http, _CONFIGURATION) as configuration, _open_home_file(http, _PIPELINES) as pipelines:
        forwarder, pipeline = json.load(configuration)["peer_forwarder"], json.load(pipelines)[_PIPELINE]
    delays_ms = (
        pipeline["delay"],
        forwarder["batch_delay"],
        forwarder["client_timeout"],
        int(forwarder["forwarding_batch_timeout"].removesuffix("ms")),
    )
    return sum(delays_ms) / 1000 + _ROUND_GRACE_S


def _open_home_file(http: Http, name: str) -> BufferedReader:
    """Open a file of a node's home, where the server can put anything."""
    assert http.home is not None  # noqa: S101 - only launched nodes are counted
    try:
        return untrusted.open_file(http.home / name)
    except OSError as error:
        raise RunFailed(f"{NAME}: {http.home / name} cannot be read ({error.strerror})") from None
