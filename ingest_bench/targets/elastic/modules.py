"""Modules of a server that its archive leaves out: each a jar, put beside the archive's own modules.

The archives for integration tests hold nothing but the network module. The field types `scaled_float` and
`percolator` of the workloads are in modules that the projects publish as jars for Java clients.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from ingest_bench.jvm import artifacts, cache
from ingest_bench.jvm.artifacts import Artifact


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module: its jar and the class of its plugin."""

    name: str
    jar: Artifact
    plugin: str


def for_clients(server: str, name: str, version: str, *, plugin: str, sha256: str) -> Module:
    """A module from the jar that a project publishes for Java clients. `server` is "opensearch" or "elasticsearch"."""
    group = f"org.{server}.plugin"
    jar = Artifact(group=group, name=f"{name}-client", version=version, packaging="jar", sha256=sha256)
    return Module(name=name, jar=jar, plugin=plugin)


def added(dist: Path, modules: tuple[Module, ...], progress: artifacts.Progress = artifacts.no_progress) -> Path:
    """A distribution with these modules in it: its files, hard-linked, and the modules. Made once in the cache."""
    if not modules:
        return dist
    jars = {module: artifacts.fetch(module.jar, progress) for module in modules}
    known = hashlib.sha256("".join(module.jar.sha256 + module.plugin for module in modules).encode()).hexdigest()
    return cache.filled(
        f"with-modules/{dist.parent.name}-{known[:8]}/{dist.name}", lambda into: _fill(dist, jars, into)
    )


def _fill(dist: Path, jars: dict[Module, Path], into: Path) -> None:
    shutil.copytree(dist, into, copy_function=os.link, symlinks=True)
    (template,) = (into / "modules").glob("transport-netty4/plugin-descriptor.properties")
    told = dict(line.split("=", 1) for line in template.read_text().splitlines() if "=" in line and line[0] != "#")
    for module, jar in jars.items():
        folder = into / "modules" / module.name
        folder.mkdir()
        shutil.copy(jar, folder)
        own = told | {"name": module.name, "description": module.name, "classname": module.plugin}
        lines = [f"{key}={value}" for key, value in own.items()]
        (folder / "plugin-descriptor.properties").write_text("\n".join(lines) + "\n")
