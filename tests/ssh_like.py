"""Stand-in for sshd and ssh without cryptography: a terminal over one TCP connection.

serve ADDRESS PORT ARGV…   print "ready", and run ARGV on a terminal of the first client, with its SSH_CONNECTION
connect ADDRESS PORT       send the standard input there, and print the output
"""

from __future__ import annotations

import os
import pty
import select
import socket
import sys


def relay(connection: socket.socket, source: int, sink: int) -> None:
    """Copy data in both directions until one end closes."""
    while True:
        ready, _, _ = select.select([connection.fileno(), source], [], [])
        for descriptor in ready:
            try:
                data = os.read(descriptor, 1 << 16)
            except OSError:
                # The terminal was closed.
                return
            if not data:
                return
            if descriptor != source:
                os.write(sink, data)
            else:
                connection.sendall(data)


def serve(address: str, port: str, *argv: str) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, int(port)), family=family) as server:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        connection, (far, far_port, *_) = server.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    env = {**os.environ, "SSH_CONNECTION": f"{far} {far_port} {address} {port}"}
    pid, terminal = pty.fork()
    if not pid:
        os.execvpe(argv[0], argv, env)  # noqa: S606 - an argv of the test's
    relay(connection, terminal, terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def connect(address: str, port: str) -> int:
    with socket.create_connection((address, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        relay(connection, 0, 1)
    return 0


if __name__ == "__main__":
    sys.exit(serve(*sys.argv[2:]) if sys.argv[1] == "serve" else connect(*sys.argv[2:]))
