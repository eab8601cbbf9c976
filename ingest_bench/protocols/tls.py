"""Connection over TLS: certificate and host name are always verified.

OpenSSL reads and writes the non-blocking socket itself; this module waits for the event that it needs.
"""

from __future__ import annotations

import _socket
import errno
import ssl
from typing import TYPE_CHECKING, Any, cast

from ingest_bench.protocols.connection import READ, WRITE, Connection

if TYPE_CHECKING:
    import socket


_RECORD_BYTES = 16 * 1024
# Passed to OpenSSL in one call, which takes all or nothing: the granularity of the count of sent bytes.
_PIECE_BYTES = 16 * _RECORD_BYTES


class TlsConnection(Connection):
    """A connection over TLS."""

    def _wait(self, watcher: Any) -> None:
        """Wait for the event that OpenSSL needs; return at once if it has buffered bytes."""
        sock = self._sock
        if isinstance(sock, TlsSocket):
            if watcher is self._readable and sock.tls.pending():
                return
            watcher = self._writable if sock.needs == WRITE else self._readable
        super()._wait(watcher)

    def _wait_for_either(self) -> int:
        if isinstance(self._sock, TlsSocket) and self._sock.needs == READ:
            super()._wait(self._readable)
            return WRITE
        return super()._wait_for_either()

    def _connect(self) -> _socket.socket:
        context, tls = self.address.tls_context, self.address.server.tls
        assert context is not None and tls is not None  # noqa: S101, PT018 - all addresses of an upstream have TLS, or none
        sock = TlsSocket(super()._connect(), context, tls.name)
        self._sock = cast("_socket.socket", sock)
        while True:
            try:
                sock.do_handshake()
            except BlockingIOError:
                self._wait(None)
            except ssl.SSLCertVerificationError as error:
                raise self._broken(
                    f"TLS: the certificate of {tls.name} is not verified: {error.verify_message}. "
                    "Name its CA with --ca-file."
                ) from None
            except OSError as error:
                raise self._broken(f"TLS with {tls.name}: {error.strerror or error}") from None
            else:
                return cast("_socket.socket", sock)


class TlsSocket:
    """The socket methods that `Connection` uses, over TLS. After BlockingIOError, `needs` is the event to wait for."""

    def __init__(self, sock: _socket.socket, context: ssl.SSLContext, host: str) -> None:
        self.tls = context.wrap_socket(cast("socket.socket", sock), do_handshake_on_connect=False, server_hostname=host)
        self._is_corked = False
        self.needs = 0
        """READ or WRITE, after a call of any kind that blocked; 0: it succeeded."""

    def do_handshake(self) -> None:
        """Verify the server and start encryption."""
        try:
            self.tls.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise self._blocked(error) from None
        self.needs = 0

    def sendmsg(self, parts: tuple[bytes, bytes | bytearray]) -> int:
        """Send head and body, and return how many bytes of both were accepted."""
        head, body = parts
        view = memoryview(body)
        first_part = max(0, _RECORD_BYTES - len(head))
        if len(body) > first_part:
            # OpenSSL writes each record separately. Corked, a 55 kB request over loopback takes 20% less CPU.
            self._cork(True)
        sent_bytes = self._write(memoryview(head + view[:first_part]))
        try:
            return sent_bytes + self.send(view[first_part:])
        except OSError:
            return sent_bytes  # the next call reports it again

    def send(self, view: memoryview) -> int:
        """Send the end of a request, and return how many bytes were accepted. The next call begins after them."""
        accepted = self._write(view)
        if self._is_corked and accepted == len(view):
            self._cork(False)
        return accepted

    def _write(self, view: memoryview) -> int:
        accepted = 0
        while accepted < len(view):
            try:
                accepted += self.tls.write(view[accepted : accepted + _PIECE_BYTES])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                blocked = self._blocked(error)
                if accepted:
                    return accepted
                raise blocked from None
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                raise BrokenPipeError(errno.EPIPE, "the server ended TLS") from None
            except ssl.SSLError as error:
                raise _protocol_error(error) from None
        self.needs = 0
        return accepted

    def _cork(self, is_corked: bool) -> None:
        """Make the kernel send only full segments, or flush."""
        self.tls.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_CORK, is_corked)
        self._is_corked = is_corked

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """Receive as many bytes as fit; 0: the server has closed."""
        try:
            received = self.tls.recv_into(buffer)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise self._blocked(error) from None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return 0
        except ssl.SSLError as error:
            raise _protocol_error(error) from None
        self.needs = 0
        return received

    def shutdown(self, how: int) -> None:
        """Stop both directions; received bytes can still be decrypted."""
        # SSLSocket.shutdown would continue to read without TLS.
        borrowed = _socket.socket(fileno=self.tls.fileno())
        try:
            borrowed.shutdown(how)
        finally:
            borrowed.detach()

    def close(self) -> None:
        """Close the socket without a TLS shutdown, as without TLS."""
        self.tls.close()

    def _blocked(self, error: ssl.SSLError) -> BlockingIOError:
        self.needs = READ if isinstance(error, ssl.SSLWantReadError) else WRITE
        return BlockingIOError(errno.EAGAIN, "not now")


def _protocol_error(error: ssl.SSLError) -> OSError:
    """Return the error as an OSError, which means the same without TLS: the connection is unusable."""
    return OSError(errno.EPROTO, f"TLS: {error.reason}")
