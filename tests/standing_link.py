"""A link for all tests of a module, which change its impairment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from ingest_bench.errors import MissingCapability
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act.link import Link, choose_backend, open_link


def make_profile(impairment: Impairment) -> Profile:
    """Return a profile with that impairment to the server, in which each packet is a frame."""
    return Profile(name="state", gso_max_segs=1, to_server=impairment)


@contextmanager
def open_for(impairments: Iterable[Impairment]) -> Iterator[Link]:
    """Yield a link with the first impairment that can be changed to each; skip if this machine has no netem."""
    profiles = [make_profile(impairment) for impairment in impairments]
    try:
        choose_backend("auto", profiles)
    except MissingCapability as error:
        pytest.skip(str(error))
    with open_link(profiles[0], later_profiles=profiles) as link:
        yield link
