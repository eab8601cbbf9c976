"""Where a server is, a URL or HOST:PORT, and paths below it. Pure. No message repeats what may hold a password."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote, urlsplit

from ingest_bench.model.target import Endpoint, Scheme, Url
from ingest_bench.units import quoted

_PORT = 9200


def parse(text: str) -> Url:
    """Scheme, host and port; ValueError says what is wrong, and never what stood before an @."""
    try:
        parts = urlsplit(text.strip())
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
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(
            "a path or a query after the port has no meaning here; write it like https://search.example:9200"
        )
    scheme: Scheme = "https" if parts.scheme == "https" else "http"
    return Url(scheme=scheme, host=parts.hostname, port=port or _PORT)


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
