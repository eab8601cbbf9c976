"""A server that runs already, as a user has one: on loopback, started by nobody whom the command knows."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers import visible

from ingest_bench import targets
from ingest_bench.jvm.process import Launch, ServerProcess, serve
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.targets.http import Http, ask

_NUMBERS = itertools.count()


@contextmanager
def running(tmp_path: Path, asked: TargetOptions) -> Iterator[tuple[Http, ServerProcess]]:
    """A ready server on 127.0.0.1, and how to ask it."""
    target = targets.of(asked)
    java = targets.fetch(target.requirements(asked))
    listen = Endpoint("127.0.0.1", free_port())
    plan = target.launch_plan(asked, java, tmp_path / "home", 0, (listen,), ())
    with ask(tuple, listen) as http:
        launch = Launch(
            plan=plan,
            enter=tuple,
            log=tmp_path / "server.log",
            listen=listen,
            ready=lambda left_s: target.is_ready(0, (http.within(left_s),)),
        )
        with visible(), serve(launch) as (process,):
            yield http, process


def free_port() -> int:
    """Return a free TCP port on loopback that no test in another process gets.

    It is below the ephemeral range: the kernel gives it to no connection meanwhile.
    """
    for number in _NUMBERS:
        port = 10_000 + (os.getpid() * 997 + number) % 20_000
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError
