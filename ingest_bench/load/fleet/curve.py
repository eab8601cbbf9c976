"""Encrypted sockets for Locust's runners: CURVE, only for known keys.

`install_server` and `install_client` set `locust.runners.rpc`, the one name through which the runners create sockets.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import ipaddress
import os
import resource
import socket
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import gevent
import locust.runners
import zmq.green as zmq
from locust.exception import RPCSendError
from locust.rpc import Message, zmqrpc
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from ingest_bench.errors import RunFailed
from ingest_bench.load.fleet import transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ingest_bench.load.fleet.keys import RunKeys, WorkerKeys
    from ingest_bench.model.target import Endpoint

    LogLine = Callable[[str], None]

# A connection without a handshake after this time is closed; a slow link needs three round trips.
_HANDSHAKE_MS = 5000
# Last messages of a closed socket may leave for this long.
_LINGER_MS = 500
_ZAP = "inproc://zeromq.zap.01"  # RFC 27
_HANDSHAKE_FAILURES = {
    zmq.Event.HANDSHAKE_FAILED_AUTH: "auth",
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: "protocol",
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL: "no detail",
}
# One handshake that ends without a detail may be a lost connection; this many in a row are refusals.
_MAX_FAILURES_WITHOUT_DETAIL = 3
_MAX_LOGGED_LINES = 100
_deserialize: Any = Message.unserialize

# include/uapi/asm-generic/socket.h and linux/filter.h: one instruction, "return 0", drops a packet.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_DROP = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0), 8)
# A handshake takes milliseconds: 1,000 workers that connect at once are admitted within seconds.
_MAX_UNKNOWN_CONNECTIONS = 500


class ConnectionGate:
    """A listening socket that accepts no new connection while too many have not shown a key.

    New connections then have their packets dropped, so that the kernel retries them (SYN retransmission after 1 s), and
    established ones are not affected. Closing the ZeroMQ listener instead would close those too.
    """

    def __init__(self, host: str, port: int) -> None:
        is_ipv6 = ":" in host
        if is_ipv6 and not socket.has_dualstack_ipv6():
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
        # As ZeroMQ listens: :: includes IPv4.
        self._listener = socket.create_server((host, port), family=family, dualstack_ipv6=is_ipv6)
        # The other descriptors are for workers and their files.
        self._max_unknown = min(_MAX_UNKNOWN_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._unknown: set[int] = set()
        self._is_shut = False

    def descriptor(self) -> int:
        """Return a copy of the listening socket for ZeroMQ, which closes it."""
        return self._listener.dup().detach()

    def count_new(self, descriptor: int) -> bool:
        """Count a new connection. Return True if the gate shuts now."""
        self._unknown.add(descriptor)
        if self._is_shut or len(self._unknown) < self._max_unknown:
            return False
        program = struct.pack("HP", 1, ctypes.addressof(_DROP))
        self._listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        self._is_shut = True
        return True

    def discard(self, descriptor: int) -> None:
        """Stop counting a connection: it has shown its key, or is closed."""
        self._unknown.discard(descriptor)
        if self._is_shut and len(self._unknown) <= self._max_unknown // 2:
            self._listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, b"\0" * 4)
            self._is_shut = False

    def close(self) -> None:
        """Close this side's copy of the listening socket."""
        with contextlib.suppress(OSError):
            self._listener.close()


class Server(zmqrpc.Server):
    """The master's socket. `log` gets a line about each refusal, once per kind."""

    def __init__(self, bind: Endpoint, keys: RunKeys, log: LogLine) -> None:
        self._log = log
        self._logged: set[str] = set()
        self._names = {z85.decode(public): name for public, name in keys.workers.items()}
        self.owners: dict[str, tuple[str, str]] = {}
        """By worker id: the name of its key, and the address it joined from."""
        self.on_invalid_message: Callable[[str, str], None] = lambda _worker, _fault: None
        """Called with the id of a worker and the fault of its message. The worker is ignored from then on."""
        self._ignored: set[str] = set()
        self._context = zmq.Context()
        # Bound before the ROUTER, which admits no client without an answer from here.
        self._zap = self._context.socket(zmq.REP)
        self._zap.bind(_ZAP)
        url = _resolve(bind)
        self.socket = _create_socket(self._context, zmq.ROUTER, url, keys)
        self.socket.setsockopt(zmq.CURVE_SERVER, 1)
        self.socket.setsockopt(zmq.ZAP_DOMAIN, b"fleet")
        # Without an enforced domain, CURVE admits every client that knows our public key.
        self.socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        # A worker may reconnect before we notice that its connection broke.
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        failed = zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
        events = self.socket.get_monitor_socket(failed | zmq.Event.ACCEPTED | zmq.Event.DISCONNECTED)
        self._greenlets = [gevent.spawn(self._authenticate), gevent.spawn(self._watch, events)]
        try:
            host, _, port = url.removeprefix("tcp://").rpartition(":")
            self._gate = ConnectionGate(host.strip("[]"), int(port))
            self.socket.setsockopt(zmq.USE_FD, self._gate.descriptor())
            self.socket.bind(url)
        except OSError as error:
            # zmq.ZMQError has an errno, too.
            reason = os.strerror(error.errno or 0)
            raise RunFailed(f"{bind}: workers cannot join there ({reason}). Choose another address.") from None
        self.port = 0

    def recv_from_client(self) -> tuple[str, Any]:
        """Return the next valid message, with the id of its worker. Messages in the name of another are dropped."""
        while True:
            frames = self.socket.recv_multipart(copy=False)
            try:
                self._gate.discard(int(frames[-1].get(zmq.SRCFD)))
                owner = (str(frames[-1].get("User-Id")), str(frames[-1].get("Peer-Address")))
                sender = frames[0].bytes.decode()
            except (UnicodeDecodeError, zmq.ZMQError) as error:
                self._log_once(f"dropped an unreadable message ({type(error).__name__})")
                continue
            if self.owners.setdefault(sender, owner)[0] != owner[0]:
                self._log_once(f"dropped a message of {owner[0]} ({owner[1]}) in the name of another worker")
                continue
            if sender in self._ignored:
                continue
            try:
                message = _deserialize(frames[1].bytes)
            except Exception as error:  # noqa: BLE001 - any exception ends the message, not the server
                self.ignore_worker(sender, f"an unreadable message ({type(error).__name__})")
                continue
            if message.node_id != sender:
                self._log_once(f"dropped a message of {owner[0]} ({owner[1]}) in the name of another worker")
                continue
            if fault := transfer.find_fault(message.type, message.data):
                self.ignore_worker(sender, fault)
                continue
            return sender, message

    def ignore_worker(self, worker: str, fault: str) -> None:
        """Drop all further messages of a worker that sent an invalid one."""
        self._ignored.add(worker)
        self.on_invalid_message(worker, fault)

    def send_to_client(self, msg: Any) -> None:
        """Send a message; drop it if its worker is gone, as a ROUTER does."""
        try:
            self.socket.send_multipart([msg.node_id.encode(), msg.serialize()], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise RPCSendError(str(error)) from error

    def close(self, linger: int | None = None) -> None:
        """Close the socket after its last messages have left, or after the linger time."""
        gevent.killall(self._greenlets)
        self._gate.close()
        self._context.destroy(_LINGER_MS if linger is None else linger)

    def _authenticate(self) -> None:
        """Answer ZAP requests (RFC 27): each handshake asks whether its key is known."""
        while True:
            frames = self._zap.recv_multipart()
            name = None
            if len(frames) == 7 and frames[5] == b"CURVE":
                name = self._names.get(frames[6])
            if name is None:
                self._log_once(f"refused {frames[3].decode(errors='replace')}: its key is not among those of this run")
            verdict = [b"400", b"unknown key", b"", b""] if name is None else [b"200", b"OK", name.encode(), b""]
            self._zap.send_multipart([b"1.0", frames[1], *verdict])

    def _watch(self, events: Any) -> None:
        while True:
            message = parse_monitor_message(events.recv_multipart())
            failure = _HANDSHAKE_FAILURES.get(zmq.Event(message["event"]))
            if failure is None:
                self._count_connection(message)
            elif failure == "protocol":
                self._log_once(
                    "refused a client that does not speak our protocol with the key of this run: "
                    "not an `ingest-bench worker`, or one with the keys of another run"
                )
            elif not self._logged:
                # The side that notices a mismatch first ends the connection and does not retry. So does a refused one.
                self._log_once(
                    "a client connected and left before it identified itself: not an `ingest-bench worker`, one with "
                    "the keys of another run, or one whose connection broke"
                )

    def _count_connection(self, message: Mapping[str, Any]) -> None:
        """Count a connection that was opened or closed; its descriptor is the event's value."""
        if message["event"] == zmq.Event.DISCONNECTED:
            self._gate.discard(int(message["value"]))
        elif self._gate.count_new(int(message["value"])):
            self._log_once(
                "too many connections that do not show a key of this run: new ones wait until some of these are gone. "
                "List the clients of this port: ss -tn"
            )

    def _log_once(self, line: str) -> None:
        if line not in self._logged and len(self._logged) < _MAX_LOGGED_LINES:
            self._logged.add(line)
            self._log(line)


class Client(zmqrpc.Client):
    """A worker's socket. `refused` is called with the reason why no connection is possible."""

    def __init__(self, master: Endpoint, keys: WorkerKeys, refused: LogLine, identity: str) -> None:
        self._refused = refused
        self._context = zmq.Context()
        url = _resolve(master)
        self.socket = _create_socket(self._context, zmq.DEALER, url, keys)
        self.socket.setsockopt(zmq.IDENTITY, identity.encode())
        self.socket.setsockopt(zmq.CURVE_SERVERKEY, keys.run.encode())
        events = self.socket.get_monitor_socket(zmq.Event.HANDSHAKE_SUCCEEDED | sum(_HANDSHAKE_FAILURES))
        self._greenlet = gevent.spawn(self._watch, events)
        self.socket.connect(url)

    def send(self, msg: Any) -> None:
        """Send a message. Never waits: it is kept until there is a connection."""
        # Locust's statistics of our users, which are in a child process: always empty.
        if msg.type == "stats":
            return
        try:
            self.socket.send(msg.serialize(), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise RPCSendError(str(error)) from error

    def close(self, linger: int | None = None) -> None:
        """Close the socket after its last messages have left, or after the linger time."""
        self._greenlet.kill()
        self._context.destroy(_LINGER_MS if linger is None else linger)

    def _watch(self, events: Any) -> None:
        without_detail = 0
        while True:
            failure = _HANDSHAKE_FAILURES.get(zmq.Event(parse_monitor_message(events.recv_multipart())["event"]))
            without_detail = without_detail + 1 if failure == "no detail" else 0
            if failure == "auth":
                self._refused("refused us: our key is not among those of this run")
            elif failure == "protocol" or without_detail == _MAX_FAILURES_WITHOUT_DETAIL:
                self._refused("does not have the key of our run, or is not an `ingest-bench run`; nothing was sent")


def install_server(bind: Endpoint, keys: RunKeys, log: LogLine) -> None:
    """Let Locust's next master listen there."""
    runners: Any = locust.runners
    runners.rpc = SimpleNamespace(Server=lambda *_: Server(bind, keys, log))


def install_client(master: Endpoint, keys: WorkerKeys, refused: LogLine) -> None:
    """Let Locust's next worker connect to there; RunFailed if the host is unknown."""
    _resolve(master)
    runners: Any = locust.runners
    runners.rpc = SimpleNamespace(Client=lambda _host, _port, identity: Client(master, keys, refused, identity))


def require_encrypted(runner_socket: Any) -> None:
    """Raise RunFailed if a Locust runner did not use our socket."""
    if runner_socket.getsockopt(zmq.MECHANISM) != zmq.CURVE:
        raise RunFailed("unsupported Locust version: it did not use our encrypted socket; refusing to listen")


def _resolve(endpoint: Endpoint) -> str:
    """Return the ZeroMQ URL of an endpoint; RunFailed if there is no such host."""
    host, port = endpoint.host, endpoint.port
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise RunFailed(f"{host}: unknown host ({error.strerror})") from None
    address = str(entries[0][4][0])
    return f"tcp://[{address}]:{port}" if ipaddress.ip_address(address).version == 6 else f"tcp://{address}:{port}"


def _create_socket(context: Any, kind: int, url: str, keys: RunKeys | WorkerKeys) -> Any:
    created = context.socket(kind)
    created.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
    created.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
    created.setsockopt(zmq.LINGER, _LINGER_MS)
    created.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    created.setsockopt(zmq.MAXMSGSIZE, transfer.MAX_MESSAGE_BYTES)
    created.setsockopt(zmq.SNDHWM, 0)
    created.setsockopt(zmq.RCVHWM, 0)
    created.setsockopt(zmq.IPV6, int("[" in url))
    return created
