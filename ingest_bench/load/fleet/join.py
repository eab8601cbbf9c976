"""Fleet as another machine sees it: what `ingest-bench worker` needs before it starts Locust's worker."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.load.fleet.keys import WorkerKeys
from ingest_bench.load.fleet.roster import PORT
from ingest_bench.load.fleet.transfer import Watched
from ingest_bench.model.target import Endpoint, Url

_FOLDER, _LOCK = "ingest-bench-worker-", "worker.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """The run that a worker joins, and what the worker may do for it."""

    master: Endpoint
    keys: WorkerKeys
    credentials_to: Url | None = None
    """The only server that gets this machine's credentials; None: no server."""
    ca_pem: str = ""
    """CA certificates that verify it; empty: those that this machine trusts."""
    name: str = ""
    """Name in messages; empty: this machine's."""
    timeout_s: float = 300.0
    """How long to wait for the run, which waits as long for us (`fleet.roster`)."""
    watched: Watched | None = None
    """The JVM to watch; None: it sends loads instead."""
    observer_argv: tuple[str, ...] = ()
    """Command of the child that watches a run, by lines of JSON: it reads a request with `run` and `raw`, then any line
    to stop, and writes `transfer.Observed`."""


def run_worker(options: JoinOptions, folder: Path, log: Callable[[str], None]) -> None:
    """Send all loads of an experiment for the run that waits there, or watch its runs; RunFailed otherwise.

    The run is waited for, so that both may be started in any order. Files are kept below *folder* until they were
    collected. *log* gets a line about each step.
    """
    # Otherwise Locust lets gevent patch the whole process. Our children are not concerned.
    os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"
    from ingest_bench.load.fleet.worker import FleetMember  # noqa: PLC0415 - other commands do not need Locust

    del os.environ["LOCUST_SKIP_MONKEY_PATCH"]
    log(f"waiting for {options.master}, at most {options.timeout_s:.0f} s")
    try:
        count = FleetMember(options, folder, log).run()
    except RunFailed as error:
        raise RunFailed(f"{options.master}: {error}") from None
    log(f"{options.master} has no more {'loads; sent' if options.watched is None else 'runs; watched'}: {count}")


@contextlib.contextmanager
def worker_folder() -> Iterator[Path]:
    """Create a folder for a worker and remove it after the block; after a `kill -9`, the next worker removes it.

    Only folders of this name that belong to this user and whose lock is free are removed.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        _remove_if_left(left)
    with (
        tempfile.TemporaryDirectory(prefix=_FOLDER, ignore_cleanup_errors=True) as name,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(name)
        lock = stack.enter_context((folder / "new").open("wb"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Locked before it has the name that other workers look for.
        (folder / "new").rename(folder / _LOCK)
        yield folder


def _remove_if_left(folder: Path) -> None:
    """Remove the folder of a worker of this user that was killed."""
    try:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            return
        descriptor = os.open(folder / _LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        return
    finally:
        os.close(descriptor)


def parse_endpoint(text: str) -> Endpoint:
    """Parse "HOST" or "HOST:PORT"; an IPv6 address with a port is written in brackets."""
    bare = text.removeprefix("[").removesuffix("]")
    if "]" not in text[:-1] and bare.count(":") != 1:
        host, port = bare, str(PORT)
    else:
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
    if not host or re.fullmatch("[0-9]{1,5}", port) is None or not 0 < int(port) < 65536:
        raise SpecError(f"{text}: write it like 192.0.2.7, bench.example:{PORT} or [2001:db8::7]:{PORT}")
    return Endpoint(host, int(port))
