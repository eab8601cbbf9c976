"""A fleet as another machine sees it: one worker after the other joins, each for one load, until there are no more."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import socket
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench import system
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.load.fleet import json_child
from ingest_bench.load.fleet.json_child import JsonChild
from ingest_bench.load.fleet.roster import PORT
from ingest_bench.model.target import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ingest_bench.load.fleet.keys import WorkerKeys
    from ingest_bench.model.target import Url

# How long `run` is waited for, as long as it waits for us (`fleet.roster`).
_PATIENCE_S = 300.0
# After a load: that run is there, or gone.
_AGAIN_S = 10.0
_FOLDER, _LOCK = "ingest-bench-worker-", "worker.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """Whom a worker joins, and what it may do for them."""

    master: Endpoint
    keys: WorkerKeys
    credentials_to: Url | None = None
    """The only server that hears who we are; None: nobody does."""
    ca_pem: str = ""
    """The certificates that may vouch for it; empty: those that this machine trusts."""
    name: str = ""
    """What it is called there; empty: by this machine's name."""
    patience_s: float = _PATIENCE_S


def join(joining: Joining, folder: Path, tell: Callable[[str], None]) -> None:
    """All loads of an experiment are sent for the run that waits there; RunFailed otherwise.

    That run is waited for, so that the two may be started in any order. Files are kept below `folder` until they were
    collected. `tell` gets a line about what is waited for and what is done.
    """
    tell(f"waiting for {joining.master}, for {joining.patience_s:.0f} s at most")
    loads, last = 0, "released"
    while last == "released":
        own = folder / f"load-{loads + 1}"
        own.mkdir(parents=True)
        try:
            with _worker(joining, own, loads) as lines:
                last = ""
                for line in lines:
                    if "joined" in line and not loads:
                        tell(f"joined {joining.master}, waiting for its loads")
                    elif "load" in line:
                        loads += 1
                        tell(f"load {loads}: {line['load']}")
                    elif "error" in line:
                        raise RunFailed(f"{joining.master}: {line['error']}{_remedy(line['error'])}")
                    elif "last" in line:
                        last = line["last"]
        finally:
            shutil.rmtree(own, ignore_errors=True)
    tell(f"{joining.master} has no more loads; sent: {loads}")


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """Make a folder for a worker's files and remove it after the block; after a `kill -9`, the next worker removes it.

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
        # Held before it has the name that others look for.
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


def endpoint(text: str) -> Endpoint:
    """The address in "HOST" or "HOST:PORT"; an IPv6 address with a port stands in brackets."""
    bare = text.removeprefix("[").removesuffix("]")
    if "]" not in text[:-1] and bare.count(":") != 1:
        host, port = bare, str(PORT)
    else:
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
    if not host or re.fullmatch("[0-9]{1,5}", port) is None or not 0 < int(port) < 65536:
        raise SpecError(f"{text}: write it like 192.0.2.7, bench.example:{PORT} or [2001:db8::7]:{PORT}")
    return Endpoint(host, int(port))


@contextlib.contextmanager
def _worker(joining: Joining, folder: Path, loads: int) -> Iterator[Iterator[dict[str, Any]]]:
    """What a worker process says, line by line; RunFailed where it ends without a last word. It ends with the block."""
    setup = json_child.worker_setup(
        {"host": joining.master.host, "port": joining.master.port},
        joining.keys,
        patience_s=_AGAIN_S if loads else joining.patience_s,
        machine=joining.name or socket.gethostname(),
        folder=str(folder),
        credentials_to=None if joining.credentials_to is None else str(joining.credentials_to),
        ca_pem=joining.ca_pem,
        knows_master=loads > 0,
    )
    log = (folder / "worker.log").open("w+b")
    process = JsonChild(system.python("ingest_bench.load.fleet.fleet_worker"), setup, log)
    try:
        yield _lines(process)
    finally:
        # In order: it says there that it was interrupted here.
        process.close()


def _lines(process: JsonChild) -> Iterator[dict[str, Any]]:
    while not process.has_ended:
        yield from process.read()
    if not {"last", "error"} & process.last.keys():
        raise RunFailed(f"the process that sends here {process.death()}; its log says: {process.log_end()}")


def _remedy(error: str) -> str:
    if error.startswith("nobody"):
        return "; is the load started there, with --bind on an address that this machine reaches?"
    return ""
