"""Corpora over HTTP: whole and checked or not there at all, and never begun anew without need."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from file_server import Served, file_server

from ingest_bench.cli import app
from ingest_bench.documents import tracks
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.lab.steps import downloads, resumed
from ingest_bench.model.track import Origin, TrackFile

TEXT = b"".join(b'{"n": %d, "text": "%s"}\n' % (number, b"%x" % (number * 7919)) for number in range(20_000))
PACKED = bz2.compress(TEXT)
NAME = "docs.json.bz2"


@pytest.fixture
def served() -> Iterator[Served]:
    with file_server(Served(PACKED)) as found:
        yield found


def corpus(served: Served, folder: Path, name: str = NAME, **told: int | None) -> TrackFile:
    known: dict[str, int | None] = {"packed_bytes": len(PACKED), "unpacked_bytes": len(TEXT), "documents": 20_000}
    return TrackFile(path=str(folder / name), index="i", origin=Origin(url=f"{served.url}/{name}", **(known | told)))


def fetch(file: TrackFile, tell: Any = lambda *_: None, **more: Any) -> None:
    downloads.fetch(file, tell, sleep=more.pop("sleep", lambda _: None), **more)


def part_of(file: TrackFile) -> Path:
    return Path(f"{file.path}.part")


def test_a_corpus_is_there_whole_and_its_progress_was_told(served: Served, tmp_path: Path) -> None:
    file, seen = corpus(served, tmp_path / "made" / "anew"), []
    fetch(file, lambda *told: seen.append(told))
    assert Path(file.path).read_bytes() == PACKED
    assert (NAME, len(PACKED), len(PACKED)) in seen
    assert seen[-1] == (f"check {NAME}", len(TEXT), len(TEXT))
    assert not part_of(file).exists()
    fetch(file)
    assert len(served.asked) == 1


def test_what_broke_off_goes_on_where_it_did(served: Served, tmp_path: Path) -> None:
    served.breaks_after = [10_000, 20_000]
    file = corpus(served, tmp_path)
    fetch(file)
    assert Path(file.path).read_bytes() == PACKED
    assert served.ranges() == ["", "bytes=10000-", "bytes=30000-"]
    assert [one.get("If-Range") for one in served.asked] == [None, '"one"', '"one"']


def test_an_interrupted_download_goes_on_the_next_time(served: Served, tmp_path: Path) -> None:
    def interrupt(_: str, have: int, __: int | None) -> None:
        if have >= 5000:
            raise KeyboardInterrupt

    served.breaks_after = [7000]
    file = corpus(served, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        fetch(file, interrupt)
    have = part_of(file).stat().st_size
    assert 0 < have <= 7000
    fetch(file)
    assert served.ranges() == ["", f"bytes={have}-"]
    assert Path(file.path).read_bytes() == PACKED


@pytest.mark.parametrize("change", [{"knows_ranges": False}, {"etag": '"two"'}])
def test_what_cannot_go_on_or_has_changed_is_begun_anew(served: Served, tmp_path: Path, change: dict[str, Any]) -> None:
    file = corpus(served, tmp_path)
    part_of(file).write_bytes(b"x" * 100)
    resumed.from_(part_of(file)).write_text(f'{file.origin.url}\n"one"')
    for key, value in change.items():
        setattr(served, key, value)
    fetch(file)
    assert served.ranges() == ["bytes=100-"]
    assert Path(file.path).read_bytes() == PACKED


def test_a_kill_as_another_file_begins_never_leaves_the_old_one_under_its_name(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, opened = corpus(served, tmp_path), Path.open
    part_of(file).write_bytes(b"x" * 100)
    resumed.from_(part_of(file)).write_text(f'{file.origin.url}\n"one"')
    served.etag = '"two"'

    def killed(path: Path, *how: Any, **more: Any) -> Any:
        if path == part_of(file):
            raise KeyboardInterrupt
        return opened(path, *how, **more)

    monkeypatch.setattr(Path, "open", killed)
    with pytest.raises(KeyboardInterrupt):
        fetch(file)
    monkeypatch.undo()
    fetch(file)
    assert Path(file.path).read_bytes() == PACKED


def test_a_part_of_another_address_is_not_gone_on_with(served: Served, tmp_path: Path) -> None:
    file = corpus(served, tmp_path)
    part_of(file).write_bytes(b"x" * 100)
    resumed.from_(part_of(file)).write_text('http://elsewhere/docs.json.bz2\n"one"')
    fetch(file)
    assert served.ranges() == [""]


def test_a_server_that_cannot_now_is_asked_again_and_given_up_in_the_end(served: Served, tmp_path: Path) -> None:
    waited: list[float] = []
    served.statuses = [503, 429]
    fetch(corpus(served, tmp_path), sleep=waited.append)
    assert waited == [1.0, 2.0]
    served.statuses = [500] * 10
    with pytest.raises(RunFailed, match=r"was answered 500 .*, 5 times in a row\. .* --download again"):
        fetch(corpus(served, tmp_path / "other"))
    assert len(served.asked) == 3 + 5


def test_a_file_that_is_not_there_is_named_with_its_address(served: Served, tmp_path: Path) -> None:
    served.statuses = [404]
    with pytest.raises(RunFailed, match=r"/corpora/docs\.json\.bz2: was answered 404 .*base-url"):
        fetch(corpus(served, tmp_path))


def test_a_server_that_is_not_there_is_named(served: Served, tmp_path: Path) -> None:
    file = TrackFile(path=str(tmp_path / NAME), index="i", origin=Origin(url="http://127.0.0.1:1/docs.json.bz2"))
    with pytest.raises(RunFailed, match=r"http://127\.0\.0\.1:1/.*cannot be reached .*Connection refused"):
        fetch(file)
    assert not served.asked


def test_another_size_than_the_tracks_is_seen_before_anything_is_downloaded(served: Served, tmp_path: Path) -> None:
    file = corpus(served, tmp_path, packed_bytes=5)
    with pytest.raises(RunFailed, match=rf"the server has {len(PACKED):,} bytes, the track says 5: it is another file"):
        fetch(file)
    assert not part_of(file).exists()


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"documents": 19_999}, r'20,000 where the track says 19,999 \("document-count"\)'),
        ({"unpacked_bytes": len(TEXT) + 1}, r'\("uncompressed-bytes"\)'),
    ],
)
def test_what_is_not_what_the_track_says_waits_for_another_track(
    served: Served, tmp_path: Path, told: dict[str, Any], said: str
) -> None:
    file = corpus(served, tmp_path, **told)
    with pytest.raises(RunFailed, match=rf"{said}.* {part_of(file)} is kept, delete it to download it again"):
        fetch(file)
    assert not Path(file.path).exists()
    fetch(corpus(served, tmp_path))
    assert Path(file.path).read_bytes() == PACKED
    assert len(served.asked) == 1


def test_a_whole_file_that_cannot_be_unpacked_here_is_kept(served: Served, tmp_path: Path) -> None:
    served.data = gzip.compress(PACKED)
    file = corpus(served, tmp_path, "docs.json.gz", packed_bytes=None)
    for _ in range(2):
        with pytest.raises(RunFailed, match=r"unpack it once, .* What was downloaded is kept"):
            fetch(file)
        assert part_of(file).read_bytes() == served.data
    assert served.ranges() == ["", f"bytes={len(served.data)}-"]


def test_plain_text_under_the_name_of_an_archive_is_thrown_away(served: Served, tmp_path: Path) -> None:
    served.data = b"<html>Please log in</html>"
    with pytest.raises(RunFailed, match=r"it is no \.bz2 file; .* It was thrown away"):
        fetch(corpus(served, tmp_path, packed_bytes=None))
    assert not list(tmp_path.glob(f"{NAME}*"))


def test_a_damaged_archive_is_thrown_away(served: Served, tmp_path: Path) -> None:
    served.data = PACKED[:5000] + bytes(100) + PACKED[5100:]
    with pytest.raises(RunFailed, match=r"cannot be unpacked: .* It was thrown away"):
        fetch(corpus(served, tmp_path))
    assert not list(tmp_path.glob(f"{NAME}*"))


def test_a_bomb_is_unpacked_no_further_than_the_track_says(served: Served, tmp_path: Path) -> None:
    served.data = gzip.compress(bytes(64 << 20), 9)
    seen: list[int] = []
    file = corpus(served, tmp_path, "bomb.json.gz", packed_bytes=None, unpacked_bytes=1000, documents=None)
    with pytest.raises(RunFailed, match=r"or more where the track says 1,000"):
        fetch(file, lambda what, have, _: seen.append(have) if what.startswith("check") else None)
    assert max(seen) <= 4 << 20


def test_a_server_that_drips_is_given_up_and_what_came_is_kept(served: Served, tmp_path: Path) -> None:
    served.breaks_after = [3000, 10, 10, 10]
    seconds = itertools.count(0, 45)
    file = corpus(served, tmp_path, packed_bytes=None, unpacked_bytes=None, documents=None)
    with pytest.raises(RunFailed, match=r"only [0-9,]+ bytes came in \d+ s\. .* are kept; say --download again later"):
        resumed.Download(
            file.origin.url, tmp_path / "x.part", None, lambda *_: None, lambda _: None, lambda: next(seconds)
        ).whole()
    assert (tmp_path / "x.part").stat().st_size > 0


def test_a_full_disk_is_said_before_and_while_it_fills(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = corpus(served, tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(MissingCapability, match=r"cannot be written: File too large .* are free.*it goes on where"):
            fetch(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    with pytest.raises(MissingCapability, match=r"are still to come, and 1000B are free in .*INGEST_BENCH_CACHE"):
        fetch(file)


@pytest.mark.parametrize("place", ["ftp://127.0.0.1/x", "file:///etc/passwd"])
def test_a_redirect_to_another_kind_of_place_is_not_followed(served: Served, tmp_path: Path, place: str) -> None:
    served.redirect = place
    with pytest.raises(RunFailed, match=r"sends us on to|was answered 302"):
        fetch(corpus(served, tmp_path))


@pytest.mark.parametrize("base", ["s3://bucket/corpora", "file:///etc", "", "ftp://x/y"])
def test_only_http_is_downloaded_and_the_rest_is_named(base: str) -> None:
    file = TrackFile(path="/nowhere/docs.json", index="i", origin=Origin(url=f"{base}/docs.json" if base else ""))
    with pytest.raises(SpecError, match=r"docs\.json cannot be downloaded .*put it into the folder of the track"):
        downloads.missing([file])


def track(folder: Path, base: str, name: str = NAME, **documents: Any) -> Path:
    folder.mkdir(parents=True)
    one = {"source-file": name, "document-count": 20_000, "uncompressed-bytes": len(TEXT), **documents}
    table = {
        "version": 2,
        "indices": [{"name": "i"}],
        "corpora": [{"name": "a b/../c", "base-url": base, "documents": [one]}],
        "schedule": [{"operation": {"operation-type": "bulk", "bulk-size": 5000}}],
    }
    (folder / "track.json").write_text(json.dumps(table))
    return folder


def test_the_command_says_the_size_first_and_fills_the_cache_for_all_tracks(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INGEST_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {"compressed-bytes": len(PACKED)}
    folder = track(tmp_path / "one", served.url, **known)
    # This heap is refused once the corpus is there: nothing starts.
    words = ["run", "--track", str(folder), "--download", "--set", "heap=500g"]
    assert app.run(words) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert f"download {NAME}: " in said
    assert f"from {served.url} into" in said
    (kept,) = (tmp_path / "cache" / "corpora").glob(f"*/{NAME}")
    assert kept.read_bytes() == PACKED
    other = track(tmp_path / "two", served.url)
    found = tracks.read(other, downloads=tmp_path / "cache" / "corpora")
    assert found.steps[0].files[0].path == str(kept)
    assert tracks.missing(found) == ()


@pytest.mark.parametrize("name", ["../../docs.json", "/etc/docs.json", "x/../../../docs.json", "x/.."])
def test_a_file_name_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    folder = track(tmp_path / "t", "http://127.0.0.1:1/x", name)
    with pytest.raises(SpecError, match=r"outside the folder of the track|no file of a track is called so"):
        tracks.read(folder, downloads=tmp_path / "cache")


@pytest.mark.parametrize("base", ["http://me:secret@x/y", "http://x/a b", "http://x/\x1b[2J"])
def test_an_address_with_a_password_or_control_characters_is_refused(tmp_path: Path, base: str) -> None:
    with pytest.raises(SpecError, match='"base-url" is '):
        tracks.read(track(tmp_path / "t", base))
