"""Round trips over TCP, timed; run by tests inside namespaces.

serve ADDRESS PORT…      a server that sends every byte back
ask ADDRESS PORT COUNT   JSON: the seconds of each round trip of one byte, the handshake's among them, and whether ECN
                         was negotiated
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time

# Sixth byte of struct tcp_info, and its flag for negotiated ECN (linux/tcp.h).
TCPI_OPTIONS, TCPI_OPT_ECN = 5, 8


def serve(address: str, ports: list[str]) -> None:
    selector = selectors.DefaultSelector()
    listeners = [socket.create_server((address, int(port))) for port in ports]
    for listener in listeners:
        selector.register(listener, selectors.EVENT_READ)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        for key, _ in selector.select():
            ready = key.fileobj
            assert isinstance(ready, socket.socket)
            if ready in listeners:
                connection = ready.accept()[0]
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connection, selectors.EVENT_READ)
            elif data := ready.recv(1 << 16):
                ready.sendall(data)
            else:
                selector.unregister(ready)
                ready.close()


def ask(address: str, port: int, count: int) -> dict[str, object]:
    seconds = []
    start = time.monotonic()
    with socket.create_connection((address, port), timeout=60) as connection:
        seconds.append(time.monotonic() - start)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            start = time.monotonic()
            connection.sendall(b"?")
            assert connection.recv(1) == b"?"
            seconds.append(time.monotonic() - start)
        options = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCPI_OPTIONS + 1)[TCPI_OPTIONS]
    return {"seconds": seconds, "ecn": bool(options & TCPI_OPT_ECN)}


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3:])
    else:
        sys.stdout.write(json.dumps(ask(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
