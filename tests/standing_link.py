"""A link that stands for a module's tests, which change its state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from ingest_bench.errors import MissingCapability
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act import box
from ingest_bench.network.act.link import Link, link


def state(impairment: Impairment) -> Profile:
    """Each packet is a frame, and on its way to the server that happens to it."""
    return Profile(name="state", gso_max_segs=1, to_server=impairment)


@contextmanager
def link_of(impairments: Iterable[Impairment]) -> Iterator[Link]:
    """In the first state, and able to be in each."""
    later = [state(impairment) for impairment in impairments]
    try:
        box.choose("auto", later)
    except MissingCapability as error:
        pytest.skip(str(error))
    with link(later[0], later=later) as made:
        yield made
