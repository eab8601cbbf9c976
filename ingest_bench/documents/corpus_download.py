"""Download of corpora over HTTP into the cache: announced, resumable, and checked.

A file in the cache under its own name is complete and checked. Until then it is `NAME.part`, which remains when a
download is interrupted, next to `NAME.from`: the URL and the validator of its source, so that only the same file is
resumed.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ingest_bench.documents import lines
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.jvm import cache
from ingest_bench.jvm.artifacts import Progress
from ingest_bench.model.load import TrackFile
from ingest_bench.units import format_bytes

_PIECE_BYTES = 1024**2
_RESPONSE_LIMIT_S = 30.0
# A slower server is given up.
_MIN_BYTES, _MIN_BYTES_PERIOD_S = 64 * 1024, 60.0
# Attempts in a row without a byte of progress, and the first wait between them.
_ATTEMPTS = 5
_RETRY_S = 1.0
# Free space to keep in addition to the file, for other writers.
_SPARE_BYTES = 64 * 1024**2


def corpora_folder() -> Path:
    """Return the folder of downloaded corpora."""
    return cache.folder() / "corpora"


def check_urls(files: Sequence[TrackFile]) -> tuple[TrackFile, ...]:
    """Return the files to download; SpecError if one can only be copied by hand."""
    for file in files:
        scheme = file.origin.url.partition("://")[0]
        if scheme not in ("http", "https"):
            name = Path(file.path).name
            reason = f"only http and https are supported, not {file.origin.url}" if scheme else "no base-url"
            raise SpecError(f"--download: {name} cannot be downloaded ({reason}); put it into the folder of the track")
    return tuple(files)


def describe_download(files: Sequence[TrackFile]) -> str:
    """Return how much is downloaded, from where and to where."""
    sizes = [_download_bytes(file) for file in files]
    remaining = [
        None if size is None else max(0, size - file_bytes(_part_file(Path(file.path))))
        for file, size in zip(files, sizes, strict=True)
    ]
    total = format_bytes(sum(size or 0 for size in remaining))
    more = " and more, of unknown size" if None in remaining else ""
    names = ", ".join(Path(file.path).name for file in files)
    origins = dict.fromkeys(file.origin.url.rpartition("/")[0] for file in files)
    return f"download {names}: {total}{more}, from {', '.join(origins)} into {corpora_folder()}"


def download_file(file: TrackFile, progress: Progress) -> None:
    """Download and check a file of a corpus. RunFailed if that fails; a repeated download resumes."""
    path = Path(file.path)
    try:
        with cache.lock(path):
            if path.is_file():
                return
            part = _part_file(path)
            Download(file.origin.url, part, _download_bytes(file), functools.partial(progress, path.name)).run()
            _check_content(file, part, progress)
            part.replace(path)
            origin_file(part).unlink(missing_ok=True)
    except OSError as error:
        free = shutil.disk_usage(path.parent if path.parent.is_dir() else "/").free
        raise MissingCapability(
            f"{path}: cannot be written: {error.strerror} ({format_bytes(free)} are free). Make room and repeat "
            "--download, which resumes; or set INGEST_BENCH_CACHE to another folder"
        ) from None


def _download_bytes(file: TrackFile) -> int | None:
    """Return the size to download, compressed or not, from the track."""
    return file.origin.compressed_bytes if lines.compression_suffix(file.path) else file.origin.uncompressed_bytes


def _part_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def origin_file(part: Path) -> Path:
    """Return the file that has the source of a partial download."""
    return part.with_suffix(".from")


def file_bytes(path: Path) -> int:
    """Return the size of a file; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _check_content(file: TrackFile, part: Path, progress: Progress) -> None:
    """Compare the file with the track; RunFailed with the difference. Only a damaged file is deleted."""
    origin, name = file.origin, Path(file.path).name
    size = line_count = 0
    last = b"\n"
    try:
        for chunk in lines.read_chunks(part, name=name):
            size += len(chunk)
            line_count += chunk.count(b"\n")
            last = chunk[-1:]
            progress(f"check {name}", size, origin.uncompressed_bytes)
            if origin.uncompressed_bytes is not None and size > origin.uncompressed_bytes:
                break
    except lines.DamagedFile as error:
        part.unlink()
        origin_file(part).unlink(missing_ok=True)
        raise RunFailed(f"{origin.url}: {error}. It was deleted") from None
    except SpecError as error:
        raise RunFailed(f"{origin.url}: {error}. What was downloaded is kept") from None
    line_count += last != b"\n"
    documents = line_count // 2 if file.has_action_lines else line_count
    for key, expected, actual in (
        ("uncompressed-bytes", origin.uncompressed_bytes, size),
        ("document-count", origin.documents, documents),
    ):
        if expected is not None and actual != expected:
            more = " or more" if key == "uncompressed-bytes" and actual > expected else ""
            raise RunFailed(
                f'{origin.url}: the download has {actual:,}{more} where the track says {expected:,} ("{key}"). Update '
                f"the track, or ask its publisher; {part} is kept, delete it to download it again"
            )


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to anything else."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Return the request to the new location."""
        scheme = newurl.partition("://")[0]
        if scheme != "https" and (scheme != "http" or req.type == "https"):
            raise RunFailed(f"{req.full_url}: the server sends us on to {newurl}, which is less safe; not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_Redirects)


class _Retriable(Exception):
    """The connection broke, or the server is temporarily unavailable."""


@dataclass(slots=True)
class Download:
    """Download of one file to *part*."""

    url: str
    part: Path
    expected_bytes: int | None
    """Size of the file; None: unknown."""
    show: Callable[[int, int | None], None]
    """Called with the downloaded and the total bytes (None: unknown)."""
    _period_bytes: int = 0
    """Bytes received since the rate was checked last."""
    _period_start_s: float = 0

    def run(self) -> None:
        """Download until the part file is complete; RunFailed keeps the received part."""
        attempts = 0
        self._period_start_s = time.monotonic()
        while True:
            before = file_bytes(self.part)
            try:
                self._resume()
            except _Retriable as error:
                attempts = 1 if file_bytes(self.part) > before else attempts + 1
                if attempts >= _ATTEMPTS:
                    raise RunFailed(
                        f"{self.url}: {error}, {_ATTEMPTS} times in a row. {format_bytes(file_bytes(self.part))} are "
                        "kept; say --download again to resume"
                    ) from None
                time.sleep(_RETRY_S * 2 ** (attempts - 1))
            else:
                return

    def _resume(self) -> None:
        """Download what is missing; a part of another file is replaced."""
        present = file_bytes(self.part)
        if present == self.expected_bytes:
            return
        is_same, validator = False, ""
        with contextlib.suppress(FileNotFoundError):
            url, _, validator = origin_file(self.part).read_text().partition("\n")
            is_same = url == self.url and (self.expected_bytes is None or present < self.expected_bytes)
        if not is_same:
            present, validator = 0, ""
        response = self._request(present, validator)
        if response is None:
            return
        with response:
            start, total = _parse_size(response, present)
            self._check_size(start, total)
            with self.part.open("r+b" if start else "wb") as file:
                file.seek(start)
                file.truncate()
                # After truncating: a kill in between would otherwise resume with another file's bytes.
                origin_file(self.part).write_text(f"{self.url}\n{_validator(response)}")
                self._copy(response, file, start, self.expected_bytes if total is None else total)
        if total is not None and file_bytes(self.part) < total:
            raise _Retriable("the connection ended in the middle")

    def _request(self, start_bytes: int, validator: str) -> http.client.HTTPResponse | None:
        """Request the file from a byte on; None if the server has no more bytes than that."""
        headers = {"Accept-Encoding": "identity", "User-Agent": "ingest-bench"}
        if start_bytes:
            headers["Range"] = f"bytes={start_bytes}-"
            if validator:
                headers["If-Range"] = validator
        request = urllib.request.Request(self.url, headers=headers)  # noqa: S310 - `check_urls` allows http and https
        try:
            response: http.client.HTTPResponse = _OPENER.open(request, timeout=_RESPONSE_LIMIT_S)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{start_bytes}":
                return None
            if error.code == 416:
                self.part.unlink(missing_ok=True)
                raise _Retriable("the server has less than before") from None
            if error.code == 429 or error.code >= 500:
                raise _Retriable(f"was answered {error.code} {error.reason}") from None
            raise RunFailed(
                f'{self.url}: was answered {error.code} {error.reason}. Check the track\'s "base-url", or put the file '
                "into the folder of the track."
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise _Retriable(f"cannot be reached ({type(error).__name__}: {error})") from None
        return response

    def _check_size(self, start_bytes: int, total_bytes: int | None) -> None:
        """Raise RunFailed for another file than the track's, MissingCapability if the disk has no space for it."""
        if total_bytes is None:
            return
        if self.expected_bytes not in (None, total_bytes):
            raise RunFailed(
                f"{self.url}: the server has {total_bytes:,} bytes, the track says {self.expected_bytes:,}: "
                "it is another file. Nothing was downloaded; update the track, or ask its publisher"
            )
        needed, free = total_bytes - start_bytes, shutil.disk_usage(self.part.parent).free
        if needed + _SPARE_BYTES > free:
            raise MissingCapability(
                f"{self.url}: {format_bytes(needed)} are still to come, and {format_bytes(free)} are free in "
                f"{self.part.parent}. Make room, or set INGEST_BENCH_CACHE to another folder"
            )

    def _copy(self, response: http.client.HTTPResponse, file: IO[bytes], present: int, total: int | None) -> None:
        while True:
            try:
                piece = response.read1(_PIECE_BYTES)
            except (OSError, http.client.HTTPException) as error:
                raise _Retriable(f"the connection broke ({type(error).__name__}: {error})") from None
            if not piece:
                return
            present += len(piece)
            if total is not None and present > total:
                raise RunFailed(f"{self.url}: the server sent more than its {total:,} bytes. Ask its owner.")
            file.write(piece)
            self.show(present, total)
            self._refuse_slow_server(len(piece), present)

    def _refuse_slow_server(self, new_bytes: int, present_bytes: int) -> None:
        """Raise RunFailed for a server below the minimum rate, over any number of connections."""
        self._period_bytes += new_bytes
        now_s = time.monotonic()
        elapsed_s = now_s - self._period_start_s
        if elapsed_s <= _MIN_BYTES_PERIOD_S:
            return
        if self._period_bytes < _MIN_BYTES:
            raise RunFailed(
                f"{self.url}: only {self._period_bytes:,} bytes came in {elapsed_s:.0f} s. "
                f"{format_bytes(present_bytes)} are kept; say --download again later to resume"
            )
        self._period_bytes, self._period_start_s = 0, now_s


def _parse_size(response: http.client.HTTPResponse, requested_bytes: int) -> tuple[int, int | None]:
    """Return the start of the content (0: the server does not support ranges) and the size of the complete file."""
    if response.status != 206:
        return 0, _parse_number(response.headers.get("Content-Length", ""))
    # bytes FIRST-LAST/ALL
    unit, _, span = response.headers.get("Content-Range", "").partition(" ")
    if unit != "bytes" or span.partition("-")[0] != str(requested_bytes):
        raise _Retriable("the server answered with another range than requested")
    return requested_bytes, _parse_number(span.rpartition("/")[2])


def _parse_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None


def _validator(response: http.client.HTTPResponse) -> str:
    """Return the strong ETag or the modification time; empty if the server reports neither."""
    etag = response.headers.get("ETag", "")
    return response.headers.get("Last-Modified", "") if not etag or etag.startswith("W/") else etag
