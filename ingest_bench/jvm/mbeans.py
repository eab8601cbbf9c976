"""Operations of the MBeans of a JVM on this machine, called from inside it: no port is opened (`MBeanAgent.java`)."""

from __future__ import annotations

import base64
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench import jvm
from ingest_bench.errors import RunFailed
from ingest_bench.jvm import cache
from ingest_bench.jvm.compile import classes
from ingest_bench.jvm.java import Java

if TYPE_CHECKING:
    from ingest_bench.jvm.attach import Attached

_SOURCE = Path(jvm.__file__).with_name("MBeanAgent.java")
_MANIFEST = f"Manifest-Version: 1.0\r\nAgent-Class: {_SOURCE.stem}\r\n\r\n"
# What jcmd says when `agentmain` has returned (JvmtiExport::load_agent_library of the JDK).
_DONE = "return code: 0"
_LIMIT_S = 300.0
STRINGS = "[Ljava.lang.String;"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One operation of an MBean. Its arguments are texts, or one String[] at the end."""

    name: str
    """Of the MBean: "domain:type=Kind"."""
    operation: str
    signature: tuple[str, ...] = ()
    """The class of each parameter."""
    arguments: tuple[str, ...] = ()

    def text(self) -> str:
        """As the agent reads it."""
        return "\n".join((self.name, self.operation, " ".join(self.signature), *self.arguments))


def agent(java: Java) -> Path:
    """The agent's jar in the cache, made when it is not there."""
    compiled = classes(java, (_SOURCE,))

    def pack(partial: Path) -> None:
        with zipfile.ZipFile(partial, "w") as archive:
            archive.writestr("META-INF/MANIFEST.MF", _MANIFEST)
            for path in sorted(compiled.glob("*.class")):
                archive.write(path, path.name)

    return cache.filled(f"agents/{compiled.name}.jar", pack)


def call(attached: Attached, calls: Sequence[Call]) -> None:
    """All these operations, begun at once and ended; RunFailed when the JVM does not obey or one of them fails."""
    argument = ",".join(base64.urlsafe_b64encode(one.text().encode()).decode().rstrip("=") for one in calls)
    jar = agent(Java(home=attached.jcmd.parent.parent, version=attached.java_version, source=""))
    said = attached.ask("JVMTI.agent_load", str(jar), argument, timeout_s=_LIMIT_S)
    if _DONE not in said:
        what = ", ".join(dict.fromkeys(f"{one.operation} of {one.name}" for one in calls))
        raise RunFailed(f"attach: pid {attached.pid}: {what} failed; the JVM said: {' '.join(said.split())[-300:]}")
