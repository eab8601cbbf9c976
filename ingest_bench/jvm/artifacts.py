"""Pinned files of Maven Central, fetched with jgo, verified by their SHA-256, kept in the cache.

The environment variable INGEST_BENCH_MAVEN names a mirror to use in its place.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench.errors import RunFailed
from ingest_bench.jvm import cache

if TYPE_CHECKING:
    from collections.abc import Iterator

Progress = Callable[[str, int, int | None], None]
"""Called with what is being fetched, the bytes that are here and the bytes in all (None: not known)."""


def no_progress(what: str, done_bytes: int, total_bytes: int | None) -> None:
    """Nothing is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One file of a Maven repository, and what it must be."""

    group: str
    name: str
    version: str
    packaging: str
    sha256: str
    """Empty: of a user's own choice, and nobody said what it must be. It is what the repository gave."""
    classifier: str | None = None
    leave_out: tuple[str, ...] = ()
    """Folders of an archive that are not unpacked; "modules/" leaves all out but those of `keep`."""
    keep: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.version} ({self.packaging})"

    @property
    def file_name(self) -> str:
        """Its name in the cache."""
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.name}-{self.version}{classifier}.{self.packaging}"


def jar(coordinate: str) -> Artifact:
    """The jar of a coordinate: "group:name:version", then ":classifier" and "@" with its SHA-256 where it has them.

    Where it has no SHA-256 nothing but the repository's own word vouches for it.
    """
    named, _, sha256 = coordinate.partition("@")
    group, name, version, *classifier = named.split(":")
    return Artifact(
        group=group,
        name=name,
        version=version,
        packaging="jar",
        sha256=sha256,
        classifier=classifier[0] if classifier else None,
    )


def jars(pinned: Mapping[str, str]) -> tuple[Artifact, ...]:
    """The jars of these coordinates, each with its SHA-256."""
    return tuple(jar(f"{coordinate}@{sha256}") for coordinate, sha256 in pinned.items())


def fetch(artifact: Artifact, progress: Progress = no_progress) -> Path:
    """The verified file in the cache; RunFailed that names the artifact when it cannot be had."""
    name = f"artifacts/{artifact.group}/{artifact.file_name}"
    here = cache.folder() / name
    if cache.has(name) and artifact.sha256 and _sha256(here) != artifact.sha256:
        cache.remove(here)
    return cache.filled(name, lambda partial: _download(artifact, partial, progress))


def unpacked(artifact: Artifact, progress: Progress = no_progress) -> Path:
    """The archive's one top folder, unpacked once in the cache. Nobody writes there."""
    kept = hashlib.sha256(repr((artifact.leave_out, artifact.keep)).encode()).hexdigest()[:6]
    name = f"unpacked/{artifact.name}-{artifact.version}-{artifact.sha256[:10]}-{kept}"
    place = cache.folder() / name
    if not cache.has(name):
        archive = fetch(artifact, progress)
        cache.filled(name, lambda partial: _unpack(artifact, archive, partial))
    return _only_folder(place)


def name_and_checksum(artifact: Artifact) -> str:
    """The file of the cache and its SHA-256, for a record of what was started."""
    return f"{artifact.file_name} {artifact.sha256 or _sha256(fetch(artifact))}"


def is_here(artifact: Artifact) -> bool:
    """Whether the cache has the artifact's file."""
    return cache.has(f"artifacts/{artifact.group}/{artifact.file_name}")


def unpack_zip(archive: Path, into: Path, wanted: Callable[[str], bool]) -> None:
    """The archive's wanted files in a folder, with the mode bits that the archive gives them."""
    with zipfile.ZipFile(archive) as opened:
        for entry in opened.infolist():
            if wanted(entry.filename):
                path = Path(opened.extract(entry, into))
                mode = entry.external_attr >> 16 & 0o777
                if mode and not entry.is_dir():
                    path.chmod(mode | 0o600)


def wanted(artifact: Artifact, name: str) -> bool:
    """Whether a file of the archive, named below its top folder, is unpacked."""
    _, _, below = name.partition("/")
    left_out = any(below.startswith(prefix) and below != prefix for prefix in artifact.leave_out)
    return not left_out or any(below.startswith(prefix) for prefix in artifact.keep)


def _unpack(artifact: Artifact, archive: Path, into: Path) -> None:
    try:
        unpack_zip(archive, into, lambda name: wanted(artifact, name))
    except zipfile.BadZipFile as error:
        raise RunFailed(f"{artifact}: {archive} is no archive ({error}). Delete it and fetch it again.") from None


def _only_folder(place: Path) -> Path:
    inside = [path for path in place.iterdir() if path.is_dir()]
    return inside[0] if len(inside) == 1 else place


def _download(artifact: Artifact, partial: Path, progress: Progress) -> None:
    found = _resolve(artifact, partial.parent / "repository", progress)
    sha256 = _sha256(found)
    if artifact.sha256 not in ("", sha256):
        raise RunFailed(
            f"{artifact}: the file that came has SHA-256 {sha256}, but {artifact.sha256} is pinned "
            f"({found.stat().st_size} bytes came). It was thrown away; try again, or ask whoever runs the mirror."
        )
    found.rename(partial)


_UNTRUSTED = (
    "This machine does not trust the certificate that it was shown. Where a proxy reads what is sent, name the file "
    "with the proxy's: REQUESTS_CA_BUNDLE=FILE (Debian keeps all in /etc/ssl/certs/ca-certificates.crt), then try again"
)


def _resolve(artifact: Artifact, folder: Path, progress: Progress) -> Path:
    from jgo.maven import MavenContext, PythonResolver  # noqa: PLC0415 - it takes 0.3 s, and fetching is rare

    mirror = os.environ.get("INGEST_BENCH_MAVEN")
    context = MavenContext(
        repo_cache=folder,
        local_repos=[],
        remote_repos={"mirror": mirror} if mirror else None,
        timeout=60,
        resolver=PythonResolver(progress_callback=_jgo_progress(artifact, progress)),
    )
    component = context.project(artifact.group, artifact.name).at_version(artifact.version)
    try:
        resolved = component.artifact(artifact.classifier or "", artifact.packaging).resolve()
    except (OSError, RuntimeError) as error:
        said = (str(error).splitlines() or [""])[0]
        remedy = _UNTRUSTED if "CERTIFICATE_VERIFY_FAILED" in said else "Check the network, then try again"
        raise RunFailed(
            f"{artifact}: it is not in the cache ({cache.folder()}) and could not be fetched: "
            f"{type(error).__name__}: {said}\n"
            f"{remedy}; `ingest-bench fetch` fills the cache for runs without network."
        ) from None
    return Path(resolved)


def _jgo_progress(
    artifact: Artifact, progress: Progress
) -> Callable[[str, int], AbstractContextManager[Callable[[int], None]]]:
    @contextmanager
    def show(_: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
        done_bytes = 0

        def more(count: int) -> None:
            nonlocal done_bytes
            done_bytes += count
            progress(artifact.file_name, done_bytes, total_bytes)

        yield more

    return show


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
