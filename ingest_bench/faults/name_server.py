"""DNS server for a few names: `name_server.py ADDRESS NAME=IPV4...`. Standard library only.

It prints its port. Each line of its standard input sets its state, and it prints how many questions it has failed so
far. States: `answer`, `servfail` (answer with an error) and `silent`. Answers have a TTL of 0, so that no client may
cache them.
"""

from __future__ import annotations

import select
import socket
import struct
import sys

# RFC 1035, 4.1 and 3.2: flags of an answer (QR, RD, RA), codes, and an address record that points to the question.
_ANSWER, _SERVFAIL, _NXDOMAIN = 0x8180, 2, 3
_HEADER = struct.Struct(">HHHHHH")
_A, _IN = 1, 1
_POINTER = 0xC000 | _HEADER.size


def build_answer(query: bytes, addresses: dict[str, str], *, fails: bool) -> bytes:
    """Return the answer to a query; raise struct.error or IndexError if it is malformed."""
    number, *_ = _HEADER.unpack_from(query)
    labels, offset = [], _HEADER.size
    while length := query[offset]:
        labels.append(query[offset + 1 : offset + 1 + length].decode("ascii", "replace").lower())
        offset += 1 + length
    record_type, _ = struct.unpack_from(">HH", query, offset + 1)
    question, address = query[_HEADER.size : offset + 5], addresses.get(".".join(labels))
    if fails or address is None:
        return _HEADER.pack(number, _ANSWER | (_SERVFAIL if fails else _NXDOMAIN), 1, 0, 0, 0) + question
    # There are no records of other types, such as AAAA.
    records = b""
    if record_type == _A:
        records = struct.pack(">HHHIH", _POINTER, _A, _IN, 0, 4) + socket.inet_aton(address)
    return _HEADER.pack(number, _ANSWER, 1, bool(records), 0, 0) + question + records


def main(address: str, *names: str) -> None:
    """Answer until the standard input ends."""
    addresses = dict(name.split("=") for name in names)
    failed, state = 0, "answer"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 0))
        print(server.getsockname()[1], flush=True)  # noqa: T201 - the parent reads it
        while True:
            readable, _, _ = select.select([server, sys.stdin], [], [])
            if server in readable:
                query, client = server.recvfrom(1500)
                failed += state != "answer"
                if state != "silent":
                    try:
                        server.sendto(build_answer(query, addresses, fails=state == "servfail"), client)
                    except (struct.error, IndexError):
                        continue
            if sys.stdin in readable:
                if not (line := sys.stdin.readline()):
                    return
                state = line.strip() or state
                print(failed, flush=True)  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    main(*sys.argv[1:])
