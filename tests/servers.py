"""A real server for a test: started as a run starts it, in its own namespace, reached over its link."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from ingest_bench import system, targets
from ingest_bench.errors import MissingCapability
from ingest_bench.jvm import cache, process
from ingest_bench.jvm.attach import AttachedJvm
from ingest_bench.jvm.process import Launch, ServerProcess, serve
from ingest_bench.model.load import Workload
from ingest_bench.model.network import Medium, Profile
from ingest_bench.model.target import Endpoint, LaunchPlan, ServerAddress, TargetOptions
from ingest_bench.network.act.link import Link, open_link
from ingest_bench.targets.base import NodeStart, Target
from ingest_bench.targets.http import Enter, Http, Response, open_http

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
    """A ready server with its client."""

    target: Target
    options: TargetOptions
    process: ServerProcess
    http: Http
    home: Path
    link: Link
    listen: Endpoint

    def create_index(self, workload: Workload) -> None:
        """Create the workload's index."""
        for request in self.target.prepare(self.options, (workload.index,), workload.mapping).requests:
            self.target.execute(self.http, request)

    def count(self, index: str) -> int:
        """Return the number of documents in an index."""
        count = self.target.count((self.http,), (index,))
        assert count is not None
        return count

    def counters(self) -> dict[str, Any]:
        """Return what the server counted since its start."""
        return self.target.read_counters((self.http,))

    def bulk(self, documents: int) -> Response:
        """Return the response to a bulk of small documents."""
        body = b'{"index":{}}\n{"number":1}\n' * documents
        return self.http.request("POST", self.target.wire(self.options, WORKLOAD).destination, body, BULK)


@contextmanager
def served(
    tmp_path: Path, options: TargetOptions, jvm_options: tuple[str, ...] = (), *, medium: Medium = "veth"
) -> Iterator[Served]:
    """Yield a ready server; check afterwards that no process is left and that the cache is unchanged."""
    used: list[Path] = []
    before: dict[str, tuple[int, int]] = {}

    def remember(plan: LaunchPlan) -> None:
        used.extend((*in_cache(plan.argv), Path(plan.argv[0]).parent.parent))
        before.update(snapshot(used))

    with opened_link(medium) as link:
        listen, home = Endpoint(link.server_address, PORT), tmp_path / "home"
        enter = (link.server.command, link.client.command)
        with launched(options, (listen,), tmp_path, enter=enter, jvm_options=jvm_options, remember=remember) as started:
            yield Served(targets.resolve(options), options, started[1], started[0], home, link, listen)
    assert not psutil.pid_exists(started[1].jvm_pid)
    commands = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if str(home) in command]
    changed = {path for path, _ in snapshot(used).items() ^ before.items()}
    assert not changed


@contextmanager
def launched(
    options: TargetOptions,
    nodes: Sequence[Endpoint],
    folder: Path,
    *,
    enter: tuple[Enter, Enter] = (tuple, tuple),
    jvm_options: tuple[str, ...] = (),
    remember: Callable[[LaunchPlan], None] = lambda _: None,
) -> Iterator[tuple[Http, ServerProcess]]:
    """Yield the ready first node and its client. `enter` leads to the namespaces of server and client."""
    target, log = targets.resolve(options), folder / "server.log"
    java = targets.fetch(target.requirements(options))
    plan = target.launch_plan(NodeStart(options, java, folder / "home", 0, nodes, jvm_options))
    remember(plan)
    with open_http(ServerAddress(endpoint=nodes[0]), enter[1], log) as http:
        launch = Launch(
            plan=plan,
            enter=enter[0],
            log=log,
            listen=nodes[0],
            is_ready=lambda remaining_s: target.is_ready(0, (http.with_deadline(remaining_s),)),
        )
        with serve(launch) as (process,):
            yield http, process


def list_outputs(jvm: AttachedJvm) -> tuple[list[str], list[str]]:
    """Return log outputs and recordings of a JVM."""
    outputs = re.findall(r"^ #\d+: (.*)$", jvm.run_jcmd("VM.log", "list"), re.MULTILINE)
    return outputs, re.findall(r"name=\S+", jvm.run_jcmd("JFR.check"))


@contextmanager
def visible() -> Iterator[None]:
    """Start the servers of the block as a user would: not in a process namespace, so that they can be attached to."""
    drop_privileges = process.drop_privileges
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system, "wrap_in_pid_namespace", tuple)
        patch.setattr(process, "drop_privileges", lambda plan: (*drop_privileges(plan), *system.tie_to_parent(())))
        patch.setattr(process, "_find_jvm_pid", lambda started: started.popen.pid)
        yield


def on_this_network(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the argv that runs *argv* on the network of the test, with the capabilities for a process namespace."""
    return (
        tuple(argv) if system.is_root() else ("unshare", "--user", "--map-root-user", "--", *system.tie_to_parent(argv))
    )


@contextmanager
def opened_link(medium: Medium = "veth") -> Iterator[Link]:
    """Open a plain link with offloads, the fastest one with two addresses; skip the test if that is impossible."""
    mtu_bytes = 65536 if medium == "loopback" else 1500
    profile = Profile(name="test", medium=medium, mtu_bytes=mtu_bytes)
    with ExitStack() as stack:
        try:
            link = stack.enter_context(open_link(profile))
        except MissingCapability as error:
            pytest.skip(str(error))
        yield link


def in_cache(argv: Iterable[str]) -> tuple[Path, ...]:
    """Return the paths of a command line that are in the cache."""
    words = [word for argument in argv for word in re.split("[:=]", argument)]
    below = [Path(word.removesuffix("/*")) for word in words if word.startswith(str(cache.folder()))]
    return tuple(path.parent if path.name in ("lib", "bin") else path for path in below)


def snapshot(used: Iterable[Path]) -> dict[str, tuple[int, int]]:
    """Return size and modification time of all files at and below these paths."""
    states = {}
    for top in used:
        for path in (top, *top.rglob("*")):
            status = path.lstat()
            states[str(path)] = (status.st_size, status.st_mtime_ns)
    return states
