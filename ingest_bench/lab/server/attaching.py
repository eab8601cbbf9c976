"""The server of a run as the JVM of a pid: which process it is, the way to it, and where it listens."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ingest_bench import system, targets
from ingest_bench.errors import IngestBenchError, MissingCapability, SpecError
from ingest_bench.jvm import listening
from ingest_bench.jvm.attach import Attached, attach, began, facts_of
from ingest_bench.model.experiment import Plan
from ingest_bench.model.target import Endpoint, TargetOptions, Url
from ingest_bench.targets import running
from ingest_bench.targets.http import Http

Enter = Callable[[Sequence[str]], tuple[str, ...]]
Asked = Callable[[Endpoint], AbstractContextManager[Http]]


def pinned(plan: Plan) -> Plan:
    """The plan with the start of each process that it names by a pid: nothing else is measured for it, ever."""
    runs = []
    for run in plan.runs:
        options = run.cell.target
        if options.attach is not None and options.attach_started is None:
            options = dataclasses.replace(options, attach_started=_started(options.attach))
        runs.append(dataclasses.replace(run, cell=dataclasses.replace(run.cell, target=options)))
    return dataclasses.replace(plan, runs=tuple(runs))


def jvm_of(options: TargetOptions, java_home: Path | None) -> Attached:
    """The JVM of `options.attach`; SpecError when it is none, or not the one that the plan was made for."""
    assert options.attach is not None  # noqa: S101 - whoever asks has a pid
    if options.attach_started not in (None, _started(options.attach)):
        raise SpecError(
            f"--attach {options.attach}: the process with this pid is another one than when the plan was made. "
            "Its runs cannot be continued: start anew with the pid of the server."
        )
    return attach(options.attach, java_home)


def way_to(jvm: Attached) -> Enter:
    """Leads a command into the network namespace of the JVM; MissingCapability when we may not go there."""
    theirs = Path(f"/proc/{jvm.pid}/ns/net")
    if theirs.readlink() == Path("/proc/self/ns/net").readlink():
        return tuple
    if not system.is_root():
        raise MissingCapability(
            f"attach: pid {jvm.pid} is in another network namespace (a container). Only root can send from there: run "
            "as root, or run ingest-bench inside it."
        )
    return lambda argv: ("nsenter", f"--net={theirs}", "--", *argv)


def is_elsewhere(enter: Enter) -> bool:
    """Whether that way leads out of our network namespace."""
    return enter is not tuple


def url_of(jvm: Attached, asked: Asked, options: TargetOptions) -> Url:
    """Where the JVM answers as it should; SpecError when that is nowhere, or in several places."""
    tried: list[str] = []
    found: list[Url] = []
    for endpoint in listening.endpoints(jvm.pid):
        url = Url(scheme="http", host=endpoint.host, port=endpoint.port)
        try:
            with asked(endpoint) as http:
                name = running.name_of(http, options, targets.TARGETS)
        except IngestBenchError as error:
            tried.append(str(error).splitlines()[0])
        else:
            found.append(url)
            tried.append(f"{url}: {name}")
    if len(found) == 1:
        return found[0]
    seen = "".join(f"\n  {line}" for line in tried) or " it listens on no TCP port"
    raise SpecError(f"--attach {jvm.pid}: which URL? Give --url beside it. Found:{seen}")


def literal(url: Url) -> Endpoint:
    """The address in a URL for another network namespace: names are looked up here, and mean something else there."""
    try:
        return Endpoint(str(ipaddress.ip_address(url.host)), url.port)
    except ValueError:
        raise SpecError(
            f"--url {url}: the JVM is in another network namespace, where this name may be another host. Give the "
            "address as a number."
        ) from None


def described(jvm: Attached) -> dict[str, Any]:
    """What the JVM tells beyond what its server does."""
    said = facts_of(jvm)
    heap = {} if said.heap_bytes is None else {"heap_bytes": said.heap_bytes}
    return {"pid": jvm.pid, "began": began(jvm.pid), "java": jvm.version, "collector": said.collector, **heap}


def _started(pid: int) -> str:
    found = began(pid)
    if found is None:
        raise SpecError(f"--attach {pid}: there is no such process. `jcmd -l` lists the JVMs of this user.")
    return found
