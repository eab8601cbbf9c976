"""Round trips over TCP, timed; run by tests inside namespaces.

serve ADDRESS PORT…      a server that sends every byte back
ask ADDRESS PORT COUNT   JSON: the seconds of each round trip of one byte, the first connection's among them
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time


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


def ask(address: str, port: int, count: int) -> dict[str, list[float]]:
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
    return {"seconds": seconds}


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3:])
    else:
        sys.stdout.write(json.dumps(ask(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
