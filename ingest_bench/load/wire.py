"""The wire between a supervisor and load workers on other machines: lines of JSON on TCP, and who may speak on it.

Both sides prove that they know the secret (HMAC over both sides' random numbers) before anything else is said. What
follows is neither hidden nor sealed: use a network that you trust, or a tunnel.

Locust's own wire, between its master and its workers, was rejected: it takes any worker that speaks (locust.rpc.zmqrpc
has no authentication), and its statistics are rounded and know no planned time. Each worker here has Locust's local
runner.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import re
import secrets
import socket
from importlib import metadata
from typing import TYPE_CHECKING, Any

from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.model.target import Endpoint

if TYPE_CHECKING:
    from pathlib import Path

_LINE_LIMIT_BYTES = 64 * 1024**2
_CHUNK_BYTES = 256 * 1024
HANDSHAKE_S = 5.0
# Where workers join. Below 32768, from where on the kernel takes ports for connections.
PORT = 23185
# A partner that should speak and is silent for so long is gone.
SILENCE_S = 20.0
# Between two loads nobody speaks: the kernel asks whether the other machine is still there.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class Wire:
    """One connection. RunFailed when the partner is gone; its words are judged by the caller."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._unread = b""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (*_KEEPALIVE, (socket.TCP_USER_TIMEOUT, int(SILENCE_S * 1000))):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        sock.settimeout(SILENCE_S)
        self.partner = "{}:{}".format(*sock.getpeername()[:2])

    def send(self, **line: Any) -> None:
        """One line."""
        try:
            self.sock.sendall(json.dumps(line).encode() + b"\n")
        except OSError as error:
            raise self._gone(error) from None

    @property
    def has_line(self) -> bool:
        """Whether a line is here already, so that the socket need not become readable for it."""
        return b"\n" in self._unread

    def read(self) -> list[dict[str, Any]] | None:
        """The lines that came, at least a part of one; None: the partner has closed."""
        if self.has_line:
            return [self.ask()]
        try:
            got = self.sock.recv(65536)
        except OSError as error:
            raise self._gone(error) from None
        if not got:
            return None
        *lines, self._unread = (self._unread + got).split(b"\n")
        if len(self._unread) > _LINE_LIMIT_BYTES:
            raise RunFailed(f"{self.partner}: a line without an end")
        return [self._parsed(line) for line in lines]

    def ask(self) -> dict[str, Any]:
        """The next line, waited for. Nothing behind it is lost."""
        while b"\n" not in self._unread:
            try:
                got = self.sock.recv(65536)
            except OSError as error:
                raise self._gone(error) from None
            if not got:
                raise RunFailed(f"{self.partner}: closed the connection")
            self._unread += got
            if len(self._unread) > _LINE_LIMIT_BYTES:
                raise RunFailed(f"{self.partner}: a line without an end")
        line, _, self._unread = self._unread.partition(b"\n")
        return self._parsed(line)

    def send_file(self, path: Path) -> None:
        """A file: a line with its size, then its bytes."""
        size_bytes = path.stat().st_size if path.exists() else 0
        self.send(bytes=size_bytes)
        if not size_bytes:
            return
        with path.open("rb") as file:
            while piece := file.read(_CHUNK_BYTES):
                try:
                    self.sock.sendall(piece)
                except OSError as error:
                    raise self._gone(error) from None

    def receive_file(self, path: Path) -> None:
        """The file that the partner sends, in whole."""
        line = self.ask()
        while "bytes" not in line:
            line = self.ask()
        missing = int(line["bytes"])
        with path.open("wb") as file:
            while missing:
                piece, self._unread = self._unread[:missing], self._unread[missing:]
                if not piece:
                    try:
                        piece = self.sock.recv(min(_CHUNK_BYTES, missing))
                    except OSError as error:
                        raise self._gone(error) from None
                    if not piece:
                        raise RunFailed(f"{self.partner}: closed the connection in the middle of {path.name}")
                file.write(piece)
                missing -= len(piece)

    def close(self) -> None:
        """No connection."""
        self.sock.close()

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise RunFailed(f"{self.partner}: does not speak our protocol: {line[:60]!r}")
        return found

    def _gone(self, error: OSError) -> RunFailed:
        what = "does not answer any more" if isinstance(error, TimeoutError) else f"is gone ({error})"
        return RunFailed(f"{self.partner}: {what}")


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


def check_bind(bind: Endpoint, secret: str) -> None:
    """Nothing; SpecError when anybody could join: a bind that is not loopback needs a secret."""
    try:
        loopback = ipaddress.ip_address(bind.host).is_loopback
    except ValueError:
        loopback = bind.host == "localhost"
    if not loopback and not secret:
        raise SpecError(
            f"workers may join on {bind} from other machines: give a secret (environment INGEST_BENCH_SECRET), "
            "the same here and there"
        )


def admit(sock: socket.socket, secret: str) -> tuple[Wire, str]:
    """The supervisor's side of the handshake: the wire and the worker's name; RunFailed for who does not know."""
    wire = Wire(sock)
    sock.settimeout(HANDSHAKE_S)
    nonce = secrets.token_hex(16)
    wire.send(hello="ingest-bench", nonce=nonce)
    answer = wire.ask()
    theirs = str(answer.get("nonce", ""))
    if not hmac.compare_digest(str(answer.get("proof", "")), _proof(secret, "worker", nonce, theirs)):
        wire.send(refused="the secret is another one (environment INGEST_BENCH_SECRET, the same here and there)")
        raise RunFailed(f"{wire.partner}: wanted to join with another secret")
    ours, its = metadata.version("ingest-bench"), answer.get("version")
    if its != ours:
        wire.send(refused=f"it is ingest-bench {ours}, we are {its}; install the same here and there")
        raise RunFailed(f"{wire.partner}: wanted to join with ingest-bench {its}, this is {ours}")
    wire.send(proof=_proof(secret, "supervisor", theirs, nonce))
    sock.settimeout(SILENCE_S)
    return wire, str(answer.get("name", ""))[:80]


def introduce(sock: socket.socket, secret: str, name: str) -> Wire:
    """The worker's side of the handshake; RunFailed when either side does not know the secret."""
    wire = Wire(sock)
    hello = wire.ask()
    if hello.get("hello") != "ingest-bench":
        raise RunFailed(f"{wire.partner}: no ingest-bench is waiting for workers there")
    nonce = secrets.token_hex(16)
    proof = _proof(secret, "worker", str(hello["nonce"]), nonce)
    wire.send(name=name, nonce=nonce, proof=proof, version=metadata.version("ingest-bench"))
    answer = wire.ask()
    if "refused" in answer:
        raise RunFailed(f"{wire.partner}: refused us: {answer['refused']}")
    if not hmac.compare_digest(str(answer.get("proof", "")), _proof(secret, "supervisor", nonce, str(hello["nonce"]))):
        raise RunFailed(f"{wire.partner}: does not know the secret; nothing was done for it")
    return wire


def _proof(secret: str, role: str, first: str, second: str) -> str:
    return hmac.new(secret.encode(), f"{role} {first} {second}".encode(), hashlib.sha256).hexdigest()
