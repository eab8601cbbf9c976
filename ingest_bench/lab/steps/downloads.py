"""Files over HTTP into the cache: their size is known first, they go on where they broke off, and they are checked.

What is in the cache under its own name is whole and checked. Until then it is `NAME.part`, which stays when a download
ends early, beside `NAME.from`: where it comes from, so that it only goes on with the same file.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ingest_bench.documents import lines
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.jvm import cache
from ingest_bench.jvm.artifacts import Progress
from ingest_bench.lab.steps import resumed
from ingest_bench.model.track import TrackFile
from ingest_bench.units import format_bytes


def folder() -> Path:
    """Where downloaded corpora are."""
    return cache.folder() / "corpora"


def missing(files: Sequence[TrackFile]) -> tuple[TrackFile, ...]:
    """Those that are to be downloaded; SpecError when somebody must put one of them there by hand."""
    for file in files:
        scheme = file.origin.url.partition("://")[0]
        if scheme not in ("http", "https"):
            name = Path(file.path).name
            where = f"it comes from {file.origin.url}, which only http and https do here" if scheme else "no base-url"
            raise SpecError(f"--download: {name} cannot be downloaded ({where}); put it into the folder of the track")
    return tuple(files)


def announcement(files: Sequence[TrackFile]) -> str:
    """How much is to be downloaded, from where and to where."""
    left = [_left(file) for file in files]
    size = format_bytes(sum(size or 0 for size in left)) + (" and more, of unknown size" if None in left else "")
    names = ", ".join(Path(file.path).name for file in files)
    origins = dict.fromkeys(file.origin.url.rpartition("/")[0] for file in files)
    return f"download {names}: {size}, from {', '.join(origins)} into {folder()}"


def _left(file: TrackFile) -> int | None:
    """How much of it is still to come; None: nobody says how large it is."""
    size = _size(file)
    return None if size is None else max(0, size - resumed.size(_part(Path(file.path))))


def _size(file: TrackFile) -> int | None:
    """The bytes that come, packed or not, as the track says it."""
    return file.origin.packed_bytes if lines.packing(file.path) else file.origin.unpacked_bytes


def _part(place: Path) -> Path:
    """Where it is until it is whole."""
    return place.with_name(f"{place.name}.part")


def fetch(
    file: TrackFile,
    tell: Progress,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """The file of a corpus, whole and checked, at its path; errors say what came, and that it goes on from there."""
    place = Path(file.path)
    try:
        with cache.alone(place):
            if place.is_file():
                return
            part, url = _part(place), file.origin.url
            resumed.Download(url, part, _size(file), lambda *come: tell(place.name, *come), sleep, clock).whole()
            _check(file, part, tell)
            part.replace(place)
            resumed.from_(part).unlink(missing_ok=True)
    except OSError as error:
        free = shutil.disk_usage(place.parent if place.parent.is_dir() else "/").free
        raise MissingCapability(
            f"{place}: cannot be written: {error.strerror} ({format_bytes(free)} are free). Make room and say "
            "--download again: it goes on where it stopped; or set INGEST_BENCH_CACHE to another folder"
        ) from None


def _check(file: TrackFile, part: Path, tell: Progress) -> None:
    """Compare the file with the track; RunFailed says the difference. Only a damaged one is deleted."""
    origin, name = file.origin, Path(file.path).name
    count = 0
    unpacked = 0
    wanted = origin.unpacked_bytes
    last = b"\n"
    try:
        for piece in lines.chunks(part, name=name):
            unpacked += len(piece)
            count += piece.count(b"\n")
            last = piece[-1:]
            tell(f"check {name}", unpacked, wanted)
            if wanted is not None and unpacked > wanted:
                break
    except lines.DamagedFile as error:
        part.unlink()
        resumed.from_(part).unlink(missing_ok=True)
        raise RunFailed(f"{origin.url}: {error}. It was thrown away") from None
    except SpecError as error:
        raise RunFailed(f"{origin.url}: {error}. What was downloaded is kept") from None
    count += last != b"\n"
    documents = count // 2 if file.bulk else count
    for key, said, found in (
        ("uncompressed-bytes", wanted, unpacked),
        ("document-count", origin.documents, documents),
    ):
        if said is not None and found != said:
            more = " or more" if key == "uncompressed-bytes" and found > said else ""
            raise RunFailed(
                f'{origin.url}: what came has {found:,}{more} where the track says {said:,} ("{key}"). Update the '
                f"track, or ask who publishes it; {part} is kept, delete it to download it again"
            )
