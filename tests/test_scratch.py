"""Scratch folders of attached JVMs: opened without links, where the JVM's user can write."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from ingest_bench.errors import MissingCapability
from ingest_bench.jvm import scratch
from ingest_bench.jvm.attach import AttachedJvm

US = AttachedJvm(pid=os.getpid(), uid=os.geteuid(), gid=os.getegid(), jcmd=Path("jcmd"), version="17", start_id="now")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of a container with a link out of it on the way."""
    (tmp_path / "outside" / "tmp").mkdir(parents=True)
    (tmp_path / "root" / "private" / "tmp").mkdir(parents=True)
    (tmp_path / "root" / "var").symlink_to(tmp_path / "outside")
    return tmp_path / "root"


def test_no_link_below_the_root_is_followed(root: Path) -> None:
    os.close(scratch.open_folder(root, Path("/private/tmp")))
    for folder in ("/var/tmp", "/var", "/missing"):  # noqa: S108
        with pytest.raises(OSError, match=r"Not a directory|No such file"):
            scratch.open_folder(root, Path(folder))


@pytest.mark.parametrize(
    ("mode", "owner", "refusal"),
    [(0o700, 0, ""), (0o700, 1, "uid 4711 may not write there"), (0o777, 1, ""), (0o077, 0, "uid 4711 may")],
)
def test_a_folder_that_the_jvm_user_cannot_write_is_refused(
    mode: int, owner: int, refusal: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    state = os.stat_result((0o40000 | mode, 0, 0, 2, 4711 + owner, 4711 + owner, 0, 0, 0, 0))
    user = dataclasses.replace(US, uid=4711, gid=4711)
    folder = os.open(tmp_path, os.O_PATH)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", lambda _: state)
        assert scratch.explain_refusal(folder, user).startswith(refusal)
    os.close(folder)


def test_the_temporary_folder_of_the_jvm_is_the_last_choice(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = f"#Sat\njava.io.tmpdir={root}/private/../private/tmp\njava.vendor=x\n"
    monkeypatch.setattr(scratch, "_USUAL_FOLDERS", (str(root / "var" / "tmp"), "/missing"))
    monkeypatch.setattr(AttachedJvm, "run_jcmd", lambda *_: properties)
    with scratch.choose(US, "name") as chosen:
        assert (chosen.path, chosen.root) == (root / "private" / "tmp" / "name", Path("/"))
    monkeypatch.setattr(AttachedJvm, "run_jcmd", lambda *_: f"java.io.tmpdir={root / 'var' / 'tmp'}\n")
    with (
        pytest.raises(MissingCapability, match=r"tmp: Not a directory; /missing: No such file or directory\)\. Mount"),
        scratch.choose(US, "name"),
    ):
        pytest.fail("chosen")


def test_no_nearly_full_disk_is_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A flight recorder ends its JVM when a disk is full.
    usual, temporary = root / "private", root / "private" / "tmp"
    free_pages = {usual: 100, temporary: 16384}
    monkeypatch.setattr(scratch, "_USUAL_FOLDERS", (str(usual),))
    monkeypatch.setattr(AttachedJvm, "run_jcmd", lambda *_: f"java.io.tmpdir={temporary}\n")

    def statvfs(descriptor: str) -> os.statvfs_result:
        pages = free_pages[Path(descriptor).readlink()]
        return os.statvfs_result((4096, 4096, 20000, pages, pages, 9, 9, 9, 0, 255))

    monkeypatch.setattr(os, "statvfs", statvfs)
    with scratch.choose(US, "name") as chosen:
        assert chosen.path == temporary / "name"
    free_pages |= {usual: 16384, temporary: 16383}
    with (
        pytest.raises(MissingCapability, match=r"flight recorder writes to .*/tmp: only .*MiB free, and a full disk"),
        scratch.choose(US, "name"),
    ):
        pytest.fail("chosen")
