"""The lines of a plain or compressed file, block by block, whole or by byte range."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import numpy as np
import zstandard

from ingest_bench.documents.actions import is_action_line, items
from ingest_bench.errors import SpecError
from ingest_bench.inputs import files

CHUNK_BYTES = 4 * 1024**2
# Servers take requests of 100 MB unless they are told otherwise (http.max_content_length).
_LONGEST_LINE_BYTES = 256 * 1024**2
# The endings of what is written compressed.
ENDINGS = (".gz", ".bz2", ".zst")
# A tar archive says what it is at byte 257 of its first block of 512.
_HEAD_BYTES = 512
_TAR_PLACE, _TAR = 257, b"ustar"
# The largest window that the format has on 64 bits, as `zstd --ultra --long=31` writes it.
_ZSTD_WINDOW_BYTES = 1 << 31
# What the zstd library says of a whole file that it cannot decompress here (zstd_errors.h).
_ZSTD_NO_DAMAGE = re.compile("memory|[Dd]ictionary")
# A block of 4 bytes can mean 128 KiB (RFC 8878, RLE blocks): no more than 64 MiB come out of so much at once.
_ZSTD_BYTES = 2048


class DamagedFile(SpecError):
    """A compressed file whose bytes are wrong or missing: another copy of it may be whole."""


def packing(name: str) -> str:
    """What a file of that name is packed with, as the end of its name: ".gz"; empty where it is plain."""
    return next((ending for ending in ENDINGS if name.endswith(ending)), "")


def is_plain(path: Path) -> bool:
    """Return True if the file is plain text, so that a byte range can be read. SpecError if it cannot be read."""
    try:
        files.check(path)
        return _opener(path) is None
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None


def chunks(path: Path, start: int = 0, end: int | None = None, *, name: str = "") -> Iterator[bytes]:
    """Yield the text of a file in pieces: decompressed, or a byte range of a plain file.

    The first bytes of the file decide what it is. SpecError when it cannot be read, DamagedFile when another copy could
    be: also for a plain file whose name (or `name`) ends as that of a compressed one.
    """
    try:
        files.check(path)
        if opener := _opener(path):
            yield from _inside(opener(path), path)
        elif ending := packing(name or path.name):
            raise _damaged(path, f"it is no {ending} file")
        else:
            with path.open("rb") as file:
                yield from _range(file, start, end)
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError) as error:
        raise _damaged(path, error) from None
    except zstandard.ZstdError as error:
        if not _ZSTD_NO_DAMAGE.search(str(error)):
            raise _damaged(path, error) from None
        raise SpecError(f"{path}: cannot be unpacked: {error}; unpack it with zstd, and give the plain file") from None
    except RuntimeError as error:
        # Of zipfile: a file with a password, or a compression that Python does not know.
        raise SpecError(f"{path}: cannot be unpacked: {error}; unpack it, and give the plain file") from None
    except OSError as error:
        # bz2 says of damaged data that it is an OSError, without a number.
        if not error.errno:
            raise _damaged(path, error) from None
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None


def _damaged(path: Path, error: object) -> DamagedFile:
    return DamagedFile(f"{path}: cannot be unpacked: {error}; the file is damaged or cut off, get it again")


def lines(pieces: Iterable[bytes], path: Path) -> Iterator[list[bytes]]:
    """The lines of the pieces of a file without their line feeds, a list for each piece.

    SpecError for a line that is longer than any document: a small archive can hold one that fills the memory.
    """
    rest = b""
    for piece in pieces:
        found = (rest + piece).split(b"\n")
        rest = found.pop()
        if len(rest) > _LONGEST_LINE_BYTES:
            raise SpecError(
                f"{path}: a line is longer than {_LONGEST_LINE_BYTES // 1024**2} MiB; a line is one document, and no "
                "server takes one of that size"
            )
        if found:
            yield found
    if rest:
        yield [rest]


def boundary(path: Path, place: int, bulk: bool) -> int:
    """Where the first document (of bulk bodies: the first item) begins at or after a byte of a plain file.

    A document that looks like an action line could be taken for one; the published corpora have none.
    """
    size = path.stat().st_size
    if place <= 0 or place >= size:
        return max(0, min(place, size))
    with path.open("rb") as file:
        file.seek(place - 1)
        file.readline()
        while bulk:
            here = file.tell()
            line = file.readline()
            if not line or is_action_line(line):
                return here
        return file.tell()


def end_of(path: Path, documents: int, bulk: bool) -> int:
    """Where the first so many documents of a plain file end (of bulk bodies: items): its size when it has fewer."""
    size = path.stat().st_size
    if bulk:
        needed = 0
        for item in itertools.islice(itertools.chain.from_iterable(items(lines(chunks(path), path), path)), documents):
            needed += len(item) + 1
        return min(size, needed)
    before = 0
    for piece in chunks(path):
        found = piece.count(b"\n")
        if found >= documents:
            feeds = np.flatnonzero(np.frombuffer(piece, dtype=np.uint8) == ord("\n"))
            return before + int(feeds[documents - 1]) + 1
        documents -= found
        before += len(piece)
    return size


def share(total: int, part: int, parts: int) -> tuple[int, int]:
    """Where the share of one of several workers begins and ends, of so many bytes or documents: none is left over."""
    return total * part // parts, total * (part + 1) // parts


def stride(total: int, part: int, parts: int) -> range:
    """The numbers of one of several workers, of so many: it has every n-th."""
    return range(part, total, parts)


def unpack(path: Path, folder: Path) -> Path:
    """A plain copy of a compressed file in the folder, so that several processes can each read a part of it.

    A plain file is given back as it is.
    """
    if is_plain(path):
        return path
    target, part = folder / "unpacked", folder / "unpacked.part"
    try:
        with part.open("wb") as file:
            for piece in chunks(path):
                file.write(piece)
    except OSError as error:
        part.unlink(missing_ok=True)
        free = shutil.disk_usage(folder).free
        raise SpecError(
            f"{part}: cannot be written: {error.strerror} ({free} bytes are free); take one process"
        ) from None
    part.replace(target)
    return target


def _range(file: IO[bytes] | gzip.GzipFile, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    if start:
        file.seek(start)
    left = CHUNK_BYTES if end is None else end - start
    while piece := file.read(min(CHUNK_BYTES, left)):
        yield piece
        left = CHUNK_BYTES if end is None else left - len(piece)


def _plain(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from _range(file)


def _gzip(path: Path) -> Iterator[bytes]:
    with gzip.open(path, "rb") as file:
        yield from _range(file)


def _bz2(path: Path) -> Iterator[bytes]:
    with bz2.open(path, "rb") as file:
        yield from _range(file)


def _zstd(path: Path) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    # A stream reader takes a cut frame for the end of the file. This one does not, and takes frame after frame.
    unpacker = decompressor.decompressobj()
    with path.open("rb") as file:
        while packed := file.read(_ZSTD_BYTES):
            while packed:
                if unpacker.eof:
                    unpacker = decompressor.decompressobj()
                if piece := unpacker.decompress(packed):
                    yield piece
                packed = unpacker.unused_data if unpacker.eof else b""
    if not unpacker.eof:
        raise EOFError("it ends inside a frame")


def _zip(path: Path) -> Iterator[bytes]:
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if not (member.is_dir() or _is_beside(member.filename))]
        if len(members) != 1:
            raise _not_one(path, [member.filename for member in members])
        with archive.open(members[0]) as file:
            yield from _range(file)


def _inside(pieces: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """Yield the text that was decompressed; of a tar archive its only file."""
    head = b""
    while len(head) < _HEAD_BYTES and (piece := next(pieces, b"")):
        head += piece
    pieces = itertools.chain((head,) if head else (), pieces)
    if _is_tar(head):
        yield from _untarred(pieces, path)
        return
    _refuse_packed(head, path)
    yield from pieces


def _refuse_packed(head: bytes, path: Path) -> None:
    if inner := _format(head):
        raise SpecError(f"{path}: what is packed there is {inner.name} again; unpack it once, and give what comes out")


def _untarred(pieces: Iterator[bytes], path: Path) -> Iterator[bytes]:
    names: list[str] = []
    stream = io.BufferedReader(_Stream(pieces), CHUNK_BYTES)
    with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK_BYTES) as archive:
        for member in archive:
            if not member.isfile() or _is_beside(member.name):
                continue
            names.append(member.name)
            if len(names) > 1:
                break
            if file := archive.extractfile(member):
                head = file.read(_HEAD_BYTES)
                _refuse_packed(head, path)
                yield from itertools.chain((head,) if head else (), _range(file))
    if len(names) != 1:
        raise _not_one(path, names)


class _Stream(io.RawIOBase):
    """Pieces of bytes as a file to read from."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill the buffer from one piece; 0 at the end."""
        self._rest = self._rest or memoryview(next(self._pieces, b""))
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _is_beside(name: str) -> bool:
    """Return True for the attributes that macOS packs next to a file, as ._NAME."""
    return PurePosixPath(name).name.startswith("._")


def _not_one(path: Path, names: Sequence[str]) -> SpecError:
    what = f"several files ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})" if names else "no file"
    return SpecError(f"{path}: holds {what}; unpack it, and give one file of documents")


class _Format(NamedTuple):
    start: re.Pattern[bytes]
    name: str
    opener: Callable[[Path], Iterator[bytes]] | None = None


# The first bytes: RFC 1952, bzip2, RFC 8878 (a skippable frame may be the first one), APPNOTE.TXT and so on. None of
# them can begin a line of JSON.
_FORMATS = (
    _Format(re.compile(rb"\x1f\x8b"), "gzip", _gzip),
    _Format(re.compile(rb"BZh"), "bzip2", _bz2),
    _Format(re.compile(rb"(\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18)"), "Zstandard", _zstd),
    _Format(re.compile(rb"PK(\x03\x04|\x05\x06)"), "zip", _zip),
    _Format(re.compile(rb"\xfd7zXZ\x00"), "xz"),
    _Format(re.compile(rb"7z\xbc\xaf\x27\x1c"), "7-Zip"),
    _Format(re.compile(rb"Rar!\x1a\x07"), "RAR"),
    _Format(re.compile(rb"\x04\x22\x4d\x18"), "LZ4"),
    _Format(re.compile(rb"PAR1"), "Parquet"),
)


def _format(head: bytes) -> _Format | None:
    return next((file_format for file_format in _FORMATS if file_format.start.match(head)), None)


def _is_tar(head: bytes) -> bool:
    if not head.startswith(_TAR, _TAR_PLACE):
        return False
    try:
        # It has the checksum of the block: a document may have these letters there, too.
        tarfile.TarInfo.frombuf(head[:_HEAD_BYTES], tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _opener(path: Path) -> Callable[[Path], Iterator[bytes]] | None:
    """Return the opener for the file, by its first bytes; None for plain text. SpecError for an unsupported format."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    file_format = _format(head)
    if file_format and file_format.opener is None:
        raise SpecError(
            f"{path}: is {file_format.name}, which is not read; give the documents as plain text, as .gz, .bz2 or "
            ".zst, or alone in a .zip or .tar"
        )
    return file_format.opener if file_format else _plain if _is_tar(head) else None
