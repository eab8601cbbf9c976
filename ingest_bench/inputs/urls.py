"""URLs of servers, HOST:PORT, remote addresses of real interfaces, and paths below a URL. Pure.

No message repeats text that may hold a password.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlsplit

from ingest_bench.model.network import PortRange, RealInterface, RemoteAddress
from ingest_bench.model.target import Endpoint, Scheme, Url
from ingest_bench.model.values import PATH_PREFIX
from ingest_bench.units import quote_value

_DEFAULT_PORTS: Mapping[str, tuple[Scheme, int]] = {
    "http": ("http", 9200),
    "https": ("https", 9200),
    "cassandra": ("cassandra", 9042),
}
# Host, prefix bits and ports. A host with colons needs brackets if ports follow.
_REMOTE_ADDRESSES = (
    r"\[([^\]\[/]+)(?:/([0-9]{1,3}))?\](?::([0-9,-]+))?",
    r"([^\]\[/:]+)(?:/([0-9]{1,3}))?(?::([0-9,-]+))?",
    r"([^\]\[/:]*:[^\]\[/]*:[^\]\[/]*)(?:/([0-9]{1,3}))?()",
)


def parse_url(text: str) -> Url:
    """Parse scheme, host, port and path prefix; ValueError names the problem, but never text before an @."""
    text = text.strip()
    if not text.isprintable():
        # `urlsplit` would drop line feeds and tabs.
        raise ValueError("the URL contains a line feed or another control character; remove it")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("not a URL; write it like https://search.example:9200") from None
    if "@" in text:
        raise ValueError(
            "a user or password in a URL would end up in results and process lists; set the environment variables "
            "INGEST_BENCH_USER and INGEST_BENCH_PASSWORD, or INGEST_BENCH_API_KEY"
        )
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        scheme_missing = "" if "://" in text else ": it does not begin with http://, https:// or cassandra://"
        raise ValueError(f"not the URL of a server{scheme_missing}; write it like https://search.example:9200")
    prefix = parts.path.rstrip("/")
    if parts.query or parts.fragment or "?" in text or "#" in text:
        raise ValueError("the URL has a query or fragment; write it like https://search.example:9200/prefix")
    if re.fullmatch(PATH_PREFIX, prefix) is None:
        raise ValueError("the path of the URL is not usable; write it like https://search.example:9200/prefix")
    scheme, default_port = _DEFAULT_PORTS[parts.scheme]
    if prefix and scheme == "cassandra":
        raise ValueError("cassandra:// has no path; write it like cassandra://node.example:9042")
    return Url(scheme=scheme, host=parts.hostname, port=default_port if port is None else port, path_prefix=prefix)


def join_path(*parts: str | Sequence[str]) -> str:
    """Return the percent-encoded path of these parts; names of a sequence are joined by commas.

    A `*` is not encoded: servers read it as a pattern.
    """
    names = ((part,) if isinstance(part, str) else part for part in parts)
    return "".join("/" + ",".join(quote(name, safe="*") for name in part) for part in names)


def parse_endpoint(text: str) -> Endpoint:
    """Parse "HOST:PORT"; ValueError shows how to write it."""
    host, _, port = text.rpartition(":")
    if not host or re.fullmatch("[0-9]{1,5}", port) is None:
        raise ValueError(
            f"{quote_value(text)}: write it like 192.0.2.7:9200, server.example:9200 or [2001:db8::7]:9200"
        )
    return Endpoint(host.removeprefix("[").removesuffix("]"), int(port))


def parse_remote_address(text: str) -> RemoteAddress:
    """Parse "HOST[/BITS][:PORTS]"; ValueError shows how to write it."""
    wrong = ValueError(
        f"{quote_value(text)}: write it like 192.0.2.7:9200, server.example:9200,9300-9310, 192.0.2.0/24:9200 or "
        "[2001:db8::/64]:9200"
    )
    match = next((match for form in _REMOTE_ADDRESSES if (match := re.fullmatch(form, text))), None)
    if match is None:
        raise wrong
    host, bits, ports = match.groups()
    try:
        ranges = tuple(parse_ports(part) for part in ports.split(",")) if ports else ()
    except ValueError:
        raise wrong from None
    return RemoteAddress(host, int(bits) if bits else None, ranges)


def parse_ports(text: str) -> PortRange:
    """Parse "9200" or "9200-9210"; ValueError shows how to write them."""
    match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", text)
    if match is None:
        raise ValueError(f"{quote_value(text)}: write it like 9200 or 9200-9210")
    return PortRange(int(match[1]), int(match[2] or match[1]))


def check_ports(ports: PortRange) -> None:
    """Raise ValueError for a range that ends before it begins."""
    if ports.last < ports.first:
        raise ValueError(f"{ports}: the last port is before the first one")


def check_remote_address(address: RemoteAddress) -> None:
    """Raise ValueError for an address with prefix bits that is not a network."""
    if address.prefix_bits is not None:
        parse_network(address)


def parse_network(address: RemoteAddress) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Return the network of a numeric address; ValueError if it is not one."""
    text = f"{address.host}/{address.prefix_bits}"
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(f"{text} is not a network ({error}); write it like 192.0.2.0/24 or 2001:db8::/64") from None


def check_interface(interface: RealInterface) -> None:
    """Raise ValueError unless exactly one end of the connections has a port."""
    for address in interface.to:
        if interface.port and address.ports:
            raise ValueError(f"port: the server is here, and clients have any port; write {address} without ports")
        if not interface.port and not address.ports:
            raise ValueError(f"to: {address}: the port is missing; write it like {address.host}:9200")
