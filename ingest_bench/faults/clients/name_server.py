"""A name server for a few names: `name_server.py ADDRESS NAME=IPV4...`. The standard library alone.

It says the port that it has, and how many questions it has answered and how many not, in JSON for each line that it
hears. That line says what it does from then on: `answer`, `servfail` (it says that it failed) or `silent`. Nobody may
keep its answers (a TTL of 0).
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys

# RFC 1035, 4.1 and 3.2: flags of an answer (QR, RD, RA), codes, and an address of the name that stands in the question.
_ANSWER, _FAILED, _UNKNOWN = 0x8180, 2, 3
_HEADER = struct.Struct(">HHHHHH")
_A, _IN = 1, 1
_POINTER = 0xC000 | _HEADER.size


def answer(question: bytes, addresses: dict[str, str], *, fails: bool) -> bytes:
    """What is said to that question; struct.error or IndexError for what is none."""
    number, *_ = _HEADER.unpack_from(question)
    labels, at = [], _HEADER.size
    while length := question[at]:
        labels.append(question[at + 1 : at + 1 + length].decode("ascii", "replace").lower())
        at += 1 + length
    kind, _ = struct.unpack_from(">HH", question, at + 1)
    asked, address = question[_HEADER.size : at + 5], addresses.get(".".join(labels))
    if fails or address is None:
        return _HEADER.pack(number, _ANSWER | (_FAILED if fails else _UNKNOWN), 1, 0, 0, 0) + asked
    # Of another kind, such as AAAA, it has nothing.
    found = struct.pack(">HHHIH", _POINTER, _A, _IN, 0, 4) + socket.inet_aton(address) if kind == _A else b""
    return _HEADER.pack(number, _ANSWER, 1, bool(found), 0, 0) + asked + found


def main(address: str, *names: str) -> None:
    """Answer until the standard input ends."""
    addresses = dict(name.split("=") for name in names)
    counts, state = {"answered": 0, "failed": 0}, "answer"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 0))
        _say(str(server.getsockname()[1]))
        while True:
            readable, _, _ = select.select([server, sys.stdin], [], [])
            if server in readable:
                question, who = server.recvfrom(1500)
                counts["answered" if state == "answer" else "failed"] += 1
                if state != "silent":
                    try:
                        server.sendto(answer(question, addresses, fails=state == "servfail"), who)
                    except (struct.error, IndexError):
                        continue
            if sys.stdin in readable:
                if not (line := sys.stdin.readline()):
                    return
                state = line.strip() or state
                _say(json.dumps(counts))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
