"""The SSH connections of our terminal: which they are, and the proof that an interface's filters lead them past.

Two instruments say the same: what the filters met, and what TCP itself has sent and got of the connection.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench import system
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.network.plan import commands, spared
from ingest_bench.network.plan.flows import SIDES, Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from ipaddress import IPv4Address, IPv6Address

    from ingest_bench.network.plan.interface_plan import Marks
    from ingest_bench.network.plan.interface_rules import Found

PATIENCE_S, _REST_S = 10.0, 0.2
# A packet is counted by its filter and by TCP one after the other, within microseconds; a busy machine may take longer.
_BETWEEN_S = 0.05
_SEGMENTS = {"egress": "segs_out", "ingress": "segs_in"}


def connections() -> tuple[Connection, ...]:
    """Those that SSH_CONNECTION names, ours or an ancestor's: sudo does not hand it on."""
    found = (parse(text) for text in sorted(_named(os.getpid())))
    return tuple(dict.fromkeys(one for one in found if one is not None))


def parse(text: str) -> Connection | None:
    """The connection of an SSH_CONNECTION; None when it is none."""
    words = text.split()
    try:
        far, far_port, own, own_port = words
        return Connection(far=_address(far), far_port=int(far_port), own=_address(own), own_port=int(own_port))
    except ValueError:
        return None


def over(devices: Iterable[str], route: Callable[[IPv4Address | IPv6Address], str]) -> tuple[Connection, ...]:
    """Those that run over one of the devices: it has our end's address, or it leads to the client."""
    known = connections()
    if not known:
        return ()
    here = set(devices)
    listed = commands.parse_json("ip -j addr show", system.run(("ip", "-j", "addr", "show")))
    owners = {info["local"]: link["ifname"] for link in listed for info in link.get("addr_info", ()) if "local" in info}
    return tuple(one for one in known if here & {owners.get(str(one.own)), route(one.far)})


def require(named: Iterable[Connection]) -> None:
    """SpecError unless they are there: of one that is not, nobody can show that it is spared."""
    for connection in named:
        _segments(connection)


def prove(found: Found, marks: Marks) -> tuple[str, ...]:
    """For each connection, in words, how many of its packets met the filter that leads it past everything else.

    RunFailed when one did not, or when none came and went that could show it. Nothing is sent to the client but what
    the terminal shows: a NUL, which it does not show.
    """
    with _terminal() as terminal:
        return tuple(_proven(found, marks, at, terminal) for at in range(len(found.ssh)))


def _proven(found: Found, marks: Marks, at: int, terminal: int | None) -> str:
    connection = found.ssh[at]
    met = _met(found, marks, at)
    time.sleep(_BETWEEN_S)
    first = last = _segments(connection)
    until = time.monotonic() + PATIENCE_S
    while not all(now > before for now, before in zip(last, first, strict=True)):
        if time.monotonic() > until:
            raise RunFailed(
                f"{found.interface}: no packets of your SSH connection {connection} came and went in "
                f"{PATIENCE_S:.0f} s, so nothing shows that it would be spared; start this in a terminal of it, and "
                "type something meanwhile"
            )
        if terminal is not None:
            with contextlib.suppress(OSError):
                os.write(terminal, b"\0")
        time.sleep(_REST_S)
        last = _segments(connection)
    time.sleep(_BETWEEN_S)
    met = tuple(now - before for now, before in zip(_met(found, marks, at), met, strict=True))
    moved = tuple(now - before for now, before in zip(last, first, strict=True))
    if any(here < there for here, there in zip(met, moved, strict=True)):
        raise RunFailed(
            f"{found.interface}: your SSH connection {connection} got {moved[0]} segments and sent {moved[1]}, and the "
            f"filter that spares it met {met[0]} and {met[1]}: its packets pass in another way, as in a tunnel; "
            "work from the console, or use another interface"
        )
    return f"{connection}: {met[1]} packets out and {met[0]} in, all past the shaped queues"


def _met(found: Found, marks: Marks, at: int) -> tuple[int, ...]:
    """Packets that arrived and that left."""
    return tuple(spared.packets(found, system.run(spared.show(marks, side)))[at] for side in SIDES)


def _segments(connection: Connection) -> tuple[int, ...]:
    """Segments that it got and sent; SpecError when it is not there. Where systemd listens, it is an IPv6 socket."""
    for line in system.run(("ss", "-H", "-t", "-i", "-n", "-O")).splitlines():
        state, _, _, own, far, *_ = line.split()
        if state == "ESTAB" and (_end(own), _end(far)) == (
            (connection.own, connection.own_port),
            (connection.far, connection.far_port),
        ):
            return tuple(
                int(said[1]) if (said := re.search(rf"\b{_SEGMENTS[side]}:(\d+)", line)) else 0 for side in SIDES
            )
    raise SpecError(
        f"SSH_CONNECTION names {connection}, and no such connection is established here: nobody can show that it is "
        "spared. Start this in a shell that its connection has begun, not in an older one of tmux or screen"
    )


def _end(text: str) -> tuple[IPv4Address | IPv6Address | None, int]:
    """The address and port of "192.0.2.1:22", "[fe80::1%eth0]:22" or "[::ffff:192.0.2.1]:22"."""
    host, _, port = text.rpartition(":")
    try:
        return _address(host.strip("[]")), int(port)
    except ValueError:
        return None, 0


def _address(text: str) -> IPv4Address | IPv6Address:
    address = ipaddress.ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


@contextlib.contextmanager
def _terminal() -> Iterator[int | None]:
    """Our controlling terminal to write to; None where we have none."""
    try:
        # A terminal that was stopped with Ctrl-S takes nothing, and must not hold us.
        terminal = os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield terminal
    finally:
        os.close(terminal)


def _named(pid: int) -> set[str]:
    found = {os.environ.get("SSH_CONNECTION", "")}
    while pid > 1:
        folder = Path("/proc") / str(pid)
        try:
            for line in (folder / "environ").read_bytes().split(b"\0"):
                if line.startswith(b"SSH_CONNECTION="):
                    found.add(line.partition(b"=")[2].decode(errors="replace"))
            pid = int((folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            # An ancestor of another user: what it knows, we may not read. Its child's word has to do.
            break
    return found
