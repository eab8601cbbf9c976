"""Files of Maven Central and their dependencies, fetched with jgo, verified by their SHA-256, kept in the cache.

The environment variable INGEST_BENCH_MAVEN names a mirror to use instead.
"""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from ingest_bench.errors import RunFailed
from ingest_bench.inputs import files
from ingest_bench.jvm import cache

Progress = Callable[[str, int, int | None], None]
"""Called with the name of a download, the bytes received and the bytes in total (None: unknown)."""

_UNTRUSTED_CERTIFICATE = (
    "This machine does not trust the certificate of the server. Behind a proxy that reads TLS, name the file with the "
    "proxy's certificate: REQUESTS_CA_BUNDLE=FILE (Debian keeps all in /etc/ssl/certs/ca-certificates.crt), then try "
    "again"
)
# Of a group, artifact, version or classifier: neither a path nor a range of versions.
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.+-]*")
# Types of dependencies that are jars on the class path, with their classifier (Maven's default artifact handlers).
_JAR_CLASSIFIERS = {"jar": None, "bundle": None, "ejb": None, "test-jar": "tests"}
_PRE_RELEASE = re.compile(r"[.-](alpha|beta|milestone|m|rc|cr|ea|preview|snapshot)[.-]?[0-9]*$", re.IGNORECASE)
_TIMEOUT_S = 60


def no_progress(_name: str, _received_bytes: int, _total_bytes: int | None) -> None:
    """Show no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One file of a Maven repository."""

    group: str
    name: str
    version: str
    packaging: str
    sha256: str
    """Empty: not pinned (a user's coordinate); the repository's file is accepted as it is."""
    classifier: str | None = None
    leave_out: tuple[str, ...] = ()
    """Folders of an archive that are not unpacked; "modules/" leaves out all but those of `keep`."""
    keep: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.version} ({self.packaging})"

    @property
    def file_name(self) -> str:
        """Return the name of its file."""
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.name}-{self.version}{classifier}.{self.packaging}"

    @property
    def cache_name(self) -> str:
        """Return the name of its entry in the cache."""
        return f"artifacts/{self.group}/{self.file_name}"


def parse_jar(coordinate: str) -> Artifact:
    """Return the jar of a coordinate: "group:name:version[:classifier][@SHA-256]"."""
    coordinate, _, sha256 = coordinate.partition("@")
    group, name, version, *classifier = coordinate.split(":")
    return Artifact(
        group=group,
        name=name,
        version=version,
        packaging="jar",
        sha256=sha256,
        classifier=classifier[0] if classifier else None,
    )


def resolve_jars(coordinates: Sequence[str], progress: Progress = no_progress) -> tuple[Artifact, ...]:
    """Return the jars of these coordinates and all their dependencies, as Maven resolves them; RunFailed if it cannot.

    The result is cached, so that it is the same in later runs and needs no network there.
    """
    name = _resolution_name(coordinates)
    if coordinates:
        cache.get_or_make(name, lambda partial: _resolve_dependencies(coordinates, partial, progress))
    return list_jars(coordinates)


def list_jars(coordinates: Sequence[str]) -> tuple[Artifact, ...]:
    """Return the jars that `resolve_jars` returned before; without that, only those of the coordinates themselves."""
    jars = tuple(map(parse_jar, coordinates))
    if not jars or not cache.has(name := _resolution_name(coordinates)):
        return jars
    return (*jars, *map(parse_jar, files.read_text(cache.folder() / name).split()))


def list_versions(group: str, name: str) -> list[str]:
    """Return all versions that the repository lists (maven-metadata.xml); RunFailed if it cannot be read."""
    from jgo.maven import MetadataXML  # noqa: PLC0415 - as below
    from jgo.util import http  # noqa: PLC0415 - as below

    (repository, *_) = _open_repository(cache.folder()).remote_repos.values()
    url = f"{repository}/{group.replace('.', '/')}/{name}/maven-metadata.xml"
    try:
        response = http.get(url, timeout=_TIMEOUT_S)
        response.raise_for_status()
        versions: list[str] = MetadataXML(response.text).versions
    except (OSError, ElementTree.ParseError) as error:
        raise RunFailed(
            f"the versions of {group}:{name} are unknown: {type(error).__name__}: {error}. {_choose_remedy(error)}."
        ) from None
    return [version for version in versions if _NAME.fullmatch(version)]


def sort_versions(versions: Iterable[str]) -> list[str]:
    """Return the versions in Maven's order, in which 4.2.9 is before 4.2.10, and 4.2.0.RC1 before 4.2.0."""
    from jgo.maven import MavenVersion  # noqa: PLC0415 - as below

    return sorted(versions, key=MavenVersion)


def find_version(name: str, versions: Iterable[str]) -> str | None:
    """Return the version of that name, or the one that Maven takes for equal: "4.2.15.Final" for "4.2.15"."""
    from jgo.maven import MavenVersion  # noqa: PLC0415 - as below

    return next((version for version in versions if MavenVersion(version) == MavenVersion(name)), None)


def is_pre_release(version: str) -> bool:
    """Return True for the name of an alpha, beta, release candidate or similar."""
    return _PRE_RELEASE.search(version) is not None


def _resolution_name(coordinates: Sequence[str]) -> str:
    unpinned = "\n".join(coordinate.partition("@")[0] for coordinate in coordinates)
    return f"resolved/{hashlib.sha256(unpinned.encode()).hexdigest()[:32]}"


def fetch(artifact: Artifact, progress: Progress = no_progress) -> Path:
    """Return the verified file in the cache; RunFailed if it cannot be downloaded."""
    name = artifact.cache_name
    path = cache.folder() / name
    if cache.has(name) and artifact.sha256 and files.sha256(path) != artifact.sha256:
        cache.remove(path)
    return cache.get_or_make(name, lambda partial: _download(artifact, partial, progress))


def fetch_unpacked(artifact: Artifact, progress: Progress = no_progress) -> Path:
    """Return the top folder of the archive, unpacked once in the cache and never written."""
    filter_id = hashlib.sha256(repr((artifact.leave_out, artifact.keep)).encode()).hexdigest()[:6]
    name = f"unpacked/{artifact.name}-{artifact.version}-{artifact.sha256[:10]}-{filter_id}"
    if not cache.has(name):
        archive = fetch(artifact, progress)
        cache.get_or_make(name, lambda partial: _unpack(artifact, archive, partial))
    unpacked = cache.folder() / name
    folders = [path for path in unpacked.iterdir() if path.is_dir()]
    return folders[0] if len(folders) == 1 else unpacked


def unpack_zip(archive: Path, into: Path, is_wanted: Callable[[str], bool]) -> None:
    """Unpack the files of an archive that are wanted by name, with their mode bits."""
    with zipfile.ZipFile(archive) as zip_file:
        for entry in zip_file.infolist():
            if is_wanted(entry.filename):
                path = Path(zip_file.extract(entry, into))
                mode = entry.external_attr >> 16 & 0o777
                if mode and not entry.is_dir():
                    path.chmod(mode | 0o600)


def _unpack(artifact: Artifact, archive: Path, into: Path) -> None:
    def is_wanted(name: str) -> bool:
        _, _, below_top = name.partition("/")
        is_left_out = any(below_top.startswith(prefix) and below_top != prefix for prefix in artifact.leave_out)
        return not is_left_out or below_top.startswith(artifact.keep)

    try:
        unpack_zip(archive, into, is_wanted)
    except zipfile.BadZipFile as error:
        raise RunFailed(f"{artifact}: {archive} is not an archive ({error}). Delete it and fetch it again.") from None


def _download(artifact: Artifact, partial: Path, progress: Progress) -> None:
    received_bytes = 0

    # jgo expects a context manager whose value is called with the number of more bytes.
    @contextmanager
    def show(_: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
        def add(count: int) -> None:
            nonlocal received_bytes
            received_bytes += count
            progress(artifact.file_name, received_bytes, total_bytes)

        yield add

    file = _resolve(artifact, partial.parent / "repository", show)
    sha256 = files.sha256(file)
    if artifact.sha256 not in ("", sha256):
        raise RunFailed(
            f"{artifact}: the downloaded file ({file.stat().st_size} bytes) has SHA-256 {sha256}, but "
            f"{artifact.sha256} is pinned. It was deleted; try again, or ask the operator of the mirror."
        )
    file.rename(partial)


def _resolve(artifact: Artifact, folder: Path, progress: Callable[..., Any]) -> Path:
    try:
        return Path(_jgo_artifact(_open_repository(folder, progress), artifact).resolve())
    except (OSError, RuntimeError) as error:
        raise _explain_failure(f"{artifact}: it is", error) from None


def _resolve_dependencies(coordinates: Sequence[str], partial: Path, progress: Progress) -> None:
    """Write the coordinates of all dependencies of the jars, without the jars themselves."""
    from jgo.maven import Dependency  # noqa: PLC0415 - as below

    context = _open_repository(partial.parent / "repository")
    download, failures = context.resolver.download, list[Exception]()

    # jgo leaves out the dependencies of a file that it cannot download, and says so only in its log.
    def download_or_note(artifact: Any) -> Any:
        try:
            _check_names(artifact)
            progress(f"POM of {artifact.artifactId}", 0, None)
            return download(artifact)
        except (OSError, RuntimeError, ValueError) as error:
            failures.append(error)
            raise

    context.resolver.download = download_or_note
    # raw: as Maven, without taking the versions that these jars manage for their own build as those of all.
    jars = [Dependency(_jgo_artifact(context, parse_jar(coordinate)), raw=True) for coordinate in coordinates]
    try:
        _, dependencies = context.resolver.resolve(jars)
        for dependency in dependencies:
            _check_names(dependency)
    except (OSError, RuntimeError, ValueError) as error:
        failures.append(error)
    if failures:
        names = ", ".join(coordinate.partition("@")[0] for coordinate in coordinates)
        raise _explain_failure(f"the dependencies of {names} are", failures[0])
    lines = (
        ":".join(filter(None, (jar.groupId, jar.artifactId, jar.version, jar.classifier or _JAR_CLASSIFIERS[jar.type])))
        for jar in dependencies
        if jar.type in _JAR_CLASSIFIERS
    )
    partial.write_text("\n".join(lines), encoding="utf-8")


def _check_names(artifact: Any) -> None:
    """Raise ValueError for an artifact whose names are not those of a file: jgo makes paths of them as they are."""
    names = [*map(str, (artifact.groupId, artifact.artifactId, artifact.version, artifact.classifier or "none"))]
    if not all(map(_NAME.fullmatch, names)):
        text = ":".join(names[:3])[:200]
        raise ValueError(f"the dependency {text!r} is not a name and one version. Add it to maven with a version")


def _open_repository(folder: Path, progress: Callable[..., Any] | None = None) -> Any:
    """Return jgo's access to the repository, with its files in a folder."""
    from jgo.maven import MavenContext, PythonResolver  # noqa: PLC0415 - it takes 0.3 s, and fetching is rare

    mirror = os.environ.get("INGEST_BENCH_MAVEN")
    return MavenContext(
        repo_cache=folder,
        local_repos=[],
        remote_repos={"mirror": mirror} if mirror else None,
        timeout=_TIMEOUT_S,
        resolver=PythonResolver(progress_callback=progress),
    )


def _jgo_artifact(context: Any, artifact: Artifact) -> Any:
    component = context.project(artifact.group, artifact.name).at_version(artifact.version)
    return component.artifact(artifact.classifier or "", artifact.packaging)


def _explain_failure(subject: str, error: Exception) -> RunFailed:
    reason = (str(error).splitlines() or [""])[0]
    return RunFailed(
        f"{subject} not in the cache ({cache.folder()}) and the download failed: {type(error).__name__}: {reason}\n"
        f"{_choose_remedy(error)}; `ingest-bench fetch` fills the cache for runs without network."
    )


def _choose_remedy(error: Exception) -> str:
    is_untrusted = "CERTIFICATE_VERIFY_FAILED" in str(error)
    return _UNTRUSTED_CERTIFICATE if is_untrusted else "Check the version and the network, then try again"
