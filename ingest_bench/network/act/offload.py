"""What became of the offloads that a profile asks for: `features` is the program that sets them and reads back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest_bench import records
from ingest_bench.errors import MissingCapability, SpecError
from ingest_bench.network.plan import features

if TYPE_CHECKING:
    from collections.abc import Mapping


def changed(said: str, offloads: Mapping[str, bool]) -> dict[str, bool]:
    """What `commands.offloads` changed, by what it said: each feature with what was asked of it before.

    MissingCapability when one is not as it shall be, by what was read back.
    """
    answer = features.answer(said)
    for name in answer.unknown:
        raise SpecError(f'offloads: unknown feature "{name}"; {records.nearest(name, features.names(answer.before))}')
    for reason in features.unmet(offloads, answer.after):
        raise MissingCapability(f"offloads: on this link {reason}. Leave the key out.")
    return {name: state.wanted for name, state in answer.before.items() if answer.after[name].wanted != state.wanted}
