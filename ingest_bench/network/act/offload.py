"""The offloads of a device, set as a profile says, and read back: `features` is the program that does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ingest_bench import records
from ingest_bench.errors import MissingCapability, SpecError
from ingest_bench.network.plan import commands, features

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Place(Protocol):
    """Where a device lives: a namespace."""

    def run(self, argv: Sequence[str], *, stdin: str | None = None, check: bool = True) -> str:
        """What the command, run inside, wrote to its standard output."""


def apply(place: Place, device: str, offloads: Mapping[str, bool]) -> dict[str, bool]:
    """The features that were changed, with what was asked of them before. Proven by reading them back.

    MissingCapability when one is not as it shall be.
    """
    if not offloads:
        return {}
    answer = features.answer(place.run(commands.offloads(device, offloads)))
    for name in answer.unknown:
        raise SpecError(f'offloads: unknown feature "{name}"; {records.nearest(name, features.names(answer.before))}')
    for reason in features.unmet(offloads, answer.after):
        raise MissingCapability(f"offloads: on this link {reason}. Leave the key out.")
    return {name: state.wanted for name, state in answer.before.items() if answer.after[name].wanted != state.wanted}
