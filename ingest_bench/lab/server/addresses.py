"""Where a server is that runs already, as its URLs say it, and questions to it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.inputs import credentials
from ingest_bench.lab.server import attaching
from ingest_bench.model.target import Endpoint, Place, TargetOptions, Tls, Url
from ingest_bench.targets.http import Http, ask

Enter = Callable[[Sequence[str]], tuple[str, ...]]

CONNECT_LIMIT_S = 10


def connected(
    place: Place, enter: Enter = tuple, log: Path | None = None, home: Path | None = None
) -> contextlib.AbstractContextManager[Http]:
    """Questions to the server there, asked where `enter` leads."""
    headers = credentials.headers(os.environ) if place.credentials else {}
    return ask(
        enter,
        place.endpoint,
        host_header=place.host_header,
        path_prefix=place.path_prefix,
        tls=place.tls,
        headers=headers,
        log=log,
        home=home,
    )


def plain(endpoint: Endpoint) -> Place:
    """A server at that address, over plain HTTP."""
    return Place(endpoint=endpoint, credentials=bool(credentials.headers(os.environ)))


def urls_of(options: TargetOptions) -> tuple[Url, ...]:
    """All addresses of the server."""
    assert options.url is not None  # noqa: S101 - whoever asks has a URL
    return options.url, *options.more_urls


def place_of(options: TargetOptions, enter: Enter) -> Place:
    """How its clients get to it, by URLs and certificates of the options; SpecError where these contradict."""
    urls = urls_of(options)
    first = urls[0]
    if len({url.scheme for url in urls}) > 1:
        raise SpecError(f"--url: {', '.join(map(str, urls))}: all addresses of a cluster are https://, or none is")
    cert, key = credentials.client_certificate(os.environ)
    cert, key = options.client_cert or cert, options.client_key or key
    for name, given in {"target.ca_file": options.ca_file, "target.client_cert": options.client_cert}.items():
        if given and first.scheme != "https":
            raise SpecError(f"{name}: {first} speaks no TLS; is it https://?")
    ca_pem = "" if options.ca_file is None else credentials.ca_certificates(Path(options.ca_file))
    if cert and first.scheme == "https":
        credentials.load_client_certificate(ssl.create_default_context(), cert, key)
    elsewhere = attaching.is_elsewhere(enter)

    def place(url: Url, endpoint: Endpoint) -> Place:
        tls = Tls(name=url.host, ca_pem=ca_pem, client_cert=cert, client_key=key) if url.scheme == "https" else None
        own = bool(credentials.headers(os.environ))
        return Place(
            endpoint=endpoint, host_header=url.authority, path_prefix=url.path_prefix, tls=tls, credentials=own
        )

    # Questions go to the first that takes a connection; the load's workers look up the others themselves.
    here, endpoint = (first, attaching.literal(first)) if elsewhere else _first_there(urls)
    rest = (url for url in urls if url is not here)
    others = (place(url, attaching.literal(url) if elsewhere else Endpoint(url.host, url.port)) for url in rest)
    return dataclasses.replace(place(here, endpoint), others=tuple(others))


def _first_there(urls: Sequence[Url]) -> tuple[Url, Endpoint]:
    """The first of these that somebody answers at, and its address; RunFailed when nobody does at any."""
    failures = []
    for url in urls:
        try:
            return url, _endpoint(url)
        except RunFailed as error:
            failures.append(str(error))
    raise RunFailed("\n".join(failures))


def _endpoint(url: Url) -> Endpoint:
    """The first address of the host that takes a connection: everything of a run goes there."""
    try:
        known = socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise RunFailed(f"{url}: there is no host of this name ({error.strerror}). Is it written right?") from None
    said = ""
    for *_, address in dict.fromkeys(known):
        try:
            socket.create_connection((str(address[0]), url.port), timeout=CONNECT_LIMIT_S).close()
        except OSError as error:
            said = error.strerror or str(error)
            continue
        return Endpoint(str(address[0]), url.port)
    raise RunFailed(f"{url}: nobody answers there ({said}). Does it run, and is the port open to this machine?")


def unencrypted(place: Place) -> tuple[str, ...]:
    """A note where credentials go over a network as they are."""
    if place.credentials and place.tls is None and not place.endpoint.host.startswith(("127.", "::1")):
        return ("the credentials go over the network as they are: the URL is http://",)
    return ()
