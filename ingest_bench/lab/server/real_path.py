"""The real interface that leads to a server that runs already, shaped for the time of a run."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Callable, Iterator, Sequence

from ingest_bench.errors import SpecError
from ingest_bench.lab.server import attaching
from ingest_bench.model.experiment import Cell
from ingest_bench.model.network import FarEnd, PortRange, Profile, RealLink
from ingest_bench.model.target import Endpoint, Place
from ingest_bench.network.act import interface
from ingest_bench.network.measure.one_end import OneEnd, one_end

Enter = Callable[[Sequence[str]], tuple[str, ...]]

# Of a load whose end nobody knows; and what asking, waiting and counting take beside one whose end is known.
_LONGEST_S, _AROUND_A_LOAD_S = 24 * 3600.0, 1800.0


def check(cell: Cell, place: Place, enter: Enter) -> None:
    """SpecError or MissingCapability where the way to the server cannot be shaped as the cell says."""
    if cell.network is not None:
        interface.require(cell.network)
        link = of(cell, place, enter)
        interface.plan(link, cell.network)
        load_s, limit_s = _load_s(cell), interface.limit_s(link, _limit_s(cell))
        if load_s is not None and load_s >= limit_s:
            raise SpecError(
                f"--interface {link.name}: your SSH connection runs over it, so it may be shaped for {limit_s:g} s, "
                f"and the load takes {load_s:g} s; take less, or allow more with --ssh-limit"
            )


def shaped(cell: Cell, profile: Profile, place: Place, enter: Enter) -> contextlib.AbstractContextManager[OneEnd]:
    """The way to the server in the state of the cell's profile, for the block's time."""
    link = of(cell, place, enter)
    limit_s = interface.limit_s(link, _limit_s(cell))
    return one_end(link, profile, place.endpoint, time_limit_s=limit_s)


def of(cell: Cell, place: Place, enter: Enter) -> RealLink:
    """The cell's interface with the load's connections: to each address of the server, and to others that it names.

    SpecError where the way there is in another network namespace.
    """
    link = cell.target.interface
    assert link is not None  # noqa: S101 - a cell with a network and a server that runs already has one
    if attaching.is_elsewhere(enter):
        raise SpecError(
            f"--interface {link.name}: the server is in another network namespace of this machine, and the load goes "
            "there too: it leaves by no interface. Leave --interface out."
        )
    if link.port:
        return link
    ends = (end for one in (place, *place.others) for end in _far_ends(one.endpoint))
    return dataclasses.replace(link, to=tuple(dict.fromkeys((*ends, *link.to))))


def _far_ends(endpoint: Endpoint) -> Iterator[FarEnd]:
    """The endpoint by each address that it has: a worker takes any of these."""
    try:
        known = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SpecError(f"{endpoint}: there is no host of this name ({error.strerror})") from None
    for *_, address in known:
        yield FarEnd(str(address[0]), None, (PortRange(endpoint.port, endpoint.port),))


def _limit_s(cell: Cell) -> float:
    """When the way is put back at the latest, also where nobody else can do it any more."""
    load_s = _load_s(cell)
    return _LONGEST_S if load_s is None else load_s + _AROUND_A_LOAD_S


def _load_s(cell: Cell) -> float | None:
    """How long the load takes at most; None: nobody knows."""
    if cell.load.track is not None or cell.load.measure_documents is not None:
        return None
    return (cell.load.longest_warm_up_ns + cell.load.measure_ns) / 1e9
