"""Lines of a plain or compressed file, block by block, whole or by byte range; new files of them."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import re
import shutil
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import IO, Any, NamedTuple

import zstandard

from ingest_bench.errors import SpecError
from ingest_bench.inputs import files

CHUNK_BYTES = 4 * 1024**2
# By default servers accept requests of 100 MB (http.max_content_length).
_LONGEST_LINE_BYTES = 256 * 1024**2
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".zst")
# A tar archive has its magic number at byte 257 of its first block of 512.
_HEAD_BYTES = 512
_TAR_OFFSET, _TAR = 257, b"ustar"
# The largest window of the format on 64 bits, as `zstd --ultra --long=31` writes it.
_ZSTD_WINDOW_BYTES = 1 << 31
# Messages of the zstd library for an intact file that it cannot decompress here (zstd_errors.h).
_ZSTD_NOT_DAMAGED = re.compile("memory|[Dd]ictionary")
# A block of 4 bytes can mean 128 KiB (RFC 8878, RLE blocks): this many decompress to at most 64 MiB at once.
_ZSTD_BYTES = 2048


class DamagedFile(SpecError):
    """A compressed file whose bytes are wrong or missing: another copy of it may be intact."""


def compression_suffix(name: str) -> str:
    """Return the suffix of a compressed file's name, such as ".gz"; empty for a plain one."""
    return next((suffix for suffix in COMPRESSED_SUFFIXES if name.endswith(suffix)), "")


def is_plain(path: Path) -> bool:
    """Return True if the file is plain text, so that a byte range can be read. SpecError if it cannot be read."""
    try:
        files.check_plain(path)
        return _opener(path) is None
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None


def read_chunks(path: Path, start: int = 0, end: int | None = None, *, name: str = "") -> Iterator[bytes]:
    """Yield the text of a file in pieces: decompressed, or a byte range of a plain file.

    The first bytes of the file decide its format. SpecError if it cannot be read, DamagedFile if another copy could
    be: also for a plain file whose name (or *name*) has the suffix of a compressed one.
    """
    try:
        files.check_plain(path)
        if opener := _opener(path):
            yield from _unwrap(opener(path), path)
        elif suffix := compression_suffix(name or path.name):
            raise _damaged(path, f"it is not a {suffix} file")
        else:
            with path.open("rb") as file:
                yield from _read_range(file, start, end)
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError) as error:
        raise _damaged(path, error) from None
    except zstandard.ZstdError as error:
        if not _ZSTD_NOT_DAMAGED.search(str(error)):
            raise _damaged(path, error) from None
        raise SpecError(
            f"{path}: cannot be decompressed: {error}. Decompress it with zstd, and give the plain file."
        ) from None
    except RuntimeError as error:
        # From zipfile: a password, or an unsupported compression method.
        raise SpecError(f"{path}: cannot be decompressed: {error}. Decompress it, and give the plain file.") from None
    except OSError as error:
        # bz2 reports damaged data as an OSError without a number.
        if not error.errno:
            raise _damaged(path, error) from None
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None


def _damaged(path: Path, error: object) -> DamagedFile:
    return DamagedFile(f"{path}: cannot be decompressed: {error}. The file is damaged or truncated; get it again.")


def split_lines(pieces: Iterable[bytes], path: Path) -> Iterator[list[bytes]]:
    """Yield the lines of a file's pieces without line feeds, a list per piece.

    SpecError for a line that is longer than any document: a small archive can hold one that fills the memory.
    """
    tail = b""
    for piece in pieces:
        block = (tail + piece).split(b"\n")
        tail = block.pop()
        if len(tail) > _LONGEST_LINE_BYTES:
            raise SpecError(
                f"{path}: a line is longer than {_LONGEST_LINE_BYTES // 1024**2} MiB. A line is one document, and no "
                "server accepts such a large one."
            )
        if block:
            yield block
    if tail:
        yield [tail]


def limit_documents(blocks: Iterable[list[bytes]], documents: int) -> Iterator[list[bytes]]:
    """Yield blocks up to a total number of documents."""
    remaining = documents
    for block in blocks:
        yield block[:remaining]
        remaining -= len(block)
        if remaining <= 0:
            return


def part_range(total: int, part: int, parts: int) -> tuple[int, int]:
    """Return the start and end of one part of *total* bytes or documents; the parts cover all of them."""
    return total * part // parts, total * (part + 1) // parts


def create(path: Path, suffix: str) -> AbstractContextManager[Any]:
    """Open a new file for writing, compressed by the suffix (.gz .bz2 .zst)."""
    if suffix == ".gz":
        return gzip.GzipFile(path, "wb", compresslevel=6, mtime=0)
    if suffix == ".bz2":
        return bz2.open(path, "wb")
    if suffix == ".zst":
        return zstandard.ZstdCompressor().stream_writer(path.open("wb"))
    return path.open("wb")


def decompress_to(path: Path, target: Path) -> Path:
    """Write a plain copy of a compressed file, so that several processes can each read a part of it.

    The path of a plain file is returned unchanged.
    """
    if is_plain(path):
        return path
    part = target.with_name(f"{target.name}.part")
    try:
        with part.open("wb") as file:
            for piece in read_chunks(path):
                file.write(piece)
    except OSError as error:
        part.unlink(missing_ok=True)
        free = shutil.disk_usage(target.parent).free
        raise SpecError(
            f"{part}: cannot be written: {error.strerror} ({free} bytes are free). Use one process."
        ) from None
    part.replace(target)
    return target


def _read_range(file: IO[bytes], start: int = 0, end: int | None = None) -> Iterator[bytes]:
    if start:
        file.seek(start)
    remaining = sys.maxsize if end is None else end - start
    while piece := file.read(min(CHUNK_BYTES, remaining)):
        yield piece
        remaining -= len(piece)


def _read_all(open_file: Callable[[Path], Any], path: Path) -> Iterator[bytes]:
    with open_file(path) as file:
        yield from _read_range(file)


def _read_zstd(path: Path) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    # A stream reader takes a truncated frame for the end of the file. A decompressobj does not, and reads every frame.
    frame = decompressor.decompressobj()
    with path.open("rb") as file:
        while compressed := file.read(_ZSTD_BYTES):
            while compressed:
                if frame.eof:
                    frame = decompressor.decompressobj()
                if piece := frame.decompress(compressed):
                    yield piece
                compressed = frame.unused_data if frame.eof else b""
    if not frame.eof:
        raise EOFError("it ends inside a frame")


def _read_zip(path: Path) -> Iterator[bytes]:
    with zipfile.ZipFile(path) as archive:
        members = [
            member for member in archive.infolist() if not (member.is_dir() or _is_mac_metadata(member.filename))
        ]
        if len(members) != 1:
            raise _not_one_file(path, [member.filename for member in members])
        with archive.open(members[0]) as file:
            yield from _read_range(file)


def _unwrap(pieces: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """Yield decompressed text; of a tar archive the text of its only file."""
    head = b""
    while len(head) < _HEAD_BYTES and (piece := next(pieces, b"")):
        head += piece
    pieces = itertools.chain((head,) if head else (), pieces)
    if _is_tar(head):
        yield from _read_tar(pieces, path)
        return
    _refuse_nested(head, path)
    yield from pieces


def _refuse_nested(head: bytes, path: Path) -> None:
    if inner := _detect_format(head):
        raise SpecError(f"{path}: contains {inner.name} data. Decompress it once, and give the result.")


def _read_tar(pieces: Iterator[bytes], path: Path) -> Iterator[bytes]:
    names: list[str] = []
    # tarfile only calls this method.
    stream: Any = SimpleNamespace(read=lambda _size: next(pieces, b""))
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            if not member.isfile() or _is_mac_metadata(member.name):
                continue
            names.append(member.name)
            if len(names) > 1:
                break
            if file := archive.extractfile(member):
                head = file.read(_HEAD_BYTES)
                _refuse_nested(head, path)
                yield from itertools.chain((head,) if head else (), _read_range(file))
    if len(names) != 1:
        raise _not_one_file(path, names)


def _is_mac_metadata(name: str) -> bool:
    """Return True for the attributes that macOS archives next to a file, as ._NAME."""
    return PurePosixPath(name).name.startswith("._")


def _not_one_file(path: Path, names: Sequence[str]) -> SpecError:
    content = f"several files ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})" if names else "no file"
    return SpecError(f"{path}: contains {content}. Unpack it, and give one file of documents.")


class _Format(NamedTuple):
    magic: re.Pattern[bytes]
    name: str
    opener: Callable[[Path], Iterator[bytes]] | None = None


# Magic numbers: RFC 1952, bzip2, RFC 8878 (a skippable frame may come first), APPNOTE.TXT and so on. None of them can
# begin a line of JSON.
_FORMATS = (
    _Format(re.compile(rb"\x1f\x8b"), "gzip", partial(_read_all, gzip.open)),
    _Format(re.compile(rb"BZh"), "bzip2", partial(_read_all, bz2.open)),
    _Format(re.compile(rb"(\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18)"), "Zstandard", _read_zstd),
    _Format(re.compile(rb"PK(\x03\x04|\x05\x06)"), "zip", _read_zip),
    _Format(re.compile(rb"\xfd7zXZ\x00"), "xz"),
    _Format(re.compile(rb"7z\xbc\xaf\x27\x1c"), "7-Zip"),
    _Format(re.compile(rb"Rar!\x1a\x07"), "RAR"),
    _Format(re.compile(rb"\x04\x22\x4d\x18"), "LZ4"),
    _Format(re.compile(rb"PAR1"), "Parquet"),
)


def _detect_format(head: bytes) -> _Format | None:
    return next((file_format for file_format in _FORMATS if file_format.magic.match(head)), None)


def _is_tar(head: bytes) -> bool:
    if not head.startswith(_TAR, _TAR_OFFSET):
        return False
    try:
        # Parsing checks the checksum of the block: a document may have these letters there, too.
        tarfile.TarInfo.frombuf(head[:_HEAD_BYTES], tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _opener(path: Path) -> Callable[[Path], Iterator[bytes]] | None:
    """Return the opener for the file, by its first bytes; None for plain text. SpecError for an unsupported format."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    file_format = _detect_format(head)
    if file_format and file_format.opener is None:
        raise SpecError(
            f"{path}: {file_format.name} is not supported. Give the documents as plain text, as .gz, .bz2 or .zst, or "
            "alone in a .zip or .tar."
        )
    return file_format.opener if file_format else partial(_read_all, io.FileIO) if _is_tar(head) else None
