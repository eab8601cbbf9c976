"""Read and set the offloads ("features") of a device: a program that runs in the device's network namespace.

    features.py DEVICE [NAME=on|off …]

DEVICE is a name, or ifN for the interface with index N, as in `ip` and `tc`: an interface may be renamed. The output is
JSON: `before` and `after` are the features as [on, wanted, fixed], `unknown` are names that this kernel does not know;
if there is one, nothing is set. A NAME is a single kernel feature, or one of ethtool's short and long names for
several. Importing this file gives the pure functions without importing pyroute2.

pyroute2 uses the ioctl that every kernel has: pyroute2 0.9.7 has no netlink for features.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec, module_from_spec
from typing import Any, NamedTuple


class FeatureState(NamedTuple):
    """State of a device's feature."""

    on: bool
    wanted: bool
    """The requested state; another feature may prevent it."""
    fixed: bool
    """True if the driver does not allow a change."""


FeatureStates = dict[str, FeatureState]


class FeaturesReply(NamedTuple):
    """Output of this program."""

    before: FeatureStates
    after: FeatureStates
    unknown: tuple[str, ...]


# What an ethtool name stands for (ethtool.c, off_flag_def): its short name, its long name, and the kernel's features,
# with a * for any letters.
GROUPS = (
    ("rx", "rx-checksumming", "rx-checksum"),
    ("tx", "tx-checksumming", "tx-checksum-*"),
    ("sg", "scatter-gather", "tx-scatter-gather*"),
    ("tso", "tcp-segmentation-offload", "tx-tcp*-segmentation"),
    ("gso", "generic-segmentation-offload", "tx-generic-segmentation"),
    ("gro", "generic-receive-offload", "rx-gro"),
    ("lro", "large-receive-offload", "rx-lro"),
    ("rxvlan", "rx-vlan-offload", "rx-vlan-hw-parse"),
    ("txvlan", "tx-vlan-offload", "tx-vlan-hw-insert"),
    ("ntuple", "ntuple-filters", "rx-ntuple-filter"),
    ("rxhash", "receive-hashing", "rx-hashing"),
)
PATTERNS = {name: pattern for *names, pattern in GROUPS for name in names} | {"tx-checksum": "tx-checksum-*"}


def parse_reply(text: str) -> FeaturesReply:
    """Parse this program's output."""
    table: dict[str, Any] = json.loads(text)
    before, after = (
        {name: FeatureState(*values) for name, values in table[key].items()} for key in ("before", "after")
    )
    return FeaturesReply(before, after, tuple(table["unknown"]))


def known_names(states: Mapping[str, FeatureState]) -> set[str]:
    """Return all names that can be requested on such a device."""
    return {*PATTERNS, *states}


def find_members(name: str, states: Mapping[str, FeatureState]) -> tuple[str, ...]:
    """Return the kernel features that a name stands for; none if it is unknown."""
    head, star, tail = PATTERNS.get(name, name).partition("*")
    if not star:
        return (head,) if head in states else ()
    return tuple(feature for feature in states if feature.startswith(head) and feature.endswith(tail))


def find_changes(requested: Mapping[str, bool], states: Mapping[str, FeatureState]) -> dict[str, bool]:
    """Return the features to change so that each name gets its requested state; later names win.

    A group is on if one of its features is on, as ethtool shows it. So "on" does not change a group that is partly on:
    no driver turns all of "tso" on by itself.
    """
    wanted = {name: _requested_state(state) for name, state in states.items()}
    for name, on in requested.items():
        members = find_members(name, states)
        if any(wanted[member] for member in members) != on:
            wanted.update({member: on for member in members if not states[member].fixed})
    return {name: on for name, on in wanted.items() if not states[name].fixed and on != states[name].wanted}


def predict_states(states: Mapping[str, FeatureState], changes: Mapping[str, bool]) -> FeatureStates:
    """Return the features after the changes, if nothing prevents them."""
    after = {name: changes.get(name, _requested_state(state)) for name, state in states.items()}
    return {name: state._replace(on=after[name], wanted=after[name]) for name, state in states.items()}


def find_unmet(requested: Mapping[str, bool], states: Mapping[str, FeatureState]) -> Iterator[str]:
    """Yield each name that does not have its requested state, and why.

    A group is not on while one of its features is wanted but off. The last name that stands for a feature decides.
    """
    last = {member: name for name in requested for member in find_members(name, states)}
    for name, on in requested.items():
        members = [state for feature, state in states.items() if last.get(feature) == name]
        if not members:
            continue
        is_on = any(state.on for state in members)
        if is_on != on or (on and any(state.wanted and not state.on for state in members)):
            is_fixed = all(state.fixed for state in members if state.on != on)
            why = "the device's driver fixes it" if is_fixed else "the kernel did not accept it"
            yield f"{name} cannot be {'on' if on else 'off'}: {why}"


def main(arguments: Sequence[str]) -> int:
    """Run the program: exit status 1 if the device cannot be read or changed."""
    device, *words = arguments
    name = current_name(device)
    requested = {feature: value == "on" for feature, _, value in (word.rpartition("=") for word in words)}
    ioctl = _import_ioctl()
    try:
        ethtool = ioctl.IoctlEthtool(name)
        before = _read_states(ethtool)
        unknown = [feature for feature in requested if not find_members(feature, before)]
        changes = {} if unknown else find_changes(requested, before)
        if changes:
            features = ethtool.get_features()
            for feature, on in changes.items():
                features[feature] = on
            # pyroute2 raises "not supported" if another feature prevents the change. The result is read back below.
            with suppress(ioctl.NotSupportedError):
                ethtool.set_features(features)
        after = _read_states(ethtool) if changes else before
    except (OSError, LookupError, ioctl.EthtoolError) as error:
        sys.stderr.write(f"{device}: features cannot be read or set: {error}\n")
        return 1
    if current_name(device) != name:
        sys.exit(f"{device}: renamed meanwhile, from {name}")
    json.dump({"before": before, "after": after, "unknown": unknown}, sys.stdout)
    return 0


def current_name(device: str) -> str:
    """Return the device's present name; `device` is a name or ifN."""
    number = device.removeprefix("if")
    if number == device or not number.isdecimal() or device in (name for _, name in socket.if_nameindex()):
        return device
    try:
        return socket.if_indextoname(int(number))
    except OSError:
        return device


def _requested_state(state: FeatureState) -> bool:
    return state.on if state.fixed else state.wanted


def _read_states(ethtool: Any) -> FeatureStates:
    features = ethtool.get_features()
    return {
        name: FeatureState(
            on=features.is_active(name),
            wanted=features.is_requested(name),
            fixed=features.is_never_changed(name) or not features.is_available(name),
        )
        for name in features.keys()  # noqa: SIM118 - iterating over it gives more than names
        if name
    }


def _import_ioctl() -> Any:
    """Import pyroute2's ioctl module without the package's __init__, which imports everything: 30 instead of 350 ms."""
    for package in ("pyroute2", "pyroute2.ethtool"):
        spec = find_spec(package)
        if spec is None:
            sys.exit(f"{package} is not installed")
        sys.modules[package] = module_from_spec(spec)
    from pyroute2.ethtool import ioctl  # noqa: PLC0415 - only in the program, and only after this

    return ioctl


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
