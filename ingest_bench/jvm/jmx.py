"""Record a JVM of another machine over JMX (`JmxRecorder.java`), without installing anything there."""

from __future__ import annotations

import base64
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.inputs import credentials, escaping
from ingest_bench.jvm import java
from ingest_bench.jvm.attach import JvmFacts, parse_facts
from ingest_bench.model.target import Endpoint

_SOURCE = Path(__file__).with_name("JmxRecorder.java")
_CLIENT_JAVA = 17
# A hostile server chooses the objects that RMI makes of its replies: only classes of JMX and of its values.
_SERIAL_FILTER = "java.base/*;java.management/*;java.management.rmi/*;java.rmi/*;!*"
# For each line of the child, such as one for each block of a recording. RMI alone waits forever.
_REPLY_LIMIT_S = 60
_HANDSHAKES = 5
_CONNECT_LIMIT_S = 30
# To delete the recording.
_EXIT_LIMIT_S = 10
# The recording's own end, after that of the run.
_EXTRA_DURATION_S = 60
# By the keys of JmxRecorder.java, which may add details.
_FAILURES = {
    "unknown-host": "unknown host. Check its spelling.",
    "unreachable": "cannot connect ({details}). Start the JVM with -Dcom.sun.management.jmxremote.port and "
    "jmxremote.rmi.port, and open these ports to this machine.",
    "silent": f"JMX does not respond within {_CONNECT_LIMIT_S} s. Give the port of jmxremote.port, and open that of "
    "jmxremote.rmi.port to this machine.",
    "no-jmx": "this is not the port of JMX. Give that of jmxremote.port.",
    "elsewhere": "its JMX is at another address, {details}. Start the JVM with -Djava.rmi.server.hostname={host}.",
    "unauthenticated": "authentication failed. Set INGEST_BENCH_JMX_USER and INGEST_BENCH_JMX_PASSWORD to those of a "
    "role with readwrite access.",
    "denied": "this role may not record: {details}. Give one with readwrite access.",
    "no-recorder": "this JVM has no FlightRecorderMXBean: its Java lacks the module jdk.management.jfr. Run the server "
    "on a complete JDK.",
    "repository": "the JVM cannot write a recording ({details}). Give it a -Djava.io.tmpdir with free space.",
    "unwritten": "the recording cannot be written on this machine ({details}). Free some space.",
    "tls": "TLS failed: {details}. Give the CA of its certificate (--ca-file), which must have the name of the host.",
    "lost": "the connection to the JVM broke: {details}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JmxJvm:
    """A JVM that is connected over JMX."""

    endpoint: Endpoint
    """Its RMI registry."""
    name: str
    """Its pid and its machine: "4711@node-1"."""
    version: str
    """The version of its JDK, such as "17.0.15"."""
    facts: JvmFacts
    is_encrypted: bool
    round_trip_ns: int
    """Of the network, without the JVM."""
    child: system.Child

    @contextmanager
    def record(self, settings: Path, file: Path, limit_s: int) -> Iterator[None]:
        """Record during the block with these settings (.jfc), and write the recording to *file*.

        RunFailed if the JVM cannot record, or was restarted meanwhile. Nothing remains there when this process dies.
        """
        name = f"ingest-bench-{secrets.token_hex(8)}"
        self._request(f"record {name} {limit_s + _EXTRA_DURATION_S} {settings}")
        yield
        self._request(f"stop {file}")

    def _request(self, line: str) -> None:
        self.child.write_line(line)
        while _read_reply(self.child, self.endpoint).startswith("received "):
            """A block of the recording has arrived."""


@contextmanager
def connect(endpoint: Endpoint, ca_file: str | None) -> Iterator[JmxJvm]:
    """Connect to the JVM whose JMX listens at *endpoint*, with the credentials of the environment if it has any.

    *ca_file*: CA certificates that verify it with TLS (PEM); None: those that this machine trusts. RunFailed if it
    cannot be reached, refuses us, or cannot record.
    """
    client = next((installed for installed in java.find_installed() if installed.version >= _CLIENT_JAVA), None)
    client = client or java.fetch_wheel(_CLIENT_JAVA)
    classes = java.compile_classes(client, (_SOURCE,))
    options = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djdk.serialFilter={_SERIAL_FILTER}")
    program = (str(client.java), *options, "-cp", str(classes), _SOURCE.stem)
    argv = (*program, endpoint.host, str(endpoint.port), ca_file or "")
    # It outlives us to delete the recording.
    with system.Child(argv, name=f"--watch-jmx {endpoint}", grace_s=_EXIT_LIMIT_S) as child:
        secrets_base64 = (base64.b64encode(text) for text in credentials.read_jmx_credentials(os.environ))
        child.write_line(b" ".join(secrets_base64).decode())
        start_s = time.monotonic()
        try:
            _, transport, *texts = _read_reply(child, endpoint, _CONNECT_LIMIT_S).split(" ")
        except RunFailed:
            if time.monotonic() - start_s < _CONNECT_LIMIT_S:
                raise
            raise _describe_failure(endpoint, "silent", "") from None
        name, version, flags, recorder = (base64.b64decode(text).decode(errors="replace") for text in texts)
        release = re.search(r"^JDK ([0-9][0-9A-Za-z.+-]*)", version, re.MULTILINE)
        if release is None:
            raise RunFailed(f"{child.name}: it does not report a version of the JDK")
        yield JmxJvm(
            endpoint=endpoint,
            name=name,
            version=release[1],
            facts=parse_facts(flags, recorder),
            round_trip_ns=min(_time_handshake_ns(endpoint) for _ in range(_HANDSHAKES)),
            is_encrypted=transport == "tls",
            child=child,
        )


def _time_handshake_ns(endpoint: Endpoint) -> int:
    """Return how long the kernel of the other machine takes to accept a connection."""
    start_ns = time.monotonic_ns()
    try:
        socket.create_connection((endpoint.host, endpoint.port), _REPLY_LIMIT_S).close()
    except OSError as error:
        raise _describe_failure(endpoint, "unreachable", error.strerror or str(error)) from None
    return time.monotonic_ns() - start_ns


def _read_reply(child: system.Child, endpoint: Endpoint, limit_s: float = _REPLY_LIMIT_S) -> str:
    """Return the child's next line; RunFailed for an error."""
    reply = child.read_line(limit_s)
    if reply.startswith("failed "):
        _, key, details = f"{reply} ".split(" ", 2)
        raise _describe_failure(endpoint, key, details.strip())
    return reply


def _describe_failure(endpoint: Endpoint, key: str, details: str) -> RunFailed:
    text = _FAILURES[key].format(details=escaping.escape_line(details), host=endpoint.host)
    return RunFailed(f"--watch-jmx {endpoint}: {text}")
