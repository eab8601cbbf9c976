"""ethtool's offloads of a device: set, and read back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from ingest_bench import records
from ingest_bench.errors import MissingCapability, SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# The short words of `ethtool -K` and the long ones of `ethtool -k` (ethtool.c, off_flag_def).
LONG_NAMES = {
    "rx": "rx-checksumming",
    "tx": "tx-checksumming",
    "sg": "scatter-gather",
    "tso": "tcp-segmentation-offload",
    "gso": "generic-segmentation-offload",
    "gro": "generic-receive-offload",
    "lro": "large-receive-offload",
    "rxvlan": "rx-vlan-offload",
    "txvlan": "tx-vlan-offload",
    "ntuple": "ntuple-filters",
    "rxhash": "receive-hashing",
}
# Common words that ethtool itself does not take.
ALIASES = {"tx-checksum": "tx", "rx-checksum": "rx", "tx-checksumming": "tx", "rx-checksumming": "rx"}


class Place(Protocol):
    """Where a device lives: a namespace."""

    def run(self, argv: Sequence[str], *, stdin: str | None = None, check: bool = True) -> str:
        """What the command, run inside, wrote to its standard output."""


def argv(device: str, offloads: Mapping[str, bool]) -> tuple[str, ...]:
    """The argv that sets them all at once."""
    words = (word for name, on in offloads.items() for word in (ALIASES.get(name, name), "on" if on else "off"))
    return ("ethtool", "-K", device, *words)


def parse(text: str) -> dict[str, tuple[bool, bool]]:
    """Feature to (is on, is fixed) from `ethtool --json -k DEVICE`."""
    table: dict[str, Any] = json.loads(text)[0]
    return {
        name: (bool(state["active"]), bool(state["fixed"])) for name, state in table.items() if isinstance(state, dict)
    }


def apply(place: Place, device: str, offloads: Mapping[str, bool]) -> dict[str, bool]:
    """What was changed, with what it was before; proven by reading it back: ethtool ends well without a change."""
    if not offloads:
        return {}
    before = parse(place.run(("ethtool", "--json", "-k", device)))
    for name in offloads:
        if _long(name) not in before:
            known = {*LONG_NAMES, *ALIASES, *before}
            raise SpecError(f'offloads: unknown feature "{name}"; {records.nearest(name, known)}')
    changes = {name: on for name, on in offloads.items() if before[_long(name)][0] != on}
    if not changes:
        return {}
    place.run(argv(device, changes), check=False)
    after = parse(place.run(("ethtool", "--json", "-k", device)))
    for name, on in offloads.items():
        active, fixed = after[_long(name)]
        if active != on:
            why = "the device's driver fixes it" if fixed else "the kernel did not take it"
            state = "on" if on else "off"
            raise MissingCapability(f"offloads: {name} cannot be {state} on this link: {why}. Leave the key out.")
    return {name: not on for name, on in changes.items()}


def _long(name: str) -> str:
    short = ALIASES.get(name, name)
    return LONG_NAMES.get(short, short)
