"""Worker of a fleet: Locust's WorkerRunner for one load. `python -m ingest_bench.load.fleet.worker`.

A child of `ingest-bench worker` (`fleet.join`). Keys and permissions are the first line of JSON on standard input;
events for its parent go to standard output. It joins the master, gets its plan, sends, hands over its files, and ends.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import os
import socket
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
import locust.log
import locust.runners
from gevent.event import AsyncResult, Event
from gevent.queue import Empty, Queue
from locust.env import Environment

from ingest_bench.errors import IngestBenchError, RunFailed, describe_error, describe_error_for_remote
from ingest_bench.inputs import credentials, urls
from ingest_bench.inputs.records import from_json
from ingest_bench.load.channel import LineChannel, die_with_parent
from ingest_bench.load.fleet import curve, keys
from ingest_bench.load.fleet.transfer import split_file
from ingest_bench.load.page import PageStatistics
from ingest_bench.load.plan import LoadPlan, plan_from_json
from ingest_bench.load.worker import send_load, wait_for_users
from ingest_bench.model.target import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from locust import User

    from ingest_bench.model.target import ServerAddress, Url

# The master answers a heartbeat each second. Ours are counted: after a pause of our own it has time to answer.
_MAX_UNANSWERED_HEARTBEATS = 6
_POLL_S = 0.5
# For a piece that was sent and not taken. The master waits as long (`fleet.master`).
_PIECE_TIMEOUT_S = 20.0
_ABANDONED = "has ended before its experiment did"
_KINDS = ("plan", "begin", "end", "ship", "released", "dismissed", "abandoned", "refused")


class RemoteLeader:
    """Leads one load of this process by messages of the master (`load.worker.Leader`)."""

    def __init__(self, setup: Mapping[str, Any], channel: LineChannel) -> None:
        self._setup, self._channel = setup, channel
        self._messages: Queue[tuple[str, dict[str, Any]]] = Queue()
        self._taken_pieces: Queue[int] = Queue()
        self._lost: AsyncResult[str] = AsyncResult()
        """Why this master cannot be worked for any more."""
        self._unanswered_heartbeats = 0
        self._may_spawn = Event()
        self._plan: LoadPlan | None = None
        self._statistics: PageStatistics | None = None
        self._stop: Callable[[], None] | None = None
        self.runner: Any = None

    def join(self) -> None:
        """Join the master; RunFailed if it refuses us, is another one, or does not come."""
        # Without parsed options, Locust reads options from files in the current folder.
        options = argparse.Namespace(web_base_path="", tags=None, exclude_tags=None)
        # Locust's own behaviour is to log an exception in a user and to continue; here it ends the load.
        environment = Environment(parsed_options=options, catch_exceptions=False)
        master, timeout_s = from_json(Endpoint, self._setup["master"]), self._setup["timeout_s"]
        curve.install_client(master, keys.worker_keys_from_json(self._setup["keys"]), self._lose)
        joining = gevent.spawn(environment.create_worker_runner, "", 0)
        gevent.wait([joining, self._lost], timeout=timeout_s, count=1)
        self._check_master()
        if not joining.ready():
            raise RunFailed(_ABANDONED if self._setup["has_joined_before"] else f"no answer within {timeout_s:.0f} s")
        self.runner = joining.get()
        curve.require_encrypted(self.runner.client.socket)
        for kind in _KINDS:
            self.runner.register_message(kind, self._on_message)
        self.runner.register_message("ping", self._on_ping)
        self.runner.register_message("took", lambda environment, msg: self._taken_pieces.put(msg.data["number"]))  # noqa: ARG005
        events: Any = environment.events
        events.heartbeat_received.add_listener(self._on_heartbeat)
        events.test_start.add_listener(lambda **_: self._may_spawn.set())
        gevent.spawn(self._watch)
        machine = self._setup["machine"] or socket.gethostname()
        self._send("hello", {"machine": machine, "pid": os.getpid(), "version": metadata.version("ingest-bench")})

    def serve(self) -> None:
        """Send one load and hand over its files."""
        _, data = self._wait_for("plan")
        try:
            send_load(self._accept_plan(data), self)
        except IngestBenchError as error:
            self.report(phase="failed", error=describe_error_for_remote(error))
        self._hand_over()

    def report(self, **status: Any) -> None:
        """Send a status message to the master, with no contents of our files."""
        if self._statistics is not None:
            self._statistics.update()
        self._send("status", status)

    def on_stop(self, stop: Callable[[], None]) -> None:
        """Call *stop* when the master sends `end` or is lost."""
        self._stop = stop

    def spawn_users(self, classes: Sequence[type[User]], failure_reason: Callable[[], str]) -> None:
        """Let Locust's master start the users."""
        self.runner.environment.user_classes = list(classes)
        self.report(phase="prepared", users={user.__name__: user.fixed_count for user in classes})
        # The slowest worker is waited for: 200 on one machine that poll every 5 ms would slow it down further.
        while not self._may_spawn.wait(_POLL_S):
            self._check_master()
            if reason := failure_reason():
                raise RunFailed(reason)
        wait_for_users(self.runner, classes, failure_reason)

    def wait_for_start(self) -> int:
        """Wait for `begin`."""
        return int(self._wait_for("begin")[1]["start_ns"])

    def exit_with_parent(self, lines: Iterator[dict[str, Any]]) -> None:
        """When the parent closes our input, tell the master and end."""
        for _ in lines:
            pass
        if self.runner is not None:
            self.report(phase="failed", error="the worker was interrupted on its machine")
        self.exit()

    def exit(self, **last: Any) -> None:
        """End this process. The master learns of it, if there is one; *last* is our last line to the parent."""
        if last:
            self._channel.send(last)
        # First: once the socket is closed, Locust's receiving greenlet loops without a pause.
        self._channel.flush()
        if self.runner is not None:
            with contextlib.suppress(Exception):
                self.runner.environment.events.quitting.fire(environment=self.runner.environment)
                self.runner.client.close()
        # Greenlets of Locust would delay the exit of the interpreter.
        os._exit(0)

    def _accept_plan(self, data: Mapping[str, Any]) -> LoadPlan:
        """Return the plan for this machine; RunFailed if files are missing here or credentials are not allowed."""
        plan = dataclasses.replace(plan_from_json(json.loads(data["plan"])), folder=Path(self._setup["folder"]))
        self._plan = plan
        load = f"{plan.workload.name} to {plan.address}, worker {plan.worker + 1} of {plan.workers}"
        self._channel.send({"load": load})
        faults = [fault for path, size in data["files"].items() if (fault := find_file_fault(Path(path), size))]
        if faults:
            raise RunFailed("; ".join(faults))
        if plan.needs_credentials or plan.has_client_certificate:
            plan = allow_credentials(plan, self._setup["credentials_to"], self._setup["ca_pem"])
            plan = plan.with_local_certificate(*credentials.read_client_certificate(os.environ))
        if data["figures"]:
            files = {plan.path: [plan.sample_file]}
            if plan.worker_query_users:
                files[plan.search_path] = [plan.query_sample_file]
            self._statistics = PageStatistics(self.runner.environment, files)
        return plan

    def _hand_over(self) -> None:
        """Send files as the master asks for them, until it releases us."""
        while True:
            kind, data = self._wait_for("ship", "released")
            if kind == "released":
                return
            assert self._plan is not None  # noqa: S101 - a load was sent
            files = {path.name: path for path in (*self._plan.record_files, self._plan.report_file)}
            self._send_file(files[data["name"]], data["credits"])

    def _send_file(self, path: Path, available: int) -> None:
        for piece in split_file(path):
            while available == 0 or not self._taken_pieces.empty():
                try:
                    self._taken_pieces.get(timeout=_PIECE_TIMEOUT_S)
                except Empty:
                    reason = f"the master took no piece for {_PIECE_TIMEOUT_S:.0f} s"
                    raise RunFailed(f"{path.name}: {reason}") from None
                available += 1
            available -= 1
            self._send("piece", piece)
            # Otherwise heartbeats would wait for the last piece.
            gevent.sleep(0)

    def _on_message(self, environment: Environment, msg: Any) -> None:  # noqa: ARG002 - named by Locust
        kind = str(msg.type)
        if kind == "refused":
            self._lose(f"refused us: {msg.data['reason']}")
        elif kind == "abandoned":
            self._lose(_ABANDONED)
        elif kind == "end" and self._stop is not None:
            self._stop()
        elif kind in {"released", "dismissed"}:
            # Also during a load that was given up there, or before its plan was read.
            gevent.spawn(self.exit, last=kind)
        else:
            self._messages.put((kind, msg.data or {}))

    def _wait_for(self, *kinds: str) -> tuple[str, dict[str, Any]]:
        """Wait for the next message of these kinds; RunFailed once the master is lost."""
        while True:
            self._check_master()
            with contextlib.suppress(Empty):
                kind, data = self._messages.get(timeout=_POLL_S)
                if kind in kinds:
                    return kind, data

    def _on_ping(self, environment: Environment, msg: Any) -> None:  # noqa: ARG002 - named by Locust
        self._send("pong", msg.data | {"monotonic_ns": time.monotonic_ns()})

    def _on_heartbeat(self, **_: Any) -> None:
        self._unanswered_heartbeats = 0

    def _watch(self) -> None:
        while True:
            gevent.sleep(1.0)
            self._unanswered_heartbeats += 1
            if self._unanswered_heartbeats > _MAX_UNANSWERED_HEARTBEATS:
                self._lose(_ABANDONED)
            if getattr(locust.log, "unhandled_greenlet_exception", False):
                self._lose("cannot be reached any more: a greenlet of Locust's worker died")

    def _lose(self, reason: str) -> None:
        if not self._lost.ready():
            self._lost.set(reason)
            if self._stop is not None:
                self._stop()

    def _check_master(self) -> None:
        if self._lost.ready():
            raise RunFailed(self._lost.get())

    def _send(self, kind: str, data: dict[str, Any]) -> None:
        self.runner.send_message(kind, data)


def find_file_fault(path: Path, size_bytes: int) -> str:
    """Return how a file of this machine differs from the one at `run`; empty: not."""
    if not path.is_file():
        return f"{path}: missing on this machine. Put the file of `run` there."
    here = path.stat().st_size
    return "" if here == size_bytes else f"{path}: has {here} bytes, and {size_bytes} at `run`. Put the same file here."


def allow_credentials(plan: LoadPlan, allowed: str | None, ca_pem: str) -> LoadPlan:
    """Return *plan* for the server at the URL *allowed*, with what this machine knows of that server; else RunFailed.

    The server is verified by *ca_pem*, or by the CA certificates that this machine trusts: `run` could name others, for
    a server of its own. Host header and the name in the certificate are those of the URL.
    """
    if allowed is None:
        raise RunFailed(
            f"the load to {plan.address} requires credentials, and this worker may not send its own. Start it with "
            "--credentials-to and the URL of the server."
        )
    url = urls.parse_url(allowed)
    try:
        hosts = {url.host, *(str(entry[4][0]) for entry in socket.getaddrinfo(url.host, url.port))}
    except OSError:
        hosts = {url.host}
    for address in plan.server_addresses:
        if _is_at(address, url, hosts):
            continue
        resolver = "" if address.resolver is None else f", resolved by the name server {address.resolver}"
        host = f" (Host: {address.host_header})" if address.host_header else ""
        raise RunFailed(
            f"the load goes to {'http' if address.tls is None else 'https'}://{address.endpoint}{host}{resolver}, and "
            f"this worker sends its credentials to {url} only (--credentials-to)"
        )
    own = plan.with_tls({"name": url.host, "ca_pem": ca_pem}, host_header=url.authority)
    return dataclasses.replace(own, headers={})


def _is_at(address: ServerAddress, url: Url, hosts: set[str]) -> bool:
    """Return True if requests to *address* reach, under its name, the server at *url*, which has these *hosts*."""
    is_there = address.endpoint.host in hosts and address.endpoint.port == url.port
    # A name server that the plan names may return any address.
    is_there = is_there and address.resolver is None and (address.tls is not None) == (url.scheme == "https")
    return is_there and address.host_header in ("", url.authority)


def main() -> None:
    """Send one load; the last line of the standard output says how it ended."""
    die_with_parent()
    channel = LineChannel()
    lines = channel.lines()
    leader = RemoteLeader(next(lines), channel)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    locust.runners.WORKER_REPORT_INTERVAL = 1.0
    # We watch heartbeats ourselves, on a monotonic clock and with a shorter limit (`_watch`). Our log stays here.
    locust.runners.MASTER_HEARTBEAT_TIMEOUT = sys.maxsize // 10**9
    locust.runners.WORKER_LOG_REPORT_INTERVAL = -1
    locust.runners.CONNECT_RETRY_COUNT = sys.maxsize
    gevent.spawn(leader.exit_with_parent, lines)
    try:
        leader.join()
        channel.send({"joined": True})
        leader.serve()
    except IngestBenchError as error:
        leader.exit(error=str(error))
    except Exception as error:
        logging.exception("the worker failed")
        if leader.runner is not None:
            leader.report(phase="failed", error=describe_error_for_remote(error))
        leader.exit(error=describe_error(error))
    else:
        leader.exit(last="released")


if __name__ == "__main__":
    main()
