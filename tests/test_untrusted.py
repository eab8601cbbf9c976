"""Folders that another user can write: which files are refused, moved and given away."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import ordinary_user
import pytest
from example_tracks import write_track

from ingest_bench import system
from ingest_bench.documents.tracks import reader
from ingest_bench.errors import SpecError
from ingest_bench.inputs import untrusted
from ingest_bench.results import layout
from ingest_bench.results.layout import RunFolder

needs_root = pytest.mark.skipif(not system.is_root(), reason="only root has files of several users")
OTHER_UID = 65534
# Swaps a file and a folder with links to them, until it is killed.
SWAPS = """
import os, sys
folder, victim = sys.argv[1:]
os.chdir(folder)
os.umask(0)
while True:
    try:
        os.mkdir("jfr", 0o777)
        open("jfr/gc.log", "w").write("of the server")
        open("new", "w").write("of the server")
        os.rename("new", "gc.log")
        print(flush=True)
        os.rename("jfr", "aside")
        os.symlink(victim, "jfr")
        os.symlink(victim + "/gc.log", "new")
        os.rename("new", "gc.log")
        os.unlink("aside/gc.log")
        os.rmdir("aside")
        os.unlink("jfr")
    except PermissionError:
        sys.exit()
"""


PLANTS: dict[str, Callable[[Path, Path], None]] = {
    "pipe": lambda path, _: os.mkfifo(path),
    "link": lambda path, secret: path.symlink_to(secret),
    "second-name": lambda path, secret: path.hardlink_to(secret),
    "socket": lambda path, _: os.mknod(path, stat.S_IFSOCK | 0o600),
}
each_kind = pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text("of root")
    file.chmod(0o600)
    return file


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    folder = tmp_path / "theirs"
    folder.mkdir()
    return folder


@each_kind
def test_only_regular_files_are_opened(theirs: Path, secret: Path, plant: Callable[[Path, Path], None]) -> None:
    plant(theirs / "gc.log", secret)
    with pytest.raises(OSError, match=r"not a plain file|symbolic link|No such device"):
        untrusted.open_file(theirs / "gc.log")


def test_sparse_file_is_neither_opened_nor_moved(theirs: Path, tmp_path: Path) -> None:
    ours, log = tmp_path / "ours", theirs / "exceptions.log"
    ours.mkdir()
    log.write_text("of the server")
    # Reading it would take a day.
    os.truncate(log, 10 << 40)
    with pytest.raises(OSError, match="not a plain file"):
        untrusted.open_file(log)
    assert untrusted.move_files(theirs, ours) == [log]
    assert list(ours.iterdir()) == []


def test_sparse_log_of_an_earlier_server_is_not_read(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    earlier = RunFolder(run.path / "earlier")
    earlier.create()
    (earlier.raw / "gc.log").write_text("of the server")
    earlier.log.touch()
    # Reading it would take a day.
    os.truncate(earlier.log, 10 << 40)
    assert list(run.digest_files()) == ["earlier/raw/gc.log"]


def test_file_in_a_linked_folder_is_not_opened(theirs: Path, secret: Path) -> None:
    (theirs / "elsewhere").symlink_to(secret.parent)
    with pytest.raises(NotADirectoryError):
        untrusted.open_file(theirs / "elsewhere" / "secret")


@each_kind
def test_only_regular_files_are_moved(theirs: Path, secret: Path, plant: Callable[[Path, Path], None]) -> None:
    before = secret.stat()
    ours = secret.with_name("ours")
    ours.mkdir()
    (ours / "host.jsonl").write_text("measured")
    chunk = theirs / "jfr" / "start" / "chunk.jfr"
    chunk.parent.mkdir(parents=True)
    for file in (chunk, theirs / "gc.log", theirs / "host.jsonl", chunk.parent / "deeper"):
        file.write_text("of the server")
        file.chmod(0o6777)
    (chunk.parent / "deeper").unlink()
    (chunk.parent / "deeper").mkdir()
    (chunk.parent / "deeper" / "file").write_text("of the server")
    (theirs / "empty").touch()
    (theirs / os.fsdecode(b"\xff\n")).write_text("of the server")
    plant(theirs / "exceptions.log", secret)
    left = untrusted.move_files(theirs, ours, depth=3)
    assert {str(path.relative_to(theirs)) for path in left} == {
        *("exceptions.log", "host.jsonl", "jfr/start/deeper/file", os.fsdecode(b"\xff\n"))
    }
    moved = {path for path in ours.rglob("*") if path.is_file()}
    assert {str(path.relative_to(ours)) for path in moved} == {"gc.log", "host.jsonl", "jfr/start/chunk.jfr"}
    assert (ours / "host.jsonl").read_text() == "measured"
    assert not any(path.stat().st_mode & 0o7022 for path in moved)
    after = secret.stat()
    assert (secret.read_text(), after.st_mode, after.st_uid) == ("of root", before.st_mode, before.st_uid)


@each_kind
def test_only_regular_files_of_their_owner_are_copied(
    theirs: Path, secret: Path, plant: Callable[[Path, Path], None]
) -> None:
    ours = secret.with_name("ours")
    ours.mkdir()
    (ours / "host.jsonl").write_text("measured")
    for name in ("gc.log", "host.jsonl", os.fsdecode(b"\xff\n")):
        (theirs / name).write_text("of the server")
    (theirs / "empty").touch()
    (theirs / "folder").mkdir()
    plant(theirs / "exceptions.log", secret)
    folder = os.open(theirs, os.O_RDONLY)
    try:
        owner = os.geteuid()
        refused = untrusted.copy_files(folder, ours, owner)
        refused_of_another = untrusted.copy_files(folder, ours, owner + 1)
    finally:
        os.close(folder)
    assert refused == ["exceptions.log", "folder", "host.jsonl", os.fsdecode(b"\xff\n")]
    assert refused_of_another == sorted(path.name for path in theirs.iterdir())
    assert {path.name: path.read_text() for path in ours.iterdir()} == {
        "gc.log": "of the server",
        "host.jsonl": "measured",
    }


@needs_root
@pytest.mark.processes
def test_link_races_cannot_read_or_change_other_files(theirs: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    (victim / "gc.log").write_text("of root")
    (victim / "gc.log").chmod(0o600)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o077 == 0:
            folder.chmod(0o711)
    contents = set()
    for attempt in range(20):
        folder, ours = theirs / str(attempt), tmp_path / f"ours-{attempt}"
        folder.mkdir()
        ours.mkdir()
        untrusted.give_ownership(folder, OTHER_UID)
        as_other = ("setpriv", f"--reuid={OTHER_UID}", f"--regid={OTHER_UID}", "--clear-groups")
        argv = (*as_other, sys.executable, "-c", SWAPS, str(folder), str(victim))
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as swapping:
            assert swapping.stdout is not None
            swapping.stdout.readline()
            for _ in range(200):
                try:
                    with untrusted.open_file(folder / "gc.log") as file:
                        contents.add(file.read())
                except OSError as error:
                    contents.add(type(error).__name__.encode())
            try:
                untrusted.move_files(folder, ours, depth=2)
            finally:
                swapping.kill()
        contents |= {file.read_bytes() for file in ours.rglob("*.log")}
    assert b"of the server" in contents
    assert b"of root" not in contents
    assert {(path.stat().st_uid, path.stat().st_mode & 0o777) for path in (victim, victim / "gc.log")} == {
        *((0, 0o700), (0, 0o600))
    }
    assert (victim / "gc.log").read_text() == "of root"


def test_path_that_only_we_can_write_is_safe(tmp_path: Path) -> None:
    assert untrusted.find_writable_folder(tmp_path) is None
    assert untrusted.find_writable_folder(tmp_path / "missing" / "too") is None
    assert untrusted.find_writable_folder(tmp_path / ".." / tmp_path.name) is None


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_folder_that_others_can_write_is_not_safe(tmp_path: Path, mode: int) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(mode)
    below = open_to_all / "below"
    below.mkdir()
    (tmp_path / "link").symlink_to("open/below")
    is_sticky = bool(mode & stat.S_ISVTX)
    expected = None if is_sticky else open_to_all
    assert untrusted.find_writable_folder(open_to_all) == open_to_all
    assert untrusted.find_writable_folder(below) == expected
    assert untrusted.find_writable_folder(tmp_path / "link") == expected
    assert untrusted.find_writable_folder(open_to_all / "missing") == expected


@needs_root
def test_other_users_entry_in_a_sticky_folder_is_not_safe(tmp_path: Path) -> None:
    sticky, ours = tmp_path / "sticky", tmp_path / "ours"
    sticky.mkdir()
    sticky.chmod(0o1777)
    ours.mkdir()
    (sticky / "link").symlink_to(ours)
    (sticky / "theirs").mkdir()
    for name in ("link", "theirs"):
        os.chown(sticky / name, OTHER_UID, OTHER_UID, follow_symlinks=False)
    assert untrusted.find_writable_folder(sticky / "link") == sticky
    assert untrusted.find_writable_folder(sticky / "theirs") == sticky
    assert untrusted.find_writable_folder(sticky / "theirs" / "missing") == sticky


@needs_root
def test_link_of_another_user_must_lead_to_a_file_that_the_user_can_read(tmp_path: Path) -> None:
    folder, private = tmp_path / "track", tmp_path / "private.json"
    write_track(folder, documents=[{"source-file": "documents.json"}])
    private.write_text('{"n": 1}\n')
    link = folder / "documents.json"
    link.symlink_to(private)
    reader.read_track(folder)
    os.chown(link, OTHER_UID, OTHER_UID, follow_symlinks=False)
    with pytest.raises(SpecError, match=r"documents\.json: .*a link of another user leads to a file"):
        reader.read_track(folder)
    os.chown(private, OTHER_UID, OTHER_UID)
    reader.read_track(folder)
    link.unlink()
    link.symlink_to("/etc/passwd")
    os.chown(link, OTHER_UID, OTHER_UID, follow_symlinks=False)
    assert not untrusted.borrows_our_rights(link)


@pytest.mark.netns
def test_folder_of_root_is_safe_in_a_user_namespace() -> None:
    script = (
        "from ingest_bench.inputs import untrusted as u; from pathlib import Path; "
        "print(u.find_writable_folder(Path('/tmp/no-such-folder/x')))"
    )
    argv = (*ordinary_user.before(), "unshare", "--user", "--map-root-user", sys.executable, "-c", script)
    assert subprocess.run(argv, check=True, capture_output=True, text=True, cwd="/").stdout == "None\n"


def test_root_refuses_results_that_another_user_can_replace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "is_root", lambda: True)
    results = tmp_path / "out"
    results.mkdir()
    layout.check_writable(results / "new")
    layout.check_writable(Path("/tmp"))  # noqa: S108 - it is sticky
    (results / layout.PLAN).write_text("{}")
    raw = results / "cell" / "1" / "raw"
    raw.mkdir(parents=True)
    layout.open_results(results, to_write=True)
    for folder in (raw, results):
        folder.chmod(0o777)
        with pytest.raises(SpecError, match=f"{folder}: another user can replace files here while root writes them"):
            layout.open_results(results, to_write=True)
        layout.open_results(results)
    with pytest.raises(SpecError, match=r"another user can replace files here .* choose a folder of root's by --out"):
        layout.check_writable(results / "new")


def test_deep_jvm_folder_becomes_a_note(tmp_path: Path, secret: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create()
    (run.jvm / "gc.log").write_text("[0.1s] a line")
    (run.jvm / os.fsdecode(b"\xff\n")).symlink_to(secret)
    deep(run.home, 1_100)
    run.remove_homes()
    assert not run.home.exists()
    (note,) = run.move_jvm_files()
    assert note == 'left out, not a regular file of the JVM: "jvm/\\udcff\\n"'
    assert list(run.digest_files()) == ["raw/gc.log"]
    run.create_folders()
    deep(run.jvm, 25, name="d" * 200)
    assert run.move_jvm_files() == ["the files of the JVM stay in jvm/ and were not read (File name too long)"]
    assert list(run.digest_files()) == ["raw/gc.log"]
    # pytest cannot delete it.
    run.jvm.rename(run.home)
    run.remove_homes()
    assert secret.read_text() == "of root"


def test_root_follows_no_links_of_an_earlier_server(tmp_path: Path, secret: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create()
    run.earlier.create()
    config = run.earlier.home / "config"
    config.mkdir()
    (config / "jvm.options").symlink_to(secret)
    (config / "second").hardlink_to(secret)
    os.mkfifo(config / "server.yml")
    (config / "data").write_text("documents")
    config.chmod(0o777)
    run.move_homes_from(run.earlier, 1)
    assert [path.name for path in (run.home / "config").iterdir()] == ["data"]
    assert not (run.home / "config").stat().st_mode & 0o022
    assert secret.read_text() == "of root"


def deep(folder: Path, levels: int, name: str = "d") -> None:
    """Nest folders in *folder*: 1,000 levels exceed Python's recursion limit, 4,096 characters the length of a path."""
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=descriptor)
        below = os.open(name, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
