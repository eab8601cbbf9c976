"""Worker of a fleet: joins the master by Locust's WorkerRunner, and sends each load by a child process (`load.worker`).

An observer is such a worker, whose child process watches a JVM of this machine instead.

Commands of the master go to the child, and the child's status to the master. The files of a load stay in a folder of
this machine until the master has read them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import gevent
import locust
import locust.log
import locust.runners
from gevent.hub import get_hub
from gevent.queue import Empty, Queue
from gevent.socket import wait_read
from locust.env import Environment

from ingest_bench import system
from ingest_bench.errors import IngestBenchError, RunFailed, describe_error_for_remote
from ingest_bench.inputs import credentials
from ingest_bench.inputs.records import from_json, to_json
from ingest_bench.load.fleet import curve
from ingest_bench.load.fleet.join import JoinOptions
from ingest_bench.load.fleet.transfer import read_piece
from ingest_bench.load.plan import LoadPlan
from ingest_bench.load.supervisor import LocalWorker
from ingest_bench.model.target import ServerAddress, Url

# The master answers a heartbeat each second. Ours are counted: after a pause of our own it has time to answer.
_MAX_UNANSWERED_HEARTBEATS = 6
# A process that sends reports its status twice a second, and we write to it each second.
_MAX_SILENCE_S = 8.0
# An observer that is not needed any more removes everything from its JVM. Later its watchdog does it.
_DETACH_GRACE_S = 15.0
_ABANDONED = "has ended before its experiment did, or has dropped this worker because it did not answer for a while"


class FleetMember:
    """A worker of a fleet. Everything that happens is a message in one queue."""

    def __init__(self, options: JoinOptions, folder: Path, log: Callable[[str], None]) -> None:
        self._options, self._folder, self._log = options, folder, log
        self._messages: Queue[tuple[str, dict[str, Any]]] = Queue()
        self._unanswered_heartbeats = 0
        self._runner: Any = None
        self._loads = 0
        self._files: dict[str, Path] = {}
        """Files of the current load, by name."""
        self._child: LocalWorker | None = None
        """The process of the current load."""
        self._observer: system.Child | None = None
        """The process that watches the current run."""
        self._run = 0
        """The number of that run in the messages about it."""
        self._jvm_has_ended = False
        self._forwarding: gevent.Greenlet[..., Any] | None = None

    def run(self) -> int:
        """Join the master and send its loads; return their number. RunFailed if it refuses us, or is not there."""
        hub: Any = get_hub()
        # Otherwise gevent prints these before it raises them here.
        hub.NOT_ERROR = (*hub.NOT_ERROR, KeyboardInterrupt, IngestBenchError)
        try:
            self._join()
            self._serve()
        except KeyboardInterrupt:
            self._report_failure("the worker was interrupted on its machine")
            raise
        finally:
            self._end_load()
            self._leave()
        return self._loads

    def _join(self) -> None:
        options, timeout_s = self._options, self._options.timeout_s
        # Without parsed options, Locust reads options from files in the current folder.
        parsed = argparse.Namespace(web_base_path="", tags=None, exclude_tags=None)
        environment = Environment(parsed_options=parsed)
        # We watch heartbeats ourselves, on a monotonic clock and with a shorter limit (`_watch`). Our log stays here.
        locust.runners.MASTER_HEARTBEAT_TIMEOUT = sys.maxsize // 10**9
        locust.runners.WORKER_LOG_REPORT_INTERVAL = -1
        locust.runners.CONNECT_RETRY_COUNT = sys.maxsize
        curve.install_client(options.master, options.keys, self._lose)
        joining = gevent.spawn(environment.create_worker_runner, "", 0)
        joining.link(lambda _: self._messages.put(("connected", {})))
        try:
            kind, data = self._messages.get(timeout=timeout_s)
        except Empty:
            raise RunFailed(
                f"no answer within {timeout_s:.0f} s. Is the run started, with --bind on an address that this machine "
                "reaches?"
            ) from None
        if kind == "lost":
            raise RunFailed(data["reason"])
        self._runner = joining.get()
        curve.require_encrypted(self._runner.client.socket)
        own_kinds = ("plan", "command") if options.watched is None else ("watch", "unwatch")
        for kind in (*own_kinds, "released", "dismissed", "abandoned", "refused"):
            self._runner.register_message(kind, self._on_message)
        self._runner.register_message("ping", self._on_ping)
        self._runner.register_message("read", self._on_read, concurrent=True)
        heartbeats: Any = environment.events.heartbeat_received
        heartbeats.add_listener(self._on_heartbeat)
        gevent.spawn(self._watch)
        self._say_hello()
        self._log(f"joined {options.master}, waiting for its {'loads' if options.watched is None else 'runs'}")

    def _say_hello(self) -> None:
        """Tell the master that we wait for a load, or a run to watch."""
        options = self._options
        hello = {"machine": options.name or socket.gethostname(), "pid": os.getpid()}
        self._send("hello", hello | {"version": metadata.version("ingest-bench"), "watched": to_json(options.watched)})

    def _serve(self) -> None:
        """Process messages until the master dismisses us."""
        while True:
            kind, data = self._messages.get()
            if kind == "lost":
                raise RunFailed(data["reason"])
            if kind == "dismissed":
                return
            if kind in ("plan", "watch"):
                start = self._start_load if kind == "plan" else self._start_watching
                try:
                    start(data)
                except (IngestBenchError, OSError) as error:
                    self._report_failure(describe_error_for_remote(error))
            elif kind == "command" and self._child is not None:
                self._child.command(data)
            elif kind == "unwatch" and self._observer is not None:
                self._observer.write_line("stop")
            elif kind == "released":
                self._end_load()
                # An observer stays until the experiment ends. Without its JVM it gives its place to another one.
                if self._jvm_has_ended:
                    raise RunFailed("the watched JVM has ended. Start the observer for the new pid.")
                if self._options.watched is None:
                    self._send("client_ready", locust.__version__)
                    self._say_hello()

    def _start_load(self, data: Mapping[str, Any]) -> None:
        self._loads += 1
        folder = self._folder / f"load-{self._loads}"
        folder.mkdir(parents=True)
        plan = dataclasses.replace(from_json(LoadPlan, json.loads(data["plan"])), folder=folder)
        destination = f"{plan.workload.name} to {plan.server.endpoint}"
        self._log(f"load {self._loads}: {destination}, worker {plan.worker + 1} of {plan.workers}")
        # In threads: heartbeats continue meanwhile.
        run_in_thread = get_hub().threadpool.apply
        plan = run_in_thread(self._accept_plan, (plan, data["files"]))
        self._files = {path.name: path for path in plan.output_files}
        self._child = LocalWorker(plan)
        self._forwarding = gevent.spawn(self._forward_status, self._child)
        run_in_thread(self._child.command, (plan.to_json(),))

    def _start_watching(self, data: Mapping[str, Any]) -> None:
        self._end_load()
        self._loads += 1
        folder = self._folder / f"load-{self._loads}"
        raw = folder / "raw"
        # First: a failure belongs to this run.
        self._run, request = data["run"], data["request"]
        raw.mkdir(parents=True)
        self._log(f"run {self._loads}: probes {', '.join(request['probes'])}")
        self._observer = system.Child(self._options.observer_argv, name="the observer", log=folder / "observer.log")
        self._observer.write_line(json.dumps({**request, "run": self._run, "raw": str(raw)}))
        self._forwarding = gevent.spawn(self._forward_observer, self._observer, raw)

    def _forward_observer(self, child: system.Child, raw: Path) -> None:
        """Send the state of the child that watches to the master."""
        phase = ""
        while not child.has_ended:
            wait_read(child.stdout.fileno())
            for message in map(json.loads, child.read_lines()):
                phase, self._jvm_has_ended = message["phase"], message["has_ended"]
                self._files = {name: raw / name for name in message.get("files", ())}
                self._report_observer(message)
        if phase not in ("stopped", "failed"):
            self._log(f"the log of the observer ends with: {child.read_stderr_tail()}")
            self._report_observer(
                {"run": self._run, "phase": "failed", "error": f"its process {child.describe_exit()}"}
            )

    def _report_observer(self, message: Mapping[str, Any]) -> None:
        if message["phase"] == "failed":
            self._log(f"run {self._loads} failed: {message['error']}")
        self._send("observed", message)

    def _accept_plan(self, plan: LoadPlan, files: Mapping[str, int]) -> LoadPlan:
        """Return the plan for this machine; RunFailed if files are missing here or credentials are not allowed."""
        faults = [fault for path, size in files.items() if (fault := find_file_fault(Path(path), size))]
        if faults:
            raise RunFailed("; ".join(faults))
        if plan.server.has_credentials or plan.has_client_certificate:
            plan = allow_credentials(plan, self._options.credentials_to, self._options.ca_pem)
        if plan.has_client_certificate:
            cert, key = credentials.read_client_certificate(os.environ)
            if not cert:
                raise RunFailed(
                    "the server requires a client certificate, and the environment of this load worker names none. Set "
                    f"{credentials.CLIENT_CERT} and {credentials.CLIENT_KEY}."
                )
            plan = plan.with_tls({"client_cert": cert, "client_key": key})
        return plan

    def _forward_status(self, worker: LocalWorker) -> None:
        """Send the status of the child to the master, with no contents of our files."""
        is_well = True
        while is_well and not worker.child.has_ended:
            is_sending = worker.phase in {"warm-up", "measure", "drain"}
            try:
                wait_read(worker.child.stdout.fileno(), _MAX_SILENCE_S if is_sending else None, TimeoutError())
            except TimeoutError:
                self._report_failure(f"its process was silent for {_MAX_SILENCE_S:.0f} s")
                return
            is_well = worker.read_status()
            if is_well:
                self._send("status", worker.status)
        if not is_well:
            self._log(f"load {self._loads} failed: {worker.describe_failure()}")
            remote = worker.status.get("remote_error") or f"its process {worker.child.describe_exit()}"
            self._report_failure(remote)

    def _report_failure(self, error: str) -> None:
        if self._runner is not None:
            failed = {"phase": "failed", "error": error}
            if self._options.watched is None:
                self._send("status", failed)
            else:
                self._send("observed", failed | {"run": self._run})

    def _end_load(self) -> None:
        """End the process of the current load or run, if there is one, and remove its files."""
        if self._forwarding is not None:
            self._forwarding.kill()
        if self._child is not None:
            self._child.child.close()
        if self._observer is not None:
            # In a thread: heartbeats continue meanwhile.
            get_hub().threadpool.apply(self._observer.close, (_DETACH_GRACE_S,))
        self._child = self._observer = self._forwarding = None
        self._files = {}
        shutil.rmtree(self._folder / f"load-{self._loads}", ignore_errors=True)

    def _leave(self) -> None:
        """Close the connection. The master learns of it."""
        if self._runner is None:
            return
        # First: once the socket is closed, Locust's receiving greenlet loops without a pause.
        self._runner.greenlet.kill()
        with contextlib.suppress(Exception):
            self._send("quit", None)
            self._runner.client.close()

    def _on_message(self, environment: Environment, msg: Any) -> None:  # noqa: ARG002 - named by Locust
        if msg.type == "refused":
            self._lose(f"refused us: {msg.data['reason']}")
        elif msg.type == "abandoned":
            self._lose(_ABANDONED)
        else:
            self._messages.put((msg.type, msg.data))

    def _on_ping(self, environment: Environment, msg: Any) -> None:  # noqa: ARG002 - named by Locust
        self._send("pong", msg.data | {"monotonic_ns": time.monotonic_ns()})

    def _on_read(self, environment: Environment, msg: Any) -> None:  # noqa: ARG002 - named by Locust
        """Send a piece of a file of the current load. Only its name comes from the master."""
        try:
            path = self._files[msg.data["name"]]
            self._send("piece", get_hub().threadpool.apply(read_piece, (path, msg.data["number"])))
        except (KeyError, RunFailed) as error:
            self._send("piece", {"number": msg.data["number"], "data": b"", "error": describe_error_for_remote(error)})

    def _on_heartbeat(self, **_: Any) -> None:
        self._unanswered_heartbeats = 0

    def _watch(self) -> None:
        while True:
            gevent.sleep(1.0)
            self._unanswered_heartbeats += 1
            # Not while its plan is written.
            if self._child is not None and self._child.phase != "prepare":
                self._child.command({"do": "alive", "timeout_s": _MAX_SILENCE_S})
            if self._unanswered_heartbeats > _MAX_UNANSWERED_HEARTBEATS:
                self._lose(_ABANDONED)
            if getattr(locust.log, "unhandled_greenlet_exception", False):
                self._lose("cannot be reached any more: a greenlet of Locust's worker died")

    def _lose(self, reason: str) -> None:
        self._messages.put(("lost", {"reason": reason}))

    def _send(self, kind: str, data: Any) -> None:
        self._runner.send_message(kind, data)


def find_file_fault(path: Path, size_bytes: int) -> str:
    """Return how a file of this machine differs from the one at `run`; empty: not."""
    if not path.is_file():
        return f"{path}: missing on this machine. Put the file of `run` there."
    here = path.stat().st_size
    return "" if here == size_bytes else f"{path}: has {here} bytes, and {size_bytes} at `run`. Put the same file here."


def allow_credentials(plan: LoadPlan, url: Url | None, ca_pem: str) -> LoadPlan:
    """Return *plan* for the server at *url*, with what this machine knows of that server; else RunFailed.

    The server is verified by *ca_pem*, or by the CA certificates that this machine trusts: `run` could name others, for
    a server of its own. Host header and the name in the certificate are those of the URL.
    """
    if url is None:
        raise RunFailed(
            f"the load to {plan.server.endpoint} requires credentials, and this worker may not send its own. Start it "
            "with --credentials-to and the URL of the server."
        )
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
