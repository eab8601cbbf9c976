"""Where a server is, a URL or HOST:PORT, who connects to it, and paths below it. Pure.

No message repeats what may hold a password.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import quote, urlsplit

from ingest_bench.model.network import FarEnd, PortRange, RealLink
from ingest_bench.model.target import Endpoint, Scheme, Url
from ingest_bench.model.values import PATH_PREFIX
from ingest_bench.units import quoted

_PORT = 9200
# A host, the bits of a network, and ports: in brackets where the host has colons, and bare where it has and no port.
_FAR_ENDS = (
    r"\[([^\]\[/]+)(?:/([0-9]{1,3}))?\](?::([0-9,-]+))?",
    r"([^\]\[/:]+)(?:/([0-9]{1,3}))?(?::([0-9,-]+))?",
    r"([^\]\[/:]*:[^\]\[/]*:[^\]\[/]*)(?:/([0-9]{1,3}))?()",
)


def parse(text: str) -> Url:
    """Return scheme, host, port and path prefix; ValueError names the fault, but never the text before an @."""
    text = text.strip()
    if not text.isprintable():
        # `urlsplit` would drop line feeds and tabs.
        raise ValueError("a line feed or another control character is in this URL; take it out")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("this is no URL; write it like https://search.example:9200") from None
    if "@" in text:
        raise ValueError(
            "a URL with a user or a password in it would stand in results and process lists; give them in the "
            "environment, as INGEST_BENCH_USER and INGEST_BENCH_PASSWORD, or as INGEST_BENCH_API_KEY"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("this is no URL of a server; write it like https://search.example:9200")
    prefix = parts.path.rstrip("/")
    if parts.query or parts.fragment or "?" in text or "#" in text:
        raise ValueError("a query after the port has no meaning here; write it like https://search.example:9200/prefix")
    if re.fullmatch(PATH_PREFIX, prefix) is None:
        raise ValueError("its path is not one of a server; write it like https://search.example:9200/prefix")
    scheme: Scheme = "https" if parts.scheme == "https" else "http"
    return Url(scheme=scheme, host=parts.hostname, port=_PORT if port is None else port, path_prefix=prefix)


def path(*parts: str | Sequence[str]) -> str:
    """The path of these parts, percent-encoded: a name of an index may hold whatever it likes.

    A part of several names has commas between them. A `*` stays what it is: servers read it as a pattern.
    """
    names = ((part,) if isinstance(part, str) else part for part in parts)
    return "".join("/" + ",".join(quote(name, safe="*") for name in part) for part in names)


def parse_endpoint(text: str) -> Endpoint:
    """The host and port in "HOST:PORT"; ValueError says how to write them."""
    host, _, port = text.rpartition(":")
    if not host or re.fullmatch("[0-9]{1,5}", port) is None:
        raise ValueError(f"{quoted(text)}: write it like 192.0.2.7:9200, server.example:9200 or [2001:db8::7]:9200")
    return Endpoint(host.removeprefix("[").removesuffix("]"), int(port))


def parse_far_end(text: str) -> FarEnd:
    """The host or network, and the ports, in "HOST[/BITS][:PORTS]"; ValueError says how to write them."""
    wrong = ValueError(
        f"{quoted(text)}: write it like 192.0.2.7:9200, server.example:9200,9300-9310, 192.0.2.0/24:9200 or "
        "[2001:db8::/64]:9200"
    )
    found = next((found for form in _FAR_ENDS if (found := re.fullmatch(form, text))), None)
    if found is None:
        raise wrong
    host, bits, ports = found.groups()
    try:
        ranges = tuple(parse_ports(part) for part in ports.split(",")) if ports else ()
    except ValueError:
        raise wrong from None
    return FarEnd(host, int(bits) if bits else None, ranges)


def parse_ports(text: str) -> PortRange:
    """The ports in "9200" or "9200-9210"; ValueError says how to write them."""
    found = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", text)
    if found is None:
        raise ValueError(f"{quoted(text)}: write it like 9200 or 9200-9210")
    return PortRange(int(found[1]), int(found[2] or found[1]))


def check_ports(ports: PortRange) -> None:
    """ValueError for a range that ends before it begins."""
    if ports.last < ports.first:
        raise ValueError(f"{ports}: its last port is before its first one")


def check_far_end(end: FarEnd) -> None:
    """ValueError for a network that is none."""
    if end.prefix_bits is not None:
        network(end)


def network(end: FarEnd) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """The addresses of a far end that is given by numbers; ValueError when it is not."""
    text = f"{end.host}/{end.prefix_bits}"
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(f"{text} is no network ({error}); write it like 192.0.2.0/24 or 2001:db8::/64") from None


def check_real_link(link: RealLink) -> None:
    """ValueError where nobody can tell which end has the port."""
    for end in link.to:
        if link.port and end.ports:
            raise ValueError(f"port: the server is here, and clients have any port; write {end} without ports")
        if not link.port and not end.ports:
            raise ValueError(f"to: {end}: which port of it? Write it like {end.host}:9200")
