"""Carries out the steps of a link of our own, in the order of its plan.

Steps of a real interface are a ledger's to carry out: their undo is on disk before each of them (`ledger.session`).
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from ingest_bench.network.act.sandbox import Namespace
from ingest_bench.network.plan import commands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence

    from ingest_bench.ledger.steps import Step

# These take many commands at once: a process for each of them would make a link slow.
_BATCHES = {"ip", "tc"}


class Place(Protocol):
    """Where commands run: a namespace, or a guest."""

    def run(self, argv: Sequence[str], *, stdin: str | None = None, check: bool = True) -> str:
        """What the command, run inside, wrote to its standard output."""


def carry_out(
    steps: Iterable[Step],
    at: MutableMapping[str, Place],
    starts: Mapping[str, Callable[[Sequence[str]], Place]] | None = None,
) -> list[tuple[Step, str]]:
    """What each command that is no part of a batch answered. RunFailed with the words of the first that failed.

    A place that is not there yet begins with its first command: `starts` makes it of its argv.
    """
    answers = []
    for (place, program), group in groupby(steps, lambda step: (step.place, step.do.argv[0])):
        alike = list(group)
        if place not in at:
            at[place] = (starts or {})[place](alike.pop(0).do.argv)
        if program in _BATCHES and alike:
            lines = tuple(" ".join(_argv(step, at)[1:]) for step in alike)
            at[place].run((program, "-batch", "-"), stdin=commands.text(lines))
        else:
            answers += [(step, at[place].run(step.do.argv)) for step in alike]
    return answers


def _argv(step: Step, at: Mapping[str, Place]) -> tuple[str, ...]:
    """With the process that holds a namespace in the place of its name, behind the word "netns"."""
    pairs = zip(("", *step.do.argv), step.do.argv, strict=False)
    return tuple(_pid(at[word]) if before == "netns" else word for before, word in pairs)


def _pid(place: Place) -> str:
    assert isinstance(place, Namespace)  # noqa: S101 - a plan puts devices into nothing else
    return str(place.pid)
