"""The features (offloads) of a device, read and set: a program that runs in the device's own network namespace.

    features.py DEVICE [NAME=on|off …]

DEVICE is a name, or ifN for the interface of number N, as `ip` and `tc` have it: whatever its name is by now.
Its answer is JSON: `before` and `after` are the features as [is on, is asked for, is fixed], `unknown` are the names
that mean nothing to this kernel; with one of those nothing is set. A name is a single feature of the kernel, or one of
the short and long names that ethtool has for several. Who imports this file gets the words, and not pyroute2.

The kernel is asked by pyroute2, by the ioctl that every kernel has: for features, pyroute2 0.9.7 has no netlink.
"""

from __future__ import annotations

import json
import socket
import sys
from contextlib import suppress
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class State(NamedTuple):
    """A feature of a device."""

    on: bool
    wanted: bool
    """What was asked of it; another feature may not allow it."""
    fixed: bool
    """Nobody can change it: the driver decides."""


States = dict[str, State]


class Answer(NamedTuple):
    """What the program found and made of it."""

    before: States
    after: States
    unknown: tuple[str, ...]


# What one name of ethtool stands for (ethtool.c, off_flag_def): its short name, its long one, and the kernel's
# features, with a * for any letters.
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
_WORDS = {"on": True, "off": False}


def words(asked: Mapping[str, bool]) -> tuple[str, ...]:
    """The arguments of this program that ask for it."""
    return tuple(f"{name}={'on' if on else 'off'}" for name, on in asked.items())


def answer(text: str) -> Answer:
    """What this program printed."""
    table: dict[str, Any] = json.loads(text)
    before, after = ({name: State(*values) for name, values in table[key].items()} for key in ("before", "after"))
    return Answer(before, after, tuple(table["unknown"]))


def names(states: Mapping[str, State]) -> set[str]:
    """What may be asked for by name on such a device."""
    return {*PATTERNS, *states}


def members(name: str, states: Mapping[str, State]) -> tuple[str, ...]:
    """The kernel's features that a name stands for; none: it is unknown."""
    head, star, tail = PATTERNS.get(name, name).partition("*")
    if not star:
        return (head,) if head in states else ()
    return tuple(each for each in states if each.startswith(head) and each.endswith(tail))


def changes(asked: Mapping[str, bool], states: Mapping[str, State]) -> dict[str, bool]:
    """What must be asked of which feature, so that each name is as it shall be; later names have the last word.

    Several features are on when one of them is, as ethtool shows it. So "on" leaves alone what is half on already:
    no driver turns all of "tso" on by itself.
    """
    wanted = {name: _asked(state) for name, state in states.items()}
    for name, on in asked.items():
        found = members(name, states)
        if any(wanted[each] for each in found) != on:
            wanted.update({each: on for each in found if not states[each].fixed})
    return {name: on for name, on in wanted.items() if not states[name].fixed and on != states[name].wanted}


def changed(states: Mapping[str, State], made: Mapping[str, bool]) -> States:
    """The features after these changes, where nothing stands in their way."""
    after = {name: made.get(name, _asked(state)) for name, state in states.items()}
    return {name: state._replace(on=after[name], wanted=after[name]) for name, state in states.items()}


def unmet(asked: Mapping[str, bool], states: Mapping[str, State]) -> Iterator[str]:
    """Each name that is not as it shall be, and why. Several features are not on while one is held off.

    A feature is as the last name says that stands for it.
    """
    last = {each: name for name in asked for each in members(name, states)}
    for name, on in asked.items():
        found = [state for each, state in states.items() if last.get(each) == name]
        if not found:
            continue
        is_on = any(state.on for state in found)
        if is_on != on or (on and any(state.wanted and not state.on for state in found)):
            is_fixed = all(state.fixed for state in found if state.on != on)
            why = "the device's driver fixes it" if is_fixed else "the kernel did not take it"
            yield f"{name} cannot be {'on' if on else 'off'}: {why}"


def main(arguments: Sequence[str]) -> int:
    """The program: its exit status is 1 when the device cannot be asked or changed."""
    device, *rest = arguments
    current = named(device)
    asked = {name: _WORDS[value] for name, _, value in (word.rpartition("=") for word in rest)}
    ioctl = _pyroute2()
    try:
        opened = ioctl.IoctlEthtool(current)
        before = _states(opened)
        unknown = [name for name in asked if not members(name, before)]
        made = {} if unknown else changes(asked, before)
        if made:
            features = opened.get_features()
            for name, on in made.items():
                features[name] = on
            # It calls it "not supported" when another feature stands in the way. What came of it is read back.
            with suppress(ioctl.NotSupportedError):
                opened.set_features(features)
        after = _states(opened) if made else before
    except (OSError, LookupError, ioctl.EthtoolError) as error:
        sys.stderr.write(f"{device}: its features cannot be read or set: {error}\n")
        return 1
    if named(device) != current:
        sys.exit(f"{device}: it was renamed meanwhile, from {current}")
    json.dump({"before": before, "after": after, "unknown": unknown}, sys.stdout)
    return 0


def named(device: str) -> str:
    """The name that the device has now."""
    number = device.removeprefix("if")
    if number == device or not number.isdecimal() or device in (name for _, name in socket.if_nameindex()):
        return device
    try:
        return socket.if_indextoname(int(number))
    except OSError:
        return device


def _asked(state: State) -> bool:
    return state.on if state.fixed else state.wanted


def _states(opened: Any) -> States:
    features = opened.get_features()
    return {
        name: State(
            on=features.is_active(name),
            wanted=features.is_requested(name),
            fixed=features.is_never_changed(name) or not features.is_available(name),
        )
        for name in features.keys()  # noqa: SIM118 - to iterate over it gives more than names
        if name
    }


def _pyroute2() -> Any:
    """Its module with the ioctl, without its front page, which imports all of it: 30 ms in place of 350."""
    for package in ("pyroute2", "pyroute2.ethtool"):
        spec = find_spec(package)
        if spec is None:
            sys.exit(f"{package} is not installed")
        sys.modules[package] = module_from_spec(spec)
    from pyroute2.ethtool import ioctl  # noqa: PLC0415 - only in the program, and only after this

    return ioctl


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
