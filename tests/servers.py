"""A real server for a test: started as a run starts it, in a namespace of its own, asked over its link."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from ingest_bench import targets
from ingest_bench.errors import MissingCapability
from ingest_bench.jvm import cache
from ingest_bench.jvm.process import ServerProcess, serve
from ingest_bench.model.network import Profile
from ingest_bench.model.target import Endpoint, LaunchPlan, TargetOptions
from ingest_bench.model.workload import Workload
from ingest_bench.network.link import link
from ingest_bench.targets import Target
from ingest_bench.targets.http import Answer, Http, ask

PORT = 9200
BULK = {"Content-Type": "application/x-ndjson"}
WORKLOAD = Workload(
    name="test",
    description="",
    source="",
    index="test",
    published_documents=1,
    published_bytes=1,
    bulk_documents=1,
    users=1,
    mapping={"mappings": {"properties": {"number": {"type": "long"}}}},
    fields=(),
)


@dataclass(frozen=True, slots=True)
class Served:
    """A server that is ready, and how to ask it."""

    target: Target
    asked: TargetOptions
    process: ServerProcess
    http: Http
    home: Path

    def bulk(self, documents: int) -> Answer:
        """The answer to a bulk of that many small documents."""
        body = b'{"index":{}}\n{"number":1}\n' * documents
        return self.http.request("POST", self.target.bulk_path(self.asked, WORKLOAD), body, BULK)


@contextmanager
def served(tmp_path: Path, asked: TargetOptions, jvm_options: tuple[str, ...] = ()) -> Iterator[Served]:
    """A ready server; afterwards none of its processes is left, and the cache is what it was."""
    target = targets.named(asked.name)
    java = targets.fetch(target.requirements(asked))
    home = tmp_path / "home"
    # Plain veth with offloads: the quickest link there is with two addresses.
    profile = Profile(name="test", congestion_control=None)
    with opened_link(profile) as (enter_server, enter_client, address):
        listen = Endpoint(address, PORT)
        plan = target.launch_plan(asked, java, home, listen, jvm_options)
        before = snapshot()
        with ask(enter_client, listen) as http:
            log = tmp_path / "server.log"
            with serve(plan, enter=enter_server, log=log, listen=listen, ready=lambda: target.is_ready(http)) as process:
                yield Served(target, asked, process, http, home)
    assert not psutil.pid_exists(process.jvm_pid)
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(home) in " ".join(one.info["cmdline"] or ())]
    assert snapshot() == before


@contextmanager
def opened_link(profile: Profile) -> Iterator[tuple[Any, Any, str]]:
    try:
        with link(profile) as opened:
            yield opened.server.command, opened.client.command, opened.server_address
    except MissingCapability as error:
        pytest.skip(str(error))


def snapshot() -> dict[str, tuple[int, int]]:
    """What is in the cache: path to size and time of the last change."""
    found = {}
    for folder, _, files in os.walk(cache.folder()):
        for name in (*files, ""):
            status = (Path(folder) / name).lstat()
            found[f"{folder}/{name}"] = (status.st_size, status.st_mtime_ns)
    return found


__all__ = ["BULK", "PORT", "WORKLOAD", "LaunchPlan", "Served", "opened_link", "served", "snapshot"]
