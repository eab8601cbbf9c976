"""The same connection over TLS: certificate and host name are always verified.

OpenSSL works on memory; the socket below stays the plain C one, and its errors mean what they mean without TLS.
"""

from __future__ import annotations

import _socket
import errno
import functools
import ssl
import weakref
from typing import TYPE_CHECKING, Any, cast

from ingest_bench.load.connection import Connection, Traffic

if TYPE_CHECKING:
    from ingest_bench.model.target import Endpoint, Tls

# A multiple of TLS's largest record (16 KiB): what is encrypted ahead of the kernel.
_AHEAD_BYTES = 256 * 1024


def context(tls: Tls) -> ssl.SSLContext:
    """What verifies the server, for all connections of a process."""
    return ssl.create_default_context(cadata=tls.ca_pem or None)


class TlsConnection(Connection):
    """One connection at a time to one server, over TLS."""

    def __init__(self, address: Endpoint, traffic: Traffic, verifying: ssl.SSLContext, name: str) -> None:
        super().__init__(address, traffic)
        self._verifying = verifying
        self._name = name
        # Weak: it would otherwise hold itself, buffer and all, when nobody else does any more.
        self._wait = functools.partial(TlsConnection._wait_unless_read, weakref.proxy(self))

    def _wait_unless_read(self, watcher: Any) -> None:
        """A wait that does not wait for bytes that were read already, and only have to be decrypted."""
        if watcher is self._readable and isinstance(self._sock, TlsSocket) and self._sock.has_more:
            return
        self._hub.wait(watcher)

    def _connect(self) -> _socket.socket:
        sock = TlsSocket(super()._connect(), self._verifying, self._name)
        self._sock = cast("_socket.socket", sock)
        while True:
            try:
                done = sock.shake_hands()
            except ssl.SSLCertVerificationError as error:
                raise self._broken(
                    f"TLS: the certificate of {self._name} is not verified: {error.verify_message}"
                ) from None
            except OSError as error:
                raise self._broken(f"TLS with {self._name}: {error.strerror or error}") from None
            if done:
                return cast("_socket.socket", sock)
            self._hub.wait(self._writable if sock.has_unsent else self._readable)


class TlsSocket:
    """What `Connection` needs of a socket, encrypted. BlockingIOError, as there: the kernel has to be waited for."""

    def __init__(self, sock: _socket.socket, verifying: ssl.SSLContext, name: str) -> None:
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = verifying.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._unsent = memoryview(b"")
        self._owed_bytes = 0
        """Plain bytes that `_unsent` holds, and that the caller does not know to be taken yet."""
        self._early = b""
        """Plain bytes that were only looked at."""
        self.has_more = False
        """Whether plain bytes may be had without asking the kernel."""

    @property
    def has_unsent(self) -> bool:
        """Whether the kernel did not take everything yet."""
        return bool(self._unsent)

    def shake_hands(self) -> bool:
        """Whether the handshake is done; False: the kernel has to be waited for."""
        while True:
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            finally:
                # An alert says to the server why we go.
                self._unsent = memoryview(bytes(self._unsent) + self._outgoing.read())
                self._flush()
            if self._unsent:
                return False
            if done:
                return True
            try:
                self._fetch()
            except BlockingIOError:
                return False

    def sendmsg(self, parts: tuple[bytes, bytes | bytearray]) -> int:
        """How many bytes of both together the kernel took, encrypted."""
        return self.send(memoryview(b"".join(parts)))

    def send(self, view: memoryview) -> int:
        """How many bytes the kernel took, encrypted. The next call begins with the first byte that it did not take."""
        taken = 0
        while True:
            if not self._flush():
                break
            taken, self._owed_bytes = taken + self._owed_bytes, 0
            if taken == len(view):
                return taken
            piece = view[taken : taken + _AHEAD_BYTES]
            try:
                self._owed_bytes = self._tls.write(piece)
            except ssl.SSLError as error:
                raise _protocol(error) from None
            self._unsent = memoryview(self._outgoing.read())
        if not taken:
            raise BlockingIOError(errno.EAGAIN, "not now")
        return taken

    def recv_into(self, view: memoryview) -> int:
        """How many bytes are there now, as many as fit; 0: the server has closed."""
        filled = len(self._early)
        if filled:
            view[:filled], self._early = self._early, b""
        while True:
            filled, closed = self._decrypt(view, filled)
            if filled or closed:
                return filled
            self._fetch()

    def recv(self, size_bytes: int, flags: int = 0) -> bytes:
        """The first bytes that are there, which stay there: it is only ever looked whether there are any."""
        del flags
        room = bytearray(size_bytes)
        if not self._early:
            filled = self.recv_into(memoryview(room))
            self._early = bytes(room[:filled])
        return self._early

    def shutdown(self, how: int) -> None:
        """No more bytes, in either direction."""
        self._sock.shutdown(how)

    def close(self) -> None:
        """The kernel's socket is closed; nobody is told before, as without TLS."""
        self._sock.close()

    def _decrypt(self, view: memoryview, filled: int) -> tuple[int, bool]:
        """How much of the view is filled, and whether the server has said its last."""
        self.has_more = True
        while filled < len(view):
            try:
                # typeshed knows bytearrays only; any writable buffer will do.
                got = cast("int", self._tls.read(len(view) - filled, cast("bytearray", view[filled:])))
            except ssl.SSLWantReadError:
                self.has_more = False
                return filled, False
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                return filled, True
            except ssl.SSLError as error:
                raise _protocol(error) from None
            if not got:
                return filled, True
            filled += got
        return filled, False

    def _fetch(self) -> None:
        """What the kernel has goes to OpenSSL."""
        got = self._sock.recv(_AHEAD_BYTES)
        if got:
            self._incoming.write(got)
        else:
            self._incoming.write_eof()

    def _flush(self) -> bool:
        """Whether the kernel has taken everything that is encrypted."""
        while self._unsent:
            try:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
            except BlockingIOError:
                return False
        return True


def _protocol(error: ssl.SSLError) -> OSError:
    """An error that means the same without TLS: the connection is of no use any more."""
    return OSError(errno.EPROTO, f"TLS: {error.reason}")
