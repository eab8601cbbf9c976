"""Parse `[target.setting]` of targets whose settings ingest-bench knows, also those of a peer forwarder."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ingest_bench import units
from ingest_bench.errors import SpecError
from ingest_bench.inputs.names import check_name
from ingest_bench.model.target import TargetOptions
from ingest_bench.model.values import HOUR, MS, S
from ingest_bench.units import quote_value

Settings = Mapping[str, tuple[str, Callable[[str], Any]]]
"""By setting: the property that carries it to the server, and the parser of its text (ValueError explains)."""

# By name: default, minimum and maximum. Names and defaults of Data Prepper 2.15 to 2.17 (PeerForwarderConfiguration,
# BlockingBufferConfig, PipelineModel). The built-in server `forwarder` has the same ones.
_PEER_FORWARDER = {
    "batch_size": (48, 1, 10**6),
    "batch_delay_ns": (3 * S, 0, HOUR),
    "buffer_size": (512, 1, 10**6),
    # PeerForwarderConfiguration.MAX_FORWARDING_BATCH_SIZE.
    "forwarding_batch_size": (1500, 1, 15_000),
    "forwarding_batch_timeout_ns": (3 * S, 0, HOUR),
    "client_thread_count": (200, 1, 10_000),
    "client_timeout_ns": (60 * S, MS, HOUR),
    "request_timeout_ns": (10 * S, MS, HOUR),
    "workers": (1, 1, 1024),
    "source_buffer_size": (12_800, 1, 10**6),
    "source_batch_size": (200, 1, 10**6),
}
PEER_FORWARDER_DEFAULTS = {name: default for name, (default, _, _) in _PEER_FORWARDER.items()}
PEER_FORWARDER_REFUSED = ("receive_predictor_bytes", "allocator", "socket_receive_buffer_bytes", "replicas")


def parse_settings(target: str, settings: Settings, options: TargetOptions) -> dict[str, Any]:
    """Return the value of each property; SpecError for a setting that the target does not know."""
    values = {}
    for key, text in options.setting.items():
        check_name(key, settings, f'target.setting: {target} has no "{key}"')
        name, parse = settings[key]
        try:
            values[name] = parse(text)
        except ValueError as error:
            raise SpecError(f"target.setting.{key}: {error}") from None
    return values


def matching(pattern: str, description: str, convert: Callable[[str], Any] = str) -> Callable[[str], Any]:
    """Return the parser of a text that matches a regular expression as a whole."""

    def parse(text: str) -> Any:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(f"{quote_value(text)} is not {description}")
        return convert(text)

    return parse


def one_of(*words: str) -> Callable[[str], str]:
    """Return the parser of one of these words."""
    return matching("|".join(words), f"one of {', '.join(words)}")


def number_between(minimum: int, maximum: int) -> Callable[[str], int]:
    """Return the parser of a whole number."""

    def parse(text: str) -> int:
        is_number = text.isascii() and text.isdigit() and len(text) <= len(str(maximum))
        if not is_number or not minimum <= int(text) <= maximum:
            raise ValueError(f"{quote_value(text)} is not between {minimum} and {maximum}")
        return int(text)

    return parse


def time_between(minimum_ns: int, maximum_ns: int, *, whole_ms: bool = False) -> Callable[[str], int]:
    """Return the parser of a time such as "100ms"; it returns nanoseconds."""

    def parse(text: str) -> int:
        time_ns = units.parse_time_ns(text)
        if not minimum_ns <= time_ns <= maximum_ns:
            bounds = f"{units.format_time(minimum_ns)} and {units.format_time(maximum_ns)}"
            raise ValueError(f"{quote_value(text)} is not between {bounds}")
        if whole_ms and time_ns % MS:
            raise ValueError(f"{text!r} is not a whole number of milliseconds")
        return time_ns

    return parse


def peer_forwarder_settings(*, whole_ms: bool = False) -> Settings:
    """Return the settings of PEER_FORWARDER_DEFAULTS."""
    settings: dict[str, tuple[str, Callable[[str], Any]]] = {}
    for name, (_, minimum, maximum) in _PEER_FORWARDER.items():
        key = name.removesuffix("_ns").replace("source_", "bounded_blocking.")
        is_time = name.endswith("_ns")
        parse = time_between(minimum, maximum, whole_ms=whole_ms) if is_time else number_between(minimum, maximum)
        settings[key] = (name, parse)
    return settings
