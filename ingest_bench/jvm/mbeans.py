"""Invoke operations of MBeans from inside a JVM on this machine, without opening a port (`MBeanAgent.java`)."""

from __future__ import annotations

import base64
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench.errors import RunFailed
from ingest_bench.jvm import cache
from ingest_bench.jvm.java import Java, compile_classes

if TYPE_CHECKING:
    from ingest_bench.jvm.attach import AttachedJvm

_SOURCE = Path(__file__).with_name("MBeanAgent.java")
_MANIFEST = f"Manifest-Version: 1.0\r\nAgent-Class: {_SOURCE.stem}\r\n\r\n"
# The output of jcmd when `agentmain` has returned (JvmtiExport::load_agent_library of the JDK).
_SUCCESS = "return code: 0"
_LIMIT_S = 300.0
STRING_ARRAY = "[Ljava.lang.String;"


@dataclass(frozen=True, slots=True, kw_only=True)
class MBeanCall:
    """One operation of an MBean. Its arguments are texts, or one String[] at the end."""

    name: str
    """The MBean: "domain:type=Kind"."""
    operation: str
    signature: tuple[str, ...] = ()
    """The class of each parameter."""
    arguments: tuple[str, ...] = ()

    def encode(self) -> str:
        """Return the call as the agent reads it: base64 of its lines, without padding."""
        text = "\n".join((self.name, self.operation, " ".join(self.signature), *self.arguments))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def build_agent(java: Java) -> Path:
    """Return the agent's jar in the cache, built if it is missing."""
    classes = compile_classes(java, (_SOURCE,))

    def pack(partial: Path) -> None:
        with zipfile.ZipFile(partial, "w") as archive:
            archive.writestr("META-INF/MANIFEST.MF", _MANIFEST)
            for path in sorted(classes.glob("*.class")):
                archive.write(path, path.name)

    return cache.get_or_make(f"agents/{classes.name}.jar", pack)


def invoke(jvm: AttachedJvm, calls: Sequence[MBeanCall]) -> None:
    """Invoke all operations at once and wait for their ends; RunFailed if the agent or one of them fails."""
    jar = build_agent(Java(home=jvm.jcmd.parent.parent, version=jvm.java_version, source=""))
    argument = ",".join(call.encode() for call in calls)
    response = jvm.run_jcmd("JVMTI.agent_load", str(jar), argument, timeout_s=_LIMIT_S)
    if _SUCCESS not in response:
        names = ", ".join(dict.fromkeys(f"{call.operation} of {call.name}" for call in calls))
        raise RunFailed(f"attach: pid {jvm.pid}: {names} failed; the JVM said: {' '.join(response.split())[-300:]}")
