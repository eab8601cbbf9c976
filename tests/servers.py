"""A real server for a test: started as a run starts it, in a namespace of its own, asked over its link."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from ingest_bench import system, targets
from ingest_bench.errors import MissingCapability
from ingest_bench.jvm import cache, process, server_user
from ingest_bench.jvm.process import Launch, ServerProcess, serve
from ingest_bench.model.network import Medium, Profile
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.model.workload import Workload
from ingest_bench.network.act.link import Link, link
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
    between: Link
    listen: Endpoint

    def create_index(self, workload: Workload) -> None:
        """The workload's index, empty."""
        for request in self.target.prepare(self.asked, (workload.index,), workload.mapping).requests:
            self.target.ask(self.http, request)

    def count(self, index: str) -> int:
        """The documents in that index."""
        counted = self.target.count((self.http,), (index,))
        assert counted is not None
        return counted

    def bulk(self, documents: int) -> Answer:
        """The answer to a bulk of that many small documents."""
        body = b'{"index":{}}\n{"number":1}\n' * documents
        return self.http.request("POST", self.target.wire(self.asked, WORKLOAD).place, body, BULK)


@contextmanager
def served(
    tmp_path: Path, asked: TargetOptions, jvm_options: tuple[str, ...] = (), *, medium: Medium = "veth"
) -> Iterator[Served]:
    """A ready server; afterwards none of its processes is left, and the cache is what it was."""
    target = targets.of(asked)
    java = targets.fetch(target.requirements(asked))
    home = tmp_path / "home"
    with opened_link(medium) as between:
        listen = Endpoint(between.server_address, PORT)
        plan = target.launch_plan(asked, java, home, 0, (listen,), jvm_options)
        used = (*in_cache(plan.argv), java.home)
        before = snapshot(used)
        log = tmp_path / "server.log"
        with ask(between.client.command, listen, log=log) as http:
            launch = Launch(
                plan=plan,
                enter=between.server.command,
                log=log,
                listen=listen,
                ready=lambda left_s: target.is_ready(0, (http.within(left_s),)),
            )
            with serve(launch) as (server,):
                yield Served(target, asked, server, http, home, between, listen)
    assert not psutil.pid_exists(server.jvm_pid)
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(home) in " ".join(one.info["cmdline"] or ())]
    changed = {path for path, _ in snapshot(used).items() ^ before.items()}
    assert not changed


@contextmanager
def visible() -> Iterator[None]:
    """Start the servers of the block as a user would: not in a process namespace, so that they can be attached to."""
    drop_privileges = server_user.drop_privileges
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system, "contained", tuple)
        patch.setattr(server_user, "drop_privileges", lambda plan: (*drop_privileges(plan), *system.with_us(())))
        patch.setattr(process, "_jvm_pid", lambda started: started.popen.pid)
        yield


def on_this_network(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the argv that runs *argv* on the network of the test, with the capabilities for a process namespace."""
    return tuple(argv) if system.is_root() else ("unshare", "--user", "--map-root-user", "--", *system.with_us(argv))


@contextmanager
def opened_link(medium: Medium = "veth") -> Iterator[Link]:
    """A plain link with offloads: the quickest that has two addresses. A skip where there can be none."""
    mtu_bytes = 65536 if medium == "loopback" else 1500
    profile = Profile(name="test", medium=medium, mtu_bytes=mtu_bytes)
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(link(profile))
        except MissingCapability as error:
            pytest.skip(str(error))
        yield opened


def in_cache(argv: Iterable[str]) -> tuple[Path, ...]:
    """What a server uses of the cache: each path of its command line that is there."""
    words = [word for argument in argv for word in re.split("[:=]", argument)]
    below = [Path(word.removesuffix("/*")) for word in words if word.startswith(str(cache.folder()))]
    return tuple(path.parent if path.name in ("lib", "bin") else path for path in below)


def snapshot(used: Iterable[Path]) -> dict[str, tuple[int, int]]:
    """All that is at and below these paths: to size and time of the last change."""
    found = {}
    for top in used:
        for path in (top, *top.rglob("*")):
            status = path.lstat()
            found[str(path)] = (status.st_size, status.st_mtime_ns)
    return found
