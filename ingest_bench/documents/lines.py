"""The lines of a plain or compressed file, block by block, whole or by byte range."""

from __future__ import annotations

import bz2
import gzip
import itertools
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np
import zstandard

from ingest_bench.documents.actions import is_action_line, items
from ingest_bench.errors import SpecError
from ingest_bench.inputs import files

CHUNK_BYTES = 4 * 1024**2
# Servers take requests of 100 MB unless they are told otherwise (http.max_content_length).
_LONGEST_LINE_BYTES = 256 * 1024**2
# A block of 4 bytes can mean 128 KiB (RFC 8878, RLE blocks): no more than 64 MiB come out of so much at once.
_ZSTD_BYTES = 2048


def packing(name: str) -> str:
    """What a file of that name is packed with, as the end of its name: ".gz"; empty where it is plain."""
    return next((ending for ending in OPENERS if name.endswith(ending)), "")


def chunks(path: Path, start: int = 0, end: int | None = None, *, name: str = "") -> Iterator[bytes]:
    """The content in pieces, unpacked by the name of the file, or by `name`; a byte range of a plain file.

    SpecError when it cannot be read.
    """
    try:
        files.check(path)
        if packed := packing(name or path.name):
            yield from OPENERS[packed](path)
        else:
            with path.open("rb") as file:
                yield from _range(file, start, end)
    except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        raise SpecError(f"{path}: cannot be unpacked: {error}; the file is damaged or cut off, get it again") from None
    except OSError as error:
        # bz2 says of damaged data that it is an OSError, without a number.
        what = "cannot be read" if error.errno else "cannot be unpacked"
        raise SpecError(f"{path}: {what}: {error.strerror or error}") from None


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
    if not packing(path.name):
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


def _range(file: IO[bytes], start: int, end: int | None) -> Iterator[bytes]:
    file.seek(start)
    left = CHUNK_BYTES if end is None else end - start
    while piece := file.read(min(CHUNK_BYTES, left)):
        yield piece
        left = CHUNK_BYTES if end is None else left - len(piece)


def _gzip(path: Path) -> Iterator[bytes]:
    with gzip.open(path, "rb") as file:
        while piece := file.read(CHUNK_BYTES):
            yield piece


def _bz2(path: Path) -> Iterator[bytes]:
    with bz2.open(path, "rb") as file:
        while piece := file.read(CHUNK_BYTES):
            yield piece


def _zstd(path: Path) -> Iterator[bytes]:
    # A stream reader takes a cut frame for the end of the file. This one does not, and takes frame after frame.
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    with path.open("rb") as file:
        while packed := file.read(_ZSTD_BYTES):
            while packed:
                if unpacker.eof:
                    unpacker = zstandard.ZstdDecompressor().decompressobj()
                if piece := unpacker.decompress(packed):
                    yield piece
                packed = unpacker.unused_data if unpacker.eof else b""
    if not unpacker.eof:
        raise EOFError("it ends inside a frame")


OPENERS: Mapping[str, Callable[[Path], Iterator[bytes]]] = {".gz": _gzip, ".bz2": _bz2, ".zst": _zstd}
