"""Download of corpora: complete and checked or absent, and resumed where possible."""

from __future__ import annotations

import bz2
import gzip
import itertools
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from example_tracks import write_track
from file_server import Served, file_server

from ingest_bench.cli import app
from ingest_bench.documents import corpus_download
from ingest_bench.documents.tracks import reader
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.model.load import CorpusSource, TrackFile

TEXT = b"".join(b'{"n": %d, "text": "%s"}\n' % (number, b"%x" % (number * 7919)) for number in range(20_000))
PACKED = bz2.compress(TEXT)
NAME = "docs.json.bz2"


@pytest.fixture
def served() -> Iterator[Served]:
    with file_server(Served(PACKED)) as server:
        yield server


def corpus(served: Served, folder: Path, name: str = NAME, **sizes: int | None) -> TrackFile:
    expected: dict[str, int | None] = {
        "compressed_bytes": len(PACKED),
        "uncompressed_bytes": len(TEXT),
        "documents": 20_000,
    }
    return TrackFile(
        path=str(folder / name), index="i", origin=CorpusSource(url=f"{served.url}/{name}", **(expected | sizes))
    )


class Clock:
    """Clock of downloads: waiting takes no time."""

    def __init__(self) -> None:
        self.waits_s: list[float] = []
        self.times_s: Iterator[float] = itertools.repeat(0.0)

    def sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)

    def monotonic(self) -> float:
        return next(self.times_s)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(corpus_download, "time", clock)
    return clock


def fetch(file: TrackFile, progress: Any = lambda *_: None) -> None:
    corpus_download.download_file(file, progress)


def part_of(file: TrackFile) -> Path:
    return Path(f"{file.path}.part")


def test_corpus_is_downloaded_with_progress(served: Served, tmp_path: Path) -> None:
    file, calls = corpus(served, tmp_path / "made" / "anew"), []
    fetch(file, lambda *progress: calls.append(progress))
    assert Path(file.path).read_bytes() == PACKED
    assert (NAME, len(PACKED), len(PACKED)) in calls
    assert calls[-1] == (f"check {NAME}", len(TEXT), len(TEXT))
    assert not part_of(file).exists()
    fetch(file)
    assert len(served.requests) == 1


def test_broken_download_resumes_where_it_stopped(served: Served, tmp_path: Path) -> None:
    served.breaks_after = [10_000, 20_000]
    file = corpus(served, tmp_path)
    fetch(file)
    assert Path(file.path).read_bytes() == PACKED
    assert served.ranges() == ["", "bytes=10000-", "bytes=30000-"]
    assert [headers.get("If-Range") for headers in served.requests] == [None, '"one"', '"one"']


def test_interrupted_download_resumes_the_next_time(served: Served, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("change", "host", "ranges"),
    [
        ({"knows_ranges": False}, "", ["bytes=100-"]),
        ({"etag": '"two"'}, "", ["bytes=100-"]),
        ({}, "http://elsewhere", [""]),
    ],
)
def test_part_of_another_file_or_without_ranges_is_not_resumed(
    served: Served, tmp_path: Path, change: dict[str, Any], host: str, ranges: list[str]
) -> None:
    file = corpus(served, tmp_path)
    part_of(file).write_bytes(b"x" * 100)
    corpus_download.origin_file(part_of(file)).write_text(f'{host or served.url}/{NAME}\n"one"')
    for key, value in change.items():
        setattr(served, key, value)
    fetch(file)
    assert served.ranges() == ranges
    assert Path(file.path).read_bytes() == PACKED


def test_kill_while_starting_again_leaves_no_mixed_file(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, opened = corpus(served, tmp_path), Path.open
    part_of(file).write_bytes(b"x" * 100)
    corpus_download.origin_file(part_of(file)).write_text(f'{file.origin.url}\n"one"')
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


def test_unavailable_server_is_retried_up_to_a_limit(served: Served, tmp_path: Path, clock: Clock) -> None:
    served.statuses = [503, 429]
    fetch(corpus(served, tmp_path))
    assert clock.waits_s == [1.0, 2.0]
    served.statuses = [500] * 10
    with pytest.raises(RunFailed, match=r"was answered 500 .*, 5 times in a row\. .* --download again"):
        fetch(corpus(served, tmp_path / "other"))
    assert len(served.requests) == 3 + 5


def test_missing_file_and_unreachable_server_are_named(served: Served, tmp_path: Path) -> None:
    served.statuses = [404]
    with pytest.raises(RunFailed, match=r"/corpora/docs\.json\.bz2: was answered 404 .*base-url"):
        fetch(corpus(served, tmp_path))
    served.url = "http://127.0.0.1:1"
    with pytest.raises(RunFailed, match=r"http://127\.0\.0\.1:1/.*cannot be reached .*Connection refused"):
        fetch(corpus(served, tmp_path))


def test_wrong_size_is_noticed_before_the_download(served: Served, tmp_path: Path) -> None:
    file = corpus(served, tmp_path, compressed_bytes=5)
    with pytest.raises(RunFailed, match=rf"the server has {len(PACKED):,} bytes, the track says 5: it is another file"):
        fetch(file)
    assert not part_of(file).exists()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"documents": 19_999}, r'20,000 where the track says 19,999 \("document-count"\)'),
        ({"uncompressed_bytes": len(TEXT) + 1}, r'\("uncompressed-bytes"\)'),
    ],
)
def test_mismatching_file_is_kept_for_another_track(
    served: Served, tmp_path: Path, sizes: dict[str, Any], message: str
) -> None:
    file = corpus(served, tmp_path, **sizes)
    with pytest.raises(RunFailed, match=rf"{message}.* {part_of(file)} is kept, delete it to download it again"):
        fetch(file)
    assert not Path(file.path).exists()
    fetch(corpus(served, tmp_path))
    assert Path(file.path).read_bytes() == PACKED
    assert len(served.requests) == 1


def test_complete_file_in_an_unsupported_format_is_kept(served: Served, tmp_path: Path) -> None:
    served.data = gzip.compress(PACKED)
    file = corpus(served, tmp_path, "docs.json.gz", compressed_bytes=None)
    for _ in range(2):
        with pytest.raises(RunFailed, match=r"Decompress it once, .* What was downloaded is kept"):
            fetch(file)
        assert part_of(file).read_bytes() == served.data
    assert served.ranges() == ["", f"bytes={len(served.data)}-"]


@pytest.mark.parametrize("data", [b"<html>Please log in</html>", PACKED[:5000] + bytes(100) + PACKED[5100:]])
def test_file_that_is_not_a_valid_archive_is_deleted(served: Served, tmp_path: Path, data: bytes) -> None:
    served.data = data
    with pytest.raises(RunFailed, match=r"(\.bz2 file|cannot be decompressed).*(deleted|thrown away)"):
        fetch(corpus(served, tmp_path, compressed_bytes=None))
    assert not list(tmp_path.glob(f"{NAME}*"))


def test_decompression_stops_at_the_size_of_the_track(served: Served, tmp_path: Path) -> None:
    served.data = gzip.compress(bytes(64 << 20), 9)
    calls: list[int] = []
    file = corpus(served, tmp_path, "bomb.json.gz", compressed_bytes=None, uncompressed_bytes=1000, documents=None)
    with pytest.raises(RunFailed, match=r"or more where the track says 1,000"):
        fetch(file, lambda what, have, _: calls.append(have) if what.startswith("check") else None)
    assert max(calls) <= 4 << 20


def test_slow_server_is_given_up_and_the_part_is_kept(served: Served, tmp_path: Path, clock: Clock) -> None:
    served.breaks_after = [3000, 10, 10, 10]
    clock.times_s = itertools.count(0, 45)
    file = corpus(served, tmp_path, compressed_bytes=None, uncompressed_bytes=None, documents=None)
    with pytest.raises(RunFailed, match=r"only [0-9,]+ bytes came in \d+ s\. .* are kept; say --download again later"):
        fetch(file)
    assert part_of(file).stat().st_size > 0


def test_full_disk_is_reported_before_and_during_the_download(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = corpus(served, tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(MissingCapability, match=r"cannot be written: File too large .* are free.*which resumes"):
            fetch(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    with pytest.raises(MissingCapability, match=r"are still to come, and 1000B are free in .*INGEST_BENCH_CACHE"):
        fetch(file)


@pytest.mark.parametrize("place", ["ftp://127.0.0.1/x", "file:///etc/passwd"])
def test_redirect_to_another_scheme_is_not_followed(served: Served, tmp_path: Path, place: str) -> None:
    served.redirect = place
    with pytest.raises(RunFailed, match=r"sends us on to|was answered 302"):
        fetch(corpus(served, tmp_path))


@pytest.mark.parametrize("base", ["s3://bucket/corpora", "file:///etc", "", "ftp://x/y"])
def test_other_schemes_than_http_are_named(base: str) -> None:
    file = TrackFile(path="/nowhere/docs.json", index="i", origin=CorpusSource(url=f"{base}/docs.json" if base else ""))
    with pytest.raises(SpecError, match=r"docs\.json cannot be downloaded .*put it into the folder of the track"):
        corpus_download.check_urls([file])


def track(folder: Path, base: str, name: str = NAME, compressed_bytes: int | None = None) -> Path:
    sizes = {"uncompressed-bytes": len(TEXT), "compressed-bytes": compressed_bytes}
    document_set = {"source-file": name, "document-count": 20_000, **sizes}
    corpora = [{"name": "a b/../c", "base-url": base, "documents": [document_set]}]
    write_track(folder, corpora=corpora)
    # Only its compressed form exists, and must be downloaded.
    (folder / "docs.json").unlink()
    return folder


def test_command_prints_the_size_and_fills_the_shared_cache(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INGEST_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = track(tmp_path / "one", served.url, compressed_bytes=len(PACKED))
    # The heap is refused after the download, so nothing starts.
    words = ["run", "--track", str(folder), "--download", "--set", "heap=500g"]
    assert app.run(words) == 2
    text = " ".join(capsys.readouterr().out.split())
    assert f"download {NAME}: " in text
    assert f"from {served.url} into" in text
    (kept,) = (tmp_path / "cache" / "corpora").glob(f"*/{NAME}")
    assert kept.read_bytes() == PACKED
    other = track(tmp_path / "two", served.url)
    read = reader.read_track(other, downloads=tmp_path / "cache" / "corpora")
    assert read.steps[0].files[0].path == str(kept)
    assert reader.missing_files(read) == ()


@pytest.mark.parametrize("name", ["../../docs.json", "/etc/docs.json", "x/../../../docs.json", "x/.."])
def test_file_name_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    folder = track(tmp_path / "t", "http://127.0.0.1:1/x", name)
    with pytest.raises(SpecError, match=r"outside the folder of the track|is not a valid file name"):
        reader.read_track(folder, downloads=tmp_path / "cache")


@pytest.mark.parametrize("base", ["http://me:secret@x/y", "http://x/a b", "http://x/\x1b[2J"])
def test_address_with_password_or_control_characters_is_refused(tmp_path: Path, base: str) -> None:
    with pytest.raises(SpecError, match='"base-url" is '):
        reader.read_track(track(tmp_path / "t", base))
