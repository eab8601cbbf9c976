"""What became of a node's documents: by its metrics, and by the file that is its sink."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ingest_bench.errors import RunFailed
from ingest_bench.inputs import untrusted
from ingest_bench.targets import counting
from ingest_bench.targets.data_prepper.data_prepper_files import (
    API_PORT,
    CONFIGURATION,
    DELIVERED,
    KEY,
    NAME,
    PIPELINE,
    PIPELINES,
    PROCESSOR,
)

if TYPE_CHECKING:
    from io import BufferedReader

    from ingest_bench.targets.http import Http

_BUFFER = f"{PIPELINE}_BlockingBuffer_"
_PEERS = "core_peerForwarder_"
_RECEIVED = f"{_PEERS}{PIPELINE}_{PROCESSOR}_"
# The load writes its number in front of a document's own fields, and Data Prepper keeps their order.
_NUMBERED = re.compile(rb'\{"%s":"(\d{10})"[,}]' % KEY.encode())
_LOOK_S = 0.5
# Of a round, beyond all that it waits for.
_LATE_S = 10.0


def of(said: Mapping[str, float], delivered: int) -> dict[str, int]:
    """The account of one node whose metrics say this, and whose sink has so many documents. Pure.

    It counts no document that it drops. Those that it failed to forward are back where they came from, or dropped
    (`RemotePeerForwarder`); how many are back is what it processed itself beside its own. `unsure`: peers have received
    so many more than were forwarded as far as the senders know.
    """

    def number(name: str) -> int:
        return int(said.get(name, 0))

    forwarded = number(f"{_PEERS}recordsSuccessfullyForwarded_total")
    failed = number(f"{_PEERS}recordsFailedForwarding_total")
    own = number(f"{_PEERS}recordsToBeProcessedLocally_total")
    returned = number(f"{_PEERS}recordsActuallyProcessedLocally_total") - own
    waiting = number(f"{_PEERS}recordsToBeForwarded_total") - forwarded - failed
    buffered = sum(
        number(f"{place}records{what}") for place in (_BUFFER, _RECEIVED) for what in ("InBuffer", "InFlight")
    )
    return {
        "accepted": number(f"{_BUFFER}recordsWritten_total"),
        "delivered": delivered,
        "dropped": failed - returned,
        "inside": buffered + waiting,
        "unsure": number(f"{_PEERS}recordsReceivedFromPeers_total") - forwarded,
        "forwarded": forwarded,
        "returned": returned,
        "forwards": number(f"{_PEERS}requestsSuccessful_total"),
        "forwards_failed": number(f"{_PEERS}requestsFailed_total"),
    }


def at_rest(nodes: Sequence[Http]) -> dict[str, int]:
    """The account of all nodes together, once all is delivered or dropped, or nothing has moved for a long time.

    What is still inside then stays there, such as behind a worker that has ended.
    """
    quiet_s = max(map(_longest_s, nodes))
    known: dict[str, int] = {}
    since = time.monotonic()
    while True:
        found = together(nodes)
        if not found["inside"] and found["accepted"] + found["unsure"] == found["delivered"] + found["dropped"]:
            return found
        if found != known:
            known, since = found, time.monotonic()
        elif time.monotonic() - since > quiet_s:
            return found
        time.sleep(_LOOK_S)


def metrics(http: Http) -> dict[str, float]:
    """What a node's metrics say, those with the same name added up."""
    with http.elsewhere(API_PORT) as api:
        answer = api.request("GET", "/metrics/prometheus")
    where = f"{NAME}: GET {http.endpoint.host}:{API_PORT}/metrics/prometheus"
    if answer.status != 200:
        raise RunFailed(f"{where} was answered {answer.status}: {answer.beginning()}")
    try:
        found = counting.totals(answer.body.decode("utf-8", "replace"))
    except ValueError as error:
        raise RunFailed(f"{where}: {error}") from None
    if f"{_BUFFER}recordsWritten_total" not in found:
        raise RunFailed(f"{where} has no {_BUFFER}recordsWritten_total; is it another version's? {answer.beginning()}")
    return found


def delivered(http: Http) -> bytes:
    """Which documents a node's sink has, as `analysis.run.delivery` reads it."""
    with _file(http, DELIVERED) as file:
        return counting.numbered(b"\n".join(_number(line) for line in file))


def _number(line: bytes) -> bytes:
    found = _NUMBERED.match(line)
    if found is None:
        raise RunFailed(f"{NAME}: a document of its sink has no number of ours in front: {line[:200]!r}")
    return found[1]


def together(nodes: Sequence[Http]) -> dict[str, int]:
    """The account of all nodes together, as it is now."""
    total: dict[str, int] = {}
    for http in nodes:
        said = metrics(http)
        with _file(http, DELIVERED) as file:
            account = of(said, sum(1 for _ in file))
        total = {name: count + total.get(name, 0) for name, count in account.items()}
    return total


def _longest_s(http: Http) -> float:
    """How long a document of a node may wait without that anything moves, by the node's own files."""
    with _file(http, CONFIGURATION) as configuration, _file(http, PIPELINES) as pipelines:
        forwarder, pipeline = json.load(configuration)["peer_forwarder"], json.load(pipelines)[PIPELINE]
    waits_ms = (
        pipeline["delay"],
        forwarder["batch_delay"],
        forwarder["client_timeout"],
        int(forwarder["forwarding_batch_timeout"].removesuffix("ms")),
    )
    return sum(waits_ms) / 1000 + _LATE_S


def _file(http: Http, name: str) -> BufferedReader:
    """Return a file of its home, where the server may put anything."""
    assert http.home is not None  # noqa: S101 - it is counted only where we started it
    try:
        return untrusted.open_file(http.home / name)
    except OSError as error:
        raise RunFailed(f"{NAME}: {http.home / name} cannot be read ({error.strerror})") from None
