"""One transfer each way over TCP, timed; run by tests inside namespaces.

serve ADDRESS PORT…      a server that reads to the end, then sends as much back
send ADDRESS PORT BYTES [TIMEOUT]
                         JSON: seconds to the server and back, the local address, the MSS and the congestion control
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time


def answer(connection: socket.socket) -> None:
    with connection:
        read = 0
        while data := connection.recv(1 << 16):
            read += len(data)
        connection.sendall(bytes(read))


def accept(listener: socket.socket) -> None:
    while True:
        threading.Thread(target=answer, args=listener.accept()[:1], daemon=True).start()


def serve(address: str, ports: list[str]) -> None:
    for port in ports:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, int(port)), family=family)
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    threading.Event().wait()


def send(address: str, port: str, size_text: str, timeout_s: str = "60") -> dict[str, object]:
    size = int(size_text)
    with socket.create_connection((address, int(port)), timeout=float(timeout_s)) as connection:
        local = connection.getsockname()[0]
        mss = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        congestion = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
        start = time.monotonic()
        connection.sendall(bytes(size))
        connection.shutdown(socket.SHUT_WR)
        read = len(connection.recv(1))
        there = time.monotonic()
        while data := connection.recv(1 << 16):
            read += len(data)
        back = time.monotonic()
    assert read == size
    times = {"there_s": there - start, "back_s": back - there}
    return {**times, "local": local, "mss": mss, "congestion": congestion}


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3:])
    else:
        sys.stdout.write(json.dumps(send(*sys.argv[2:])))
