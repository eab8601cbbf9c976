"""Credentials for servers that already run: from environment variables into request headers, and nowhere else."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Mapping
from pathlib import Path

from ingest_bench.errors import SpecError
from ingest_bench.inputs import files

CLIENT_CERT, CLIENT_KEY = "INGEST_BENCH_CLIENT_CERT", "INGEST_BENCH_CLIENT_KEY"
USER, PASSWORD, API_KEY = "INGEST_BENCH_USER", "INGEST_BENCH_PASSWORD", "INGEST_BENCH_API_KEY"
JMX_USER, JMX_PASSWORD = "INGEST_BENCH_JMX_USER", "INGEST_BENCH_JMX_PASSWORD"

# The labels that OpenSSL reads as certificates (pem.h).
_CERTIFICATE = re.compile(r"-----BEGIN ((?:TRUSTED |X509 )?CERTIFICATE)-----.*?-----END \1-----", re.DOTALL)


def read_authorization(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the authorization header; empty without credentials. No message repeats a value."""
    user, password, key = (environment.get(name, "") for name in (USER, PASSWORD, API_KEY))
    if not (user or password or key):
        return {}
    if key and (user or password):
        raise SpecError(f"{API_KEY} and {USER} are both set; keep one of them")
    if key:
        if not key.isascii() or not key.isprintable() or " " in key:
            raise SpecError(f"{API_KEY}: not a key; it must be one word in base64, as the server issued it")
        return {"authorization": f"ApiKey {key}"}
    if not user or not password:
        raise SpecError(f"{USER} and {PASSWORD} require each other; {PASSWORD if user else USER} is not set")
    if ":" in user:
        raise SpecError(f"{USER}: HTTP basic authentication cannot carry a user name with a colon")
    user_and_password = b":".join((_encode_utf8(USER, user), _encode_utf8(PASSWORD, password)))
    return {"authorization": f"Basic {base64.b64encode(user_and_password).decode()}"}


def read_jmx_credentials(environment: Mapping[str, str]) -> tuple[bytes, ...]:
    """Return user and password for JMX in UTF-8; empty without credentials. No message repeats a value."""
    user, password = (environment.get(name, "") for name in (JMX_USER, JMX_PASSWORD))
    if not (user or password):
        return ()
    if not user or not password:
        raise SpecError(
            f"{JMX_USER} and {JMX_PASSWORD} require each other; {JMX_PASSWORD if user else JMX_USER} is not set"
        )
    return _encode_utf8(JMX_USER, user), _encode_utf8(JMX_PASSWORD, password)


def list_secrets(headers: Mapping[str, str]) -> tuple[bytes, ...]:
    """Return the texts of the authorization header that no result may repeat: its token, and what this encodes."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    decoded = base64.b64decode(token) if scheme == "Basic" else b""
    return tuple(filter(None, (token.encode(), decoded)))


def redact(body: bytes, secrets: tuple[bytes, ...]) -> bytes:
    """Return the body of a response without *secrets*: some servers quote the request."""
    for secret in secrets:
        body = body.replace(secret, b"***")
    return body


def _encode_utf8(name: str, value: str) -> bytes:
    """Return the bytes of a value; SpecError if it was not UTF-8: Python keeps it as lone surrogates (PEP 383)."""
    try:
        return value.encode()
    except UnicodeEncodeError:
        # Raised outside: the error here holds the value.
        problem = f"{name}: not UTF-8, which servers expect; set it in a terminal that writes UTF-8"
    raise SpecError(problem)


def read_client_certificate(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the files of the client certificate and its key; both empty if the environment does not name them."""
    cert, key = environment.get(CLIENT_CERT, ""), environment.get(CLIENT_KEY, "")
    if bool(cert) != bool(key):
        missing = CLIENT_KEY if cert else CLIENT_CERT
        raise SpecError(f"{CLIENT_CERT} and {CLIENT_KEY} require each other; {missing} is not set")
    return cert, key


def read_ca_certificates(path: Path, where: str = "--ca-file") -> str:
    """Return the certificates in a file of CA certificates; SpecError begins with *where* if it holds none."""
    try:
        # Without a private key that a server has in the same file: plans go to the workers on other machines.
        text = "\n".join(match[0] for match in _CERTIFICATE.finditer(files.read_text(path)))
        ssl.create_default_context(cadata=text)
    except OSError as error:
        # ssl.SSLError is an OSError.
        raise SpecError(f"{where} {path}: no certificates can be read from it ({error.strerror or error})") from None
    except ValueError:
        text = ""
    if not text:
        # Python would trust this machine's CAs instead.
        raise SpecError(f"{where} {path}: it holds no certificate; a PEM file is needed")
    return text


def load_client_certificate(context: ssl.SSLContext, cert: str, key: str) -> None:
    """Add a client certificate to a TLS context; SpecError if the files are unusable."""
    for path in (cert, key):
        try:
            with open(path, "rb"):  # noqa: PTH123 - checks only that it can be read
                pass
        except OSError as error:
            raise SpecError(f"client certificate: {path} cannot be read: {error.strerror}") from None
    try:
        context.load_cert_chain(cert, key, password=_refuse_passphrase)
    except ssl.SSLError as error:
        is_mismatch = error.reason == "KEY_VALUES_MISMATCH"
        reason = "they do not belong together" if is_mismatch else "both must be PEM files"
        raise SpecError(f"client certificate: {cert} with the key {key}: {reason} ({error.reason})") from None


def _refuse_passphrase() -> str:
    raise SpecError("client certificate: its key has a passphrase, which cannot be typed here; give a file without one")
