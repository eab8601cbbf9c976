"""The port of a fleet: how many connections may be there that have not yet proved that they have a key."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import socket
import struct

# include/uapi/asm-generic/socket.h and linux/filter.h: one instruction, "return 0", drops a packet.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_DROP = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0), 8)
# A worker needs some milliseconds for its handshake. All of 1,000 workers at once get in within seconds.
_MOST = 500


class Gate:
    """A listening socket that takes no new connection while too many have not shown a key.

    Its packets are dropped then: who wants to connect tries again after a second (the SYN's retransmission), and the
    connections that stand notice nothing. To close the ZeroMQ listener instead would end them, too.
    """

    def __init__(self, host: str, port: int) -> None:
        is_ipv6 = ":" in host
        if is_ipv6 and not socket.has_dualstack_ipv6():
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
        # As ZeroMQ listens: at :: for IPv4, too.
        self._listener = socket.create_server((host, port), family=family, dualstack_ipv6=is_ipv6)
        # The other descriptors are for workers and their files.
        self._most = min(_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._unknown: set[int] = set()
        self._is_shut = False

    def descriptor(self) -> int:
        """Return the listening socket for ZeroMQ, which closes it."""
        return self._listener.dup().detach()

    def accepted(self, descriptor: int) -> bool:
        """Count a new connection. True if the gate shuts now."""
        self._unknown.add(descriptor)
        if self._is_shut or len(self._unknown) < self._most:
            return False
        program = struct.pack("HP", 1, ctypes.addressof(_DROP))
        self._listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        self._is_shut = True
        return True

    def settled(self, descriptor: int) -> None:
        """Count a connection no more: it has shown its key, or is gone."""
        self._unknown.discard(descriptor)
        if self._is_shut and len(self._unknown) <= self._most // 2:
            self._listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, b"\0" * 4)
            self._is_shut = False

    def close(self) -> None:
        """Close this side's copy of the listening socket."""
        with contextlib.suppress(OSError):
            self._listener.close()
