"""Several machines on one switch: a namespace each, and one for the bridge between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.network.act.sandbox import Namespace, sandbox


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine."""

    place: Namespace
    address: str


@contextmanager
def machines(count: int) -> Iterator[list[Machine]]:
    """So many machines that reach each other and nobody else; a skip where there can be none."""
    with sandbox() as opened:
        try:
            switch = opened.add()
            switch.run(("ip", "link", "add", "switch", "type", "bridge"))
        except (MissingCapability, RunFailed) as error:
            pytest.skip(str(error))
        switch.run(("ip", "link", "set", "switch", "up"))
        found = []
        for number in range(1, count + 1):
            one = Machine(opened.add(), f"198.18.7.{number}")
            port = f"port{number}"
            ends = ("type", "veth", "peer", "name", "eth0", "netns", str(one.place.pid))
            switch.run(("ip", "link", "add", port, *ends))
            switch.run(("ip", "link", "set", port, "master", "switch", "up"))
            one.place.run(("ip", "link", "set", "lo", "up"))
            one.place.run(("ip", "addr", "add", f"{one.address}/24", "dev", "eth0"))
            one.place.run(("ip", "link", "set", "eth0", "up"))
            found.append(one)
        yield found
