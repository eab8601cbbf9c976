"""Our Java sources as classes: compiled at first use, kept in the cache by what went into them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.jvm import artifacts, cache
from ingest_bench.jvm.artifacts import Artifact

if TYPE_CHECKING:
    from pathlib import Path

    from ingest_bench.jvm.java import Java

# The Eclipse compiler runs on a Java runtime without javac. 3.33.0 is the last that runs on Java 11.
ECJ = Artifact(
    group="org.eclipse.jdt",
    name="ecj",
    version="3.33.0",
    packaging="jar",
    sha256="f7686c4960cf70c2ebc5c500a73a8cfc04541b730c18f1c5c21329889b137f45",
)
_OPTIONS = ("-proc:none", "-warn:none", "-encoding", "UTF-8")
# ECJ 3.33's newest.
_LATEST_LANGUAGE = 19


def classes(java: Java, sources: tuple[Path, ...], classpath: tuple[Path, ...] = (), language: int = 11) -> Path:
    """The folder of compiled classes, for Java 11 (or `language`) and later, whichever Java compiled them."""
    # Not --release: a runtime without ct.sym refuses it.
    options = (f"-{min(language, _LATEST_LANGUAGE)}", *_OPTIONS)
    known = hashlib.sha256(ECJ.sha256.encode() + repr(options).encode())
    for source in sources:
        known.update(source.name.encode() + source.read_bytes())
    for jar in classpath:
        known.update(jar.name.encode())
    name = f"classes/{sources[0].stem}-{known.hexdigest()[:16]}"
    return cache.filled(name, lambda partial: _compile(java, sources, classpath, options, partial))


def _compile(
    java: Java, sources: tuple[Path, ...], classpath: tuple[Path, ...], options: tuple[str, ...], into: Path
) -> None:
    path = ("-cp", ":".join(map(str, classpath))) if classpath else ()
    program = (str(java.java), "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-jar", str(artifacts.fetch(ECJ)))
    argv = (*program, *options, *path, "-d", str(into), *map(str, sources))
    try:
        system.run(argv, timeout_s=180)
    except RunFailed as error:
        raise RunFailed(f"compile: {', '.join(source.name for source in sources)} with {java.home}: {error}") from None
