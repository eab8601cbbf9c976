"""Network profiles from TOML, checked for what cannot be meant."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ingest_bench import data, records
from ingest_bench.errors import SpecError
from ingest_bench.model.network import Impairment, Profile

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T", Profile, Impairment)

_SWITCH = {"on": True, "true": True, "off": False, "false": False}
# IPv4's least (RFC 791: every host takes 576 bytes) and the most that veth and lo take (drivers/net/veth.c).
_MTU_BYTES = {"veth": (576, 65535), "loopback": (576, 65536)}


def load_profile(name: str, overrides: Mapping[str, Any] | None = None) -> Profile:
    """A shipped profile by its name, or a user's own by the path of its TOML, with some of its keys replaced.

    The keys of `overrides` are the TOML's, dotted or nested, and the values as text: {"mtu": "9000",
    "to_server.delay": "5ms", "offloads": {"tso": "off"}}.
    """
    path = _path(name)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise SpecError(f"{path}: {error}") from None
    profile = records.from_toml(Profile, {"name": path.stem, **table}, path.name)
    for key, value in _dotted(overrides or {}):
        profile = _override(profile, key, value, f"{path.name}: {key}")
    return checked(profile, path.name)


def checked(profile: Profile, where: str) -> Profile:
    """The profile itself; SpecError when its keys contradict each other."""
    least, most = _MTU_BYTES[profile.medium]
    if not least <= profile.mtu_bytes <= most:
        raise SpecError(f"{where}: mtu: {profile.mtu_bytes} is not between {least} and {most}")
    if profile.gso_max_segs is not None and profile.gso_max_segs < 1:
        raise SpecError(f"{where}: gso_max_segs: {profile.gso_max_segs} is not at least 1")
    for key, impairment in (("to_server", profile.to_server), ("to_client", profile.to_client)):
        for complaint in _complaints(impairment, profile):
            raise SpecError(f"{where}: {key}: {complaint}")
    return profile


def _complaints(impairment: Impairment, profile: Profile) -> Iterator[str]:
    """What is wrong with one direction."""
    if profile.medium == "loopback" and impairment != Impairment():
        yield 'loopback has one device for both directions and shapes neither; use medium = "veth"'
    per_packet = ("loss", "loss_state", "loss_gemodel", "duplicate", "corrupt", "reorder")
    for key in per_packet:
        if getattr(impairment, f"{key}_ppm") and profile.gso_max_segs != 1:
            yield f"{key} would hit super-packets of up to 64 KiB, not packets; set gso_max_segs = 1"
    models = [key for key in per_packet[:3] if getattr(impairment, f"{key}_ppm")]
    if len(models) > 1:
        yield f"{' and '.join(models)}: netem knows one model of loss at a time"
    for key, needed in _NEEDS.items():
        names = records.keys(Impairment)
        if getattr(impairment, names[key]) and not any(getattr(impairment, names[need]) for need in needed):
            yield f"{key} does nothing without {' or '.join(needed)}"
    if impairment.distribution != "uniform" and not impairment.jitter_ns:
        yield "distribution does nothing without jitter"
    if impairment.slot_max_ns is not None and impairment.slot_max_ns < (impairment.slot_min_ns or 0):
        yield "slot_max is less than slot_min"


_NEEDS = {
    "burst": ("rate",),
    "delay_correlation": ("jitter",),
    "loss_correlation": ("loss",),
    "duplicate_correlation": ("duplicate",),
    "corrupt_correlation": ("corrupt",),
    "reorder_correlation": ("reorder",),
    "reorder": ("delay",),
    "reorder_gap": ("reorder",),
    "packet_overhead": ("netem_rate",),
    "cell": ("netem_rate",),
    "cell_overhead": ("cell",),
    "slot_max": ("slot_min",),
    "slot_packets": ("slot_min",),
    "ecn": ("loss", "loss_state", "loss_gemodel"),
}


def _path(name: str) -> Path:
    shipped = data.files("netem")
    if name in shipped:
        return shipped[name]
    if name.endswith(".toml") or "/" in name:
        if Path(name).is_file():
            return Path(name)
        raise SpecError(f"network profile: there is no file {name}")
    raise SpecError(f'unknown network profile "{name}"; {records.nearest(name, shipped)}; or the path of a .toml')


def _dotted(overrides: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in overrides.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _override(record: T, key: str, value: Any, where: str) -> T:
    """The record with one key replaced, below it too ("to_server.delay")."""
    head, _, rest = key.partition(".")
    names = records.keys(type(record))
    if head not in names:
        raise SpecError(f'{where}: unknown key "{head}"; {records.nearest(head, names)}')
    now = getattr(record, names[head])
    if not rest:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        new = records.parse(type(record), head, text, where)
    elif isinstance(now, Impairment):
        new = _override(now, rest, value, where)
    elif isinstance(now, dict):
        new = {**now, rest: _switch(value, where)}
    else:
        raise SpecError(f"{where}: {head} has no keys below it")
    return replace(record, **{names[head]: new})


def _switch(value: Any, where: str) -> bool:
    if str(value).lower() not in _SWITCH:
        raise SpecError(f"{where}: {value!r} is not on or off")
    return _SWITCH[str(value).lower()]
