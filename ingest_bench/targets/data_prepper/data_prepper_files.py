"""What a node of Data Prepper is told: its two files, from the settings that were asked for. Pure, but for its home."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench.targets import peer_forwarder
from ingest_bench.targets.small import java_properties
from ingest_bench.targets.small.java_properties import Settings, time_between

if TYPE_CHECKING:
    from ingest_bench.model.target import Endpoint, TargetOptions

NAME = "data-prepper"
# Its own ports: of the HTTP source, of its API and metrics, and of the peer forwarder.
SOURCE_PORT, API_PORT, PEER_PORT = 2021, 4900, 4994
CONFIGURATION, PIPELINES, DELIVERED = "data-prepper-config.yaml", "pipelines.yaml", "delivered.ndjson"
PIPELINE = "ingest"
PATH = "/log/ingest"
# It hands each document on as it is, by a fixed key; `aggregate` would drop what comes twice, and nobody would see it.
PROCESSOR, KEY = "trace_peer_forwarder", "traceId"
LOG4J = Path("config", "log4j2-rolling.properties")
_JAR = "data-prepper-main-*.jar"
# The first whose peer forwarder has `forwarding_batch_size`.
_FIRST = (2, 1)
_HOUR_NS = 3600 * 10**9
_MS_NS = 10**6


def _milliseconds(least_ns: int, most_ns: int) -> Callable[[str], int]:
    """A time in nanoseconds, in whole milliseconds: it knows no shorter ones."""
    between = time_between(least_ns, most_ns)

    def parse(text: str) -> int:
        found = between(text)
        if found % _MS_NS:
            raise ValueError(f"{text!r} is no whole number of milliseconds")
        return found

    return parse


def _home(text: str) -> str:
    """The folder of a distribution; ValueError says why it is none."""
    home = Path(text)
    # A colon would end an entry of the classpath.
    if not home.is_absolute() or ":" in text:
        raise ValueError(f'{text!r} is no absolute path without a colon, such as "/opt/data-prepper"')
    try:
        found = version(home)
        home.joinpath(LOG4J).stat()
    except OSError as error:
        raise ValueError(
            f"{home} is no home of Data Prepper: {error.filename} cannot be read ({error.strerror}); unpack its "
            "archive (opensearch-data-prepper-VERSION-linux-x64.tar.gz) and give the folder that has bin and lib"
        ) from None
    numbers = tuple(map(int, re.findall(r"\d+", found)[:2]))
    if numbers[:1] != _FIRST[:1] or numbers < _FIRST:
        raise ValueError(f"{home} has Data Prepper {found}; give one of 2.1 or later, before 3")
    return str(home)


SETTINGS: Settings = {
    "home": ("home", _home),
    **peer_forwarder.settings(_milliseconds, least_request_timeout_ns=2 * _MS_NS),
    "delay": ("delay_ns", _milliseconds(_MS_NS, _HOUR_NS)),
}
_DEFAULTS = {**peer_forwarder.DEFAULTS, "delay_ns": 3_000_000_000}


def parsed(asked: TargetOptions) -> dict[str, str]:
    """What was asked for, by the names of `numbers`, and its home; SpecError for what it has not."""
    return java_properties.parsed(NAME, SETTINGS, asked)


def version(home: Path) -> str:
    """The version of the distribution there, by the name of its main jar; OSError where it has none."""
    home.joinpath("lib").stat()
    found = sorted(home.joinpath("lib").glob(_JAR))
    if len(found) != 1:
        raise FileNotFoundError(0, f"{len(found)} of them are there", str(home / "lib" / _JAR))
    return found[0].stem.removeprefix(_JAR.removesuffix("*.jar"))


def numbers(asked: TargetOptions) -> dict[str, int]:
    """Each setting that is a number: what was asked for, or what Data Prepper takes by itself."""
    given = parsed(asked)
    return {name: int(given.get(name, usual)) for name, usual in _DEFAULTS.items()}


def configuration(values: Mapping[str, int], nodes: Sequence[Endpoint]) -> dict[str, Any]:
    """The data-prepper-config.yaml of each node: with another one a node would have other owners for documents."""
    names = ("batch_size", "buffer_size", "forwarding_batch_size", "client_thread_count")
    times = ("batch_delay", "client_timeout", "request_timeout")
    forwarder = {
        "port": PEER_PORT,
        "ssl": False,
        "discovery_mode": "static",
        "static_endpoints": [node.host for node in nodes],
        **{name: values[name] for name in names},
        **{name: values[f"{name}_ns"] // _MS_NS for name in times},
        "forwarding_batch_timeout": f"{values['forwarding_batch_timeout_ns'] // _MS_NS}ms",
    }
    return {"ssl": False, "server_port": API_PORT, "metric_registries": ["Prometheus"], "peer_forwarder": forwarder}


def pipelines(values: Mapping[str, int], delivered: Path) -> dict[str, Any]:
    """The pipelines.yaml of a node, with the file that its documents go to."""
    buffer = {"buffer_size": values["source_buffer_size"], "batch_size": values["source_batch_size"]}
    pipeline = {
        "workers": values["workers"],
        "delay": values["delay_ns"] // _MS_NS,
        "source": {"http": {"port": SOURCE_PORT, "path": PATH, "ssl": False}},
        "buffer": {"bounded_blocking": buffer},
        "processor": [{PROCESSOR: {}}],
        "sink": [{"file": {"path": str(delivered)}}],
    }
    return {PIPELINE: pipeline}
