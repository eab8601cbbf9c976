"""Who we are to a server that runs already: from the environment, into the header of a request, and nowhere else."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from pathlib import Path

from ingest_bench.errors import SpecError
from ingest_bench.inputs import files

CLIENT_CERT, CLIENT_KEY = "INGEST_BENCH_CLIENT_CERT", "INGEST_BENCH_CLIENT_KEY"
USER, PASSWORD, API_KEY = "INGEST_BENCH_USER", "INGEST_BENCH_PASSWORD", "INGEST_BENCH_API_KEY"


def headers(environment: Mapping[str, str]) -> dict[str, str]:
    """The header that says who we are; empty when the environment says nothing. No message repeats a value."""
    user, password, key = (environment.get(name, "") for name in (USER, PASSWORD, API_KEY))
    if not (user or password or key):
        return {}
    if key and (user or password):
        raise SpecError(f"{API_KEY} and {USER} are both set; keep one of them")
    if key:
        if not key.isascii() or not key.isprintable() or " " in key:
            raise SpecError(f"{API_KEY}: it is no key; it must be one word, as the server gave it (base64)")
        return {"authorization": f"ApiKey {key}"}
    if not user or not password:
        raise SpecError(f"{USER} and {PASSWORD} belong together; {PASSWORD if user else USER} is not set")
    if ":" in user:
        raise SpecError(f"{USER}: a user's name has no colon; HTTP's basic authentication could not carry it")
    both = b":".join((_utf8(USER, user), _utf8(PASSWORD, password)))
    return {"authorization": f"Basic {base64.b64encode(both).decode()}"}


def _utf8(name: str, value: str) -> bytes:
    """The bytes of the value; SpecError for one that is not UTF-8, which Python keeps as lone surrogates (PEP 383)."""
    try:
        return value.encode()
    except UnicodeEncodeError:
        # Raised outside: the error here has the value.
        problem = f"{name}: it is not UTF-8, as which servers read it; set it in a terminal that writes UTF-8"
    raise SpecError(problem)


def client_certificate(environment: Mapping[str, str]) -> tuple[str, str]:
    """The files of our own certificate and its key, as the environment names them; both empty when it does not."""
    cert, key = environment.get(CLIENT_CERT, ""), environment.get(CLIENT_KEY, "")
    if bool(cert) != bool(key):
        raise SpecError(
            f"{CLIENT_CERT} and {CLIENT_KEY} belong together; {CLIENT_KEY if cert else CLIENT_CERT} is not set"
        )
    return cert, key


def ca_certificates(path: Path) -> str:
    """Return the text of a `--ca-file`; SpecError if it holds no certificate."""
    try:
        text = files.text(path)
        ssl.create_default_context(cadata=text)
    except OSError as error:
        # ssl.SSLError is one too.
        raise SpecError(f"--ca-file {path}: no certificates can be read from it ({error.strerror or error})") from None
    except ValueError:
        raise SpecError(f"--ca-file {path}: it holds no certificate; a PEM file is needed") from None
    return text


def load_client_certificate(context: ssl.SSLContext, cert: str, key: str) -> None:
    """From now on connections of the context say who we are; SpecError when these files cannot be that."""
    for path in (cert, key):
        try:
            with open(path, "rb"):  # noqa: PTH123 - only whether it can be read
                pass
        except OSError as error:
            raise SpecError(f"client certificate: {path} cannot be read: {error.strerror}") from None
    try:
        context.load_cert_chain(cert, key, password=_no_passphrase)
    except ssl.SSLError as error:
        why = "they do not belong together" if error.reason == "KEY_VALUES_MISMATCH" else "both must be PEM files"
        raise SpecError(f"client certificate: {cert} with the key {key}: {why} ({error.reason})") from None


def _no_passphrase() -> str:
    raise SpecError(
        "client certificate: its key has a passphrase, which nobody is there to type; give a file without one"
    )
