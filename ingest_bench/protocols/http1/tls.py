"""The same connection over TLS: certificate and host name are always verified.

OpenSSL reads and writes the non-blocking socket itself; what it has to wait for is waited for as everything else is.
"""

from __future__ import annotations

import _socket
import errno
import ssl
from typing import TYPE_CHECKING, Any, cast

from ingest_bench.protocols.channel import READ, WRITE
from ingest_bench.protocols.connection import Connection

if TYPE_CHECKING:
    import socket


_RECORD_BYTES = 16 * 1024
# Given to OpenSSL in one call, which takes all or nothing: how exactly it is known what a server was sent.
_PIECE_BYTES = 16 * _RECORD_BYTES


class TlsConnection(Connection):
    """One connection at a time, over TLS."""

    def _wait(self, watcher: Any) -> None:
        """A wait for what OpenSSL needs, and none for bytes that it has read already."""
        sock = self._sock
        if isinstance(sock, TlsSocket):
            if watcher is self._readable and sock.has_more:
                return
            watcher = self._writable if sock.needs == WRITE else self._readable
        super()._wait(watcher)

    def _wait_for_either(self) -> int:
        if isinstance(self._sock, TlsSocket) and self._sock.needs == READ:
            super()._wait(self._readable)
            return WRITE
        return super()._wait_for_either()

    def _connect(self) -> _socket.socket:
        tls = self.address.tls
        assert tls is not None  # noqa: S101 - so all addresses of its way are
        sock = TlsSocket(super()._connect(), tls.context, tls.name)
        self._sock = cast("_socket.socket", sock)
        while True:
            try:
                sock.shake_hands()
            except BlockingIOError:
                self._wait(None)
            except ssl.SSLCertVerificationError as error:
                raise self._broken(
                    f"TLS: the certificate of {tls.name} is not verified: {error.verify_message}. "
                    "Name the CA that vouches for it by --ca-file"
                ) from None
            except OSError as error:
                raise self._broken(f"TLS with {tls.name}: {error.strerror or error}") from None
            else:
                return cast("_socket.socket", sock)


class TlsSocket:
    """What `Connection` needs of a socket, encrypted. BlockingIOError, as there: `needs` says what to wait for."""

    def __init__(self, sock: _socket.socket, verifying: ssl.SSLContext, name: str) -> None:
        self._tls = verifying.wrap_socket(
            cast("socket.socket", sock), do_handshake_on_connect=False, server_hostname=name
        )
        self._is_corked = False
        self.needs = 0
        """READ or WRITE, whatever the call was that could not be done; 0: it was done."""

    @property
    def has_more(self) -> bool:
        """Whether plain bytes may be had without asking the kernel."""
        return self._tls.pending() > 0

    def shake_hands(self) -> None:
        """A connection that is verified and encrypted."""
        try:
            self._tls.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise self._blocked(error) from None
        self.needs = 0

    def sendmsg(self, parts: tuple[bytes, bytes | bytearray]) -> int:
        """How many bytes of both together were taken."""
        head, body = parts
        view = memoryview(body)
        beside_head = max(0, _RECORD_BYTES - len(head))
        if len(body) > beside_head:
            # OpenSSL writes each record by itself. One 55 kB request over loopback: 20% less CPU in one segment.
            self._cork(True)
        sent_bytes = self._write(memoryview(head + view[:beside_head]))
        try:
            return sent_bytes + self.send(view[beside_head:])
        except OSError:
            return sent_bytes  # the next call tells it again

    def send(self, view: memoryview) -> int:
        """How many bytes of the end of a request were taken. The next call begins with the first one that was not."""
        taken = self._write(view)
        if self._is_corked and taken == len(view):
            self._cork(False)
        return taken

    def _write(self, view: memoryview) -> int:
        taken = 0
        while taken < len(view):
            try:
                taken += self._tls.write(view[taken : taken + _PIECE_BYTES])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                blocked = self._blocked(error)
                if taken:
                    return taken
                raise blocked from None
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                raise BrokenPipeError(errno.EPIPE, "the server ended TLS") from None
            except ssl.SSLError as error:
                raise _protocol(error) from None
        self.needs = 0
        return taken

    def _cork(self, is_corked: bool) -> None:
        """Whether the kernel waits for whole segments before it sends."""
        self._tls.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_CORK, is_corked)
        self._is_corked = is_corked

    def recv_into(self, room: bytearray | memoryview) -> int:
        """How many bytes are there now, as many as fit; 0: the server has closed."""
        try:
            got = self._tls.recv_into(room)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise self._blocked(error) from None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return 0
        except ssl.SSLError as error:
            raise _protocol(error) from None
        self.needs = 0
        return got

    def shutdown(self, how: int) -> None:
        """No more bytes, in either direction; what was received already can still be decrypted."""
        # SSLSocket's own would read on without TLS.
        borrowed = _socket.socket(fileno=self._tls.fileno())
        try:
            borrowed.shutdown(how)
        finally:
            borrowed.detach()

    def close(self) -> None:
        """The kernel's socket is closed; nobody is told before, as without TLS."""
        self._tls.close()

    def _blocked(self, error: ssl.SSLError) -> BlockingIOError:
        self.needs = READ if isinstance(error, ssl.SSLWantReadError) else WRITE
        return BlockingIOError(errno.EAGAIN, "not now")


def _protocol(error: ssl.SSLError) -> OSError:
    """An error that means the same without TLS: the connection is of no use any more."""
    return OSError(errno.EPROTO, f"TLS: {error.reason}")
