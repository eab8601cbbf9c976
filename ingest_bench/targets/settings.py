"""Parse `[target.setting]` of targets whose settings ingest-bench knows, also those of a peer forwarder."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ingest_bench import units
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.units import quote_value

if TYPE_CHECKING:
    from ingest_bench.model.target import TargetOptions

Settings = Mapping[str, tuple[str, Callable[[str], int | str]]]
"""By setting: the property that carries it to the server, and the parser of its text (ValueError explains)."""

_HOUR_NS = 3600 * 10**9
_MS_NS = 10**6
_MAX_NUMBER = 10**6
# Names and defaults of Data Prepper 2.15 to 2.17 (PeerForwarderConfiguration, BlockingBufferConfig, PipelineModel).
# The built-in server `forwarder` has the same ones.
PEER_FORWARDER_DEFAULTS = {
    "batch_size": 48,
    "batch_delay_ns": 3_000_000_000,
    "buffer_size": 512,
    "forwarding_batch_size": 1500,
    "forwarding_batch_timeout_ns": 3_000_000_000,
    "client_thread_count": 200,
    "client_timeout_ns": 60_000_000_000,
    "request_timeout_ns": 10_000_000_000,
    "workers": 1,
    "source_buffer_size": 12_800,
    "source_batch_size": 200,
}


def parse_settings(target: str, settings: Settings, options: TargetOptions) -> dict[str, str]:
    """Return the value of each property; SpecError for a setting that the target does not know."""
    values = {}
    for key, text in options.setting.items():
        if key not in settings:
            raise SpecError(f'target.setting: {target} has no "{key}"; {records.suggest(key, settings)}')
        name, parse = settings[key]
        try:
            values[name] = str(parse(text))
        except ValueError as error:
            raise SpecError(f"target.setting.{key}: {error}") from None
    return values


def jvm_properties(values: Mapping[str, str]) -> tuple[str, ...]:
    """Return properties as options of the JVM."""
    return tuple(f"-D{name}={value}" for name, value in values.items())


def one_of(*words: str) -> Callable[[str], str]:
    """Return the parser of one of these words."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is not one of {', '.join(words)}")
        return text

    return parse


def number_between(minimum: int, maximum: int) -> Callable[[str], int]:
    """Return the parser of a whole number."""

    def parse(text: str) -> int:
        is_number = text.isascii() and text.isdigit() and len(text) <= len(str(maximum))
        if not is_number or not minimum <= int(text) <= maximum:
            raise ValueError(f"{quote_value(text)} is not between {minimum} and {maximum}")
        return int(text)

    return parse


def time_between(minimum_ns: int, maximum_ns: int) -> Callable[[str], int]:
    """Return the parser of a time such as "100ms"; it returns nanoseconds."""

    def parse(text: str) -> int:
        time_ns = units.parse_time_ns(text)
        if not minimum_ns <= time_ns <= maximum_ns:
            bounds = f"{units.format_time(minimum_ns)} and {units.format_time(maximum_ns)}"
            raise ValueError(f"{quote_value(text)} is not between {bounds}")
        return time_ns

    return parse


def milliseconds_between(minimum_ns: int, maximum_ns: int) -> Callable[[str], int]:
    """Return the parser of a time in whole milliseconds; it returns nanoseconds."""
    parse_time = time_between(minimum_ns, maximum_ns)

    def parse(text: str) -> int:
        time_ns = parse_time(text)
        if time_ns % _MS_NS:
            raise ValueError(f"{text!r} is not a whole number of milliseconds")
        return time_ns

    return parse


def parse_field_name(text: str) -> str:
    """Parse the name of a document's field."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", text):
        raise ValueError(f"{quote_value(text)} is not the name of a field: A-Z, a-z, 0-9 and underscore")
    return text


def peer_forwarder_settings(
    time: Callable[[int, int], Callable[[str], int]], *, min_request_timeout_ns: int = _MS_NS, prefix: str = ""
) -> Settings:
    """Return the settings of PEER_FORWARDER_DEFAULTS. `time` returns the parser of a time between two limits in ns."""
    parsers = {
        "batch_size": number_between(1, _MAX_NUMBER),
        "batch_delay_ns": time(0, _HOUR_NS),
        "buffer_size": number_between(1, _MAX_NUMBER),
        # PeerForwarderConfiguration.MAX_FORWARDING_BATCH_SIZE.
        "forwarding_batch_size": number_between(1, 15_000),
        "forwarding_batch_timeout_ns": time(0, _HOUR_NS),
        "client_thread_count": number_between(1, 10_000),
        "client_timeout_ns": time(_MS_NS, _HOUR_NS),
        "request_timeout_ns": time(min_request_timeout_ns, _HOUR_NS),
        "workers": number_between(1, 1024),
        "source_buffer_size": number_between(1, _MAX_NUMBER),
        "source_batch_size": number_between(1, _MAX_NUMBER),
    }
    return {
        name.removesuffix("_ns").replace("source_", "bounded_blocking."): (f"{prefix}{name}", parse)
        for name, parse in parsers.items()
    }
