"""Invoke operations of MBeans from inside a JVM on this machine, without opening a port (`MBeanAgent.java`)."""

from __future__ import annotations

import base64
import zipfile
from collections.abc import Iterable
from pathlib import Path

from ingest_bench.errors import RunFailed
from ingest_bench.jvm import cache
from ingest_bench.jvm.attach import AttachedJvm
from ingest_bench.jvm.java import Java, compile_classes

_SOURCE = Path(__file__).with_name("MBeanAgent.java")
_MANIFEST = f"Manifest-Version: 1.0\r\nAgent-Class: {_SOURCE.stem}\r\n\r\n"
# The output of jcmd when `agentmain` has returned (JvmtiExport::load_agent_library of the JDK).
_SUCCESS = "return code: 0"
_LIMIT_S = 300.0
_SIGNATURE = "java.lang.String [Ljava.lang.String;"


def build_agent(java: Java) -> Path:
    """Return the agent's jar in the cache, built if it is missing."""
    classes = compile_classes(java, (_SOURCE,))

    def pack(partial: Path) -> None:
        with zipfile.ZipFile(partial, "w") as archive:
            archive.writestr("META-INF/MANIFEST.MF", _MANIFEST)
            for path in sorted(classes.glob("*.class")):
                archive.write(path, path.name)

    return cache.get_or_make(f"agents/{classes.name}.jar", pack)


def invoke(jvm: AttachedJvm, mbean: str, operation: str, calls: Iterable[tuple[str, ...]]) -> None:
    """Call an operation of an MBean for several arguments at once, and wait for their ends; RunFailed if one fails.

    Arguments are a text, and texts that become a String[].
    """
    jar = build_agent(Java(home=jvm.jcmd.parent.parent, version=jvm.java_version, source=""))
    texts = ("\n".join((mbean, operation, _SIGNATURE, *arguments)) for arguments in calls)
    # As the agent reads them: base64 without padding.
    argument = ",".join(base64.urlsafe_b64encode(text.encode()).decode().rstrip("=") for text in texts)
    response = jvm.run_jcmd("JVMTI.agent_load", str(jar), argument, timeout_s=_LIMIT_S)
    if _SUCCESS not in response:
        reply = " ".join(response.split())[-300:]
        raise RunFailed(f"attach: pid {jvm.pid}: {operation} of {mbean} failed; the JVM said: {reply}")
