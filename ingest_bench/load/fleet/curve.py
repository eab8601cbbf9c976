"""The sockets that Locust's runners get in place of their own: encrypted, and only for keys that are known.

`install_server` and `install_client` set `locust.runners.rpc`, the one name through which the runners make sockets.
"""

from __future__ import annotations

import ipaddress
import os
import socket
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
from ingest_bench.load.fleet import messages
from ingest_bench.load.fleet.gate import Gate
from ingest_bench.load.fleet.transfer import LIMIT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ingest_bench.load.fleet.keys import RunKeys, WorkerKeys

    Tell = Callable[[str], None]

# Who has connected and does not shake hands for so long is thrown out; a slow link needs three round trips.
_HANDSHAKE_MS = 5000
# The last words of a socket that is closed may still leave for so long.
_LINGER_MS = 500
# ZeroMQ's own way is to try again after 100 ms, which suits a network.
_RETRY_MS = 10
_ZAP = "inproc://zeromq.zap.01"  # RFC 27
_FAILED = {
    zmq.Event.HANDSHAKE_FAILED_AUTH: "auth",
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: "protocol",
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL: "nothing",
}
# The end of a handshake without a reason may be a lost connection; so often in a row it is the other side's doing.
_SILENT_FAILURES = 3
_REFUSALS_TOLD = 100
_unserialize: Any = Message.unserialize


class Server(zmqrpc.Server):
    """The master's socket. Who is refused is told by `tell`, each kind once."""

    def __init__(self, address: str, keys: RunKeys, tell: Tell) -> None:
        self._tell = tell
        self._told: set[str] = set()
        self._names = {z85.decode(public): name for public, name in keys.workers.items()}
        self.owners: dict[str, tuple[str, str]] = {}
        """Of each worker's id the name of its key, and the address that it joined from."""
        self.on_nonsense: Callable[[str, str], None] = lambda _worker, _why: None
        """Is told the id of a worker that said what no worker of ours says, and what that was. It is heard no more."""
        self._unheard: set[str] = set()
        self._context = zmq.Context()
        # Bound before the ROUTER is: without an answer from here nobody is let in.
        self._zap = self._context.socket(zmq.REP)
        self._zap.bind(_ZAP)
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.CURVE_SERVER, 1)
        self.socket.setsockopt(zmq.ZAP_DOMAIN, b"fleet")
        # Without a domain that is enforced, CURVE lets in everybody who knows our public key.
        self.socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        self.socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.own.public.encode())
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, keys.own.secret.encode())
        # A worker whose connection broke may come back before we know that it broke.
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        _common(self.socket, address)
        failed = zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
        events = self.socket.get_monitor_socket(failed | zmq.Event.ACCEPTED | zmq.Event.DISCONNECTED)
        self._greenlets = [gevent.spawn(self._admit), gevent.spawn(self._watch, events)]
        self._gate: Gate | None = None
        try:
            if address.startswith("tcp:"):
                host, _, port = address.removeprefix("tcp://").rpartition(":")
                self._gate = Gate(host.strip("[]"), int(port))
                self.socket.setsockopt(zmq.USE_FD, self._gate.descriptor())
            self.socket.bind(address)
        except OSError as error:
            # zmq.ZMQError has a number, too.
            why = os.strerror(error.errno or 0)
            raise RunFailed(f"{address.partition('//')[2]}: workers cannot join there ({why})") from None
        self.port = 0

    def recv_from_client(self) -> tuple[str, Any]:
        """The next message of a worker, with its id, checked. What pretends to be of another worker is dropped."""
        while True:
            frames = self.socket.recv_multipart(copy=False)
            try:
                if self._gate is not None:
                    self._gate.settled(int(frames[-1].get(zmq.SRCFD)))
                owner = (str(frames[-1].get("User-Id")), str(frames[-1].get("Peer-Address")))
                sender = frames[0].bytes.decode()
            except (UnicodeDecodeError, zmq.ZMQError) as error:
                self._say(f"dropped a message that cannot be read ({type(error).__name__})")
                continue
            if self.owners.setdefault(sender, owner)[0] != owner[0]:
                self._say(f"dropped a message of {owner[0]} ({owner[1]}) in the name of another worker")
                continue
            if sender in self._unheard:
                continue
            try:
                message = _unserialize(frames[1].bytes)
            except Exception as error:  # noqa: BLE001 - whatever it is, it ends the message and not our listening
                self.hear_no_more(sender, f"a message that cannot be read ({type(error).__name__})")
                continue
            if message.node_id != sender:
                self._say(f"dropped a message of {owner[0]} ({owner[1]}) in the name of another worker")
                continue
            if why := messages.wrong(message.type, message.data):
                self.hear_no_more(sender, why)
                continue
            return sender, message

    def hear_no_more(self, worker: str, why: str) -> None:
        """Nothing of this worker is taken any more: it said this, which no worker of ours says."""
        self._unheard.add(worker)
        self.on_nonsense(worker, why)

    def send_to_client(self, msg: Any) -> None:
        """The message on its way; dropped when its worker is gone, as a ROUTER does."""
        try:
            self.socket.send_multipart([msg.node_id.encode(), msg.serialize()], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise RPCSendError(str(error)) from error

    def close(self, linger: int | None = None) -> None:
        """Nobody can join any more. Returns once the last words are gone, or have lingered long enough."""
        gevent.killall(self._greenlets)
        if self._gate is not None:
            self._gate.close()
        self._context.destroy(_LINGER_MS if linger is None else linger)

    def _admit(self) -> None:
        """ZAP (RFC 27): each handshake asks here whether the key is known."""
        while True:
            frames = self._zap.recv_multipart()
            name = None
            if len(frames) == 7 and frames[5] == b"CURVE":
                name = self._names.get(frames[6])
            if name is None:
                self._say(f"refused {frames[3].decode(errors='replace')}: its key is not among those of this run")
            verdict = [b"400", b"unknown key", b"", b""] if name is None else [b"200", b"OK", name.encode(), b""]
            self._zap.send_multipart([b"1.0", frames[1], *verdict])

    def _watch(self, events: Any) -> None:
        while True:
            message = parse_monitor_message(events.recv_multipart())
            event = _FAILED.get(zmq.Event(message["event"]))
            if event is None:
                self._count(message)
            elif event == "protocol":
                self._say(
                    "refused somebody who does not speak our protocol with the key of this run: "
                    "no `ingest-bench worker`, or one with the keys of another run"
                )
            elif not self._told:
                # Who sees first that we do not understand each other ends it, and tries no more. Who was refused, too.
                self._say(
                    "somebody connected and left before it had said who it is: no `ingest-bench worker`, one with the "
                    "keys of another run, or one whose connection broke"
                )

    def _count(self, message: Mapping[str, Any]) -> None:
        """Count a connection that has come or gone; its descriptor is the event's value."""
        if self._gate is None:
            return
        if message["event"] == zmq.Event.DISCONNECTED:
            self._gate.settled(int(message["value"]))
        elif self._gate.accepted(int(message["value"])):
            self._say(
                "too many connections that do not show a key of this run: new ones wait until some of these are gone. "
                "See who connects to this port: ss -tn"
            )

    def _say(self, line: str) -> None:
        if line not in self._told and len(self._told) < _REFUSALS_TOLD:
            self._told.add(line)
            self._tell(line)


class Client(zmqrpc.Client):
    """A worker's socket. `refused` is told why the other side and we do not come together."""

    def __init__(self, address: str, keys: WorkerKeys, refused: Tell, identity: str) -> None:
        self._refused = refused
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, identity.encode())
        self.socket.setsockopt(zmq.CURVE_SERVERKEY, keys.run.encode())
        self.socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.own.public.encode())
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, keys.own.secret.encode())
        _common(self.socket, address)
        if address.startswith("ipc"):
            # Our master may still be starting, and a load waits for us.
            self.socket.setsockopt(zmq.RECONNECT_IVL, _RETRY_MS)
        events = self.socket.get_monitor_socket(zmq.Event.HANDSHAKE_SUCCEEDED | sum(_FAILED))
        self._greenlet = gevent.spawn(self._watch, events)
        self.socket.connect(address)

    def send(self, msg: Any) -> None:
        """The message on its way. Never waits: it is kept until there is a connection."""
        try:
            self.socket.send(msg.serialize(), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise RPCSendError(str(error)) from error

    def close(self, linger: int | None = None) -> None:
        """No connection. Returns once the last words are gone, or have lingered long enough."""
        self._greenlet.kill()
        self._context.destroy(_LINGER_MS if linger is None else linger)

    def _watch(self, events: Any) -> None:
        silent = 0
        while True:
            event = _FAILED.get(zmq.Event(parse_monitor_message(events.recv_multipart())["event"]))
            silent = silent + 1 if event == "nothing" else 0
            if event == "auth":
                self._refused("refused us: our key is not among those of this run")
            elif event == "protocol" or silent == _SILENT_FAILURES:
                self._refused("does not have the key of our run, or is no `ingest-bench run`; nothing was done for it")


def install_server(address: Mapping[str, Any], keys: RunKeys, tell: Tell) -> None:
    """Locust's master listens there, whatever it is told."""
    _install(Server=lambda *_: Server(url(address), keys, tell))


def install_client(address: Mapping[str, Any], keys: WorkerKeys, refused: Tell) -> None:
    """Locust's worker connects to there, whatever it is told."""
    where = url(address)
    _install(Client=lambda _host, _port, identity: Client(where, keys, refused, identity))


def check(runner_socket: Any) -> None:
    """RunFailed when a runner of Locust did not take our socket: it would speak to anybody."""
    if runner_socket.getsockopt(zmq.MECHANISM) != zmq.CURVE:
        raise RunFailed("this Locust makes its sockets in another way than we know; nothing was opened to the network")


def url(address: Mapping[str, Any]) -> str:
    """The address as ZeroMQ writes it; RunFailed when there is no such host.

    On this machine it is a socket in a folder. Its path goes over a descriptor: a socket's may have 107 characters
    (unix(7)), and a folder's has as many as it likes.
    """
    if "socket" in address:
        folder, name = os.path.split(address["socket"])
        return f"ipc:///proc/self/fd/{os.open(folder, os.O_PATH | os.O_CLOEXEC)}/{name}"
    host, port = address["host"], address["port"]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise RunFailed(f"{host}: there is no host of this name ({error.strerror})") from None
    literal = str(found[0][4][0])
    return f"tcp://[{literal}]:{port}" if ipaddress.ip_address(literal).version == 6 else f"tcp://{literal}:{port}"


def _install(**made: Callable[..., Any]) -> None:
    runners: Any = locust.runners
    runners.rpc = SimpleNamespace(**made)


def _common(it: Any, address: str) -> None:
    it.setsockopt(zmq.LINGER, _LINGER_MS)
    it.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    it.setsockopt(zmq.MAXMSGSIZE, LIMIT_BYTES)
    it.setsockopt(zmq.SNDHWM, 0)
    it.setsockopt(zmq.RCVHWM, 0)
    it.setsockopt(zmq.IPV6, int("[" in address))
