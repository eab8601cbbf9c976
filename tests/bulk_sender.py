"""Send bulks over one connection, each in one write: HOST PORT DOCUMENTS[,DOCUMENTS…] ROUNDS."""

from __future__ import annotations

import http.client
import socket
import sys

DOCUMENT = b'{"index":{}}\n{"text":"%s"}\n' % (b"x" * 1000)


def send(host: str, port: int, sizes: list[int], rounds: int) -> None:
    requests = []
    for documents in sizes:
        body = DOCUMENT * documents
        head = f"POST /test/_bulk HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/x-ndjson\r\nContent-Length: "
        requests.append(f"{head}{len(body)}\r\n\r\n".encode() + body)
    with socket.create_connection((host, port)) as connection:
        for request in requests * rounds:
            connection.sendall(request)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            answer.read()
            if answer.status != 200:
                sys.exit(f"status {answer.status}")


if __name__ == "__main__":
    send(sys.argv[1], int(sys.argv[2]), [int(size) for size in sys.argv[3].split(",")], int(sys.argv[4]))
