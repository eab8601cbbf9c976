"""A link for all tests of a module, which change its impairment, and a TCP transfer over a link."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest
from readied import ready

from ingest_bench.errors import MissingCapability
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act.link import Link, choose_backend, open_link

CLIENT = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 9), timeout=60)
connection.sendall(bytes(int(sys.argv[2])))
connection.shutdown(1)
connection.recv(1)
"""
SERVER = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 9))
print("ready", flush=True)
connection, _ = listener.accept()
time.sleep(float(sys.argv[2]))
while connection.recv(1 << 20):
    pass
"""


def send(link: Link, count_bytes: int, wait_s: float = 0) -> None:
    """Send bytes from the client to a server that first waits."""
    with ready(link.server.command((sys.executable, "-c", SERVER, link.server_address, str(wait_s)))):
        argv = link.client.command((sys.executable, "-c", CLIENT, link.server_address, str(count_bytes)))
        subprocess.run(argv, check=True, timeout=60)


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
