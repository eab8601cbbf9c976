"""One file over HTTP that goes on where it broke off, with nothing but the standard library.

Beside the file `NAME.part` stands `NAME.from`: where it comes from, so that it only goes on with the same file.
"""

from __future__ import annotations

import contextlib
import http.client
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.units import format_bytes

_PIECE_BYTES = 1024**2
_ANSWER_LIMIT_S = 30.0
# A server that drips is given up: less than this in such a time is no download.
_LEAST_BYTES, _LEAST_IN_S = 64 * 1024, 60.0
# How often it is asked again in a row without a byte of progress, and how long it is waited for before.
_ATTEMPTS = 5
_AGAIN_S = 1.0
# Beside the file itself: room for what else writes there.
_SPARE_BYTES = 64 * 1024**2

Tell = Callable[[int, int | None], None]
"""Called with the bytes that are here and those in all (None: not known)."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows where a server sends us, and never from https to anything else."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """The request to the new place."""
        scheme = newurl.partition("://")[0]
        if scheme != "https" and (scheme != "http" or req.type == "https"):
            raise RunFailed(f"{req.full_url}: the server sends us on to {newurl}, which is not as safe; not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_Redirects)


class _Complete(Exception):
    """The server has no more bytes than are here."""


class _Broken(Exception):
    """The connection broke, or the server cannot now: it is asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server has, from a byte on."""

    body: http.client.HTTPResponse
    start_bytes: int
    """Where it begins: not where it was asked for when the server knows no ranges."""
    total_bytes: int | None
    """Of the whole file; None: the server does not say it."""
    validator: str
    """Its ETag or its time of change: the same file has the same one. Empty: the server says neither."""


class Download:
    """One file on its way to `part`, which has `size_bytes` in the end when those are known."""

    def __init__(
        self,
        url: str,
        part: Path,
        size_bytes: int | None,
        tell: Tell,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._url, self._wanted = url, size_bytes
        self._part, self._tell, self._sleep, self._clock = part, tell, sleep, clock
        self._came, self._came_before, self._looked_at = 0, 0, clock()

    def whole(self) -> None:
        """All of it is in the part file; RunFailed keeps what came so far."""
        attempts = 0
        while True:
            before = size(self._part)
            try:
                self._go_on()
            except _Complete:
                return
            except _Broken as error:
                attempts = 1 if size(self._part) > before else attempts + 1
                if attempts >= _ATTEMPTS:
                    raise RunFailed(
                        f"{self._url}: {error}, {_ATTEMPTS} times in a row. {format_bytes(size(self._part))} are "
                        "kept; say --download again, and it goes on from there"
                    ) from None
                self._sleep(_AGAIN_S * 2 ** (attempts - 1))
            else:
                return

    def _go_on(self) -> None:
        have = size(self._part)
        if self._wanted is not None and have == self._wanted:
            return
        if self._wanted is not None and have > self._wanted:
            have = 0
        known = _read(from_(self._part))
        if not known.startswith(f"{self._url}\n"):
            have = 0
        with self._asked(have, known.partition("\n")[2] if have else "") as answer:
            self._refuse_another_size(answer)
            self._refuse_without_room(answer)
            with self._part.open("r+b" if answer.start_bytes else "wb") as out:
                out.seek(answer.start_bytes)
                out.truncate()
                # Not before: who is killed between the two would go on with another file's bytes.
                from_(self._part).write_text(f"{self._url}\n{answer.validator}")
                self._copy(answer, out)
        if answer.total_bytes is not None and size(self._part) < answer.total_bytes:
            raise _Broken("the connection ended in the middle")

    def _copy(self, answer: Answer, out: IO[bytes]) -> None:
        have = answer.start_bytes
        total = answer.total_bytes if answer.total_bytes is not None else self._wanted
        while True:
            try:
                piece = answer.body.read1(_PIECE_BYTES)
            except (OSError, http.client.HTTPException) as error:
                raise _Broken(f"the connection broke ({type(error).__name__}: {error})") from None
            if not piece:
                return
            have += len(piece)
            if total is not None and have > total:
                raise RunFailed(
                    f"{self._url}: the server sent more than the {total:,} bytes that it has; ask its owner"
                )
            out.write(piece)
            self._tell(have, total)
            self._refuse_drops(len(piece), have)

    def _refuse_drops(self, more_bytes: int, have_bytes: int) -> None:
        """RunFailed for a server that only drips, over however many connections."""
        self._came += more_bytes
        lasted_s = self._clock() - self._looked_at
        if lasted_s <= _LEAST_IN_S:
            return
        came = self._came - self._came_before
        if came < _LEAST_BYTES:
            raise RunFailed(
                f"{self._url}: only {came:,} bytes came in {lasted_s:.0f} s. {format_bytes(have_bytes)} are kept; say "
                "--download again later, and it goes on from there"
            )
        self._came_before, self._looked_at = self._came, self._looked_at + lasted_s

    @contextlib.contextmanager
    def _asked(self, start_bytes: int, validator: str) -> Iterator[Answer]:
        headers = {"Accept-Encoding": "identity", "User-Agent": "ingest-bench"}
        if start_bytes:
            headers["Range"] = f"bytes={start_bytes}-"
            if validator:
                headers["If-Range"] = validator
        request = urllib.request.Request(self._url, headers=headers)  # noqa: S310 - `missing` lets http and https pass
        try:
            opened = _OPENER.open(request, timeout=_ANSWER_LIMIT_S)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{start_bytes}":
                    raise _Complete from None
                self._explain(error.code, error.reason)
        except urllib.error.URLError as error:
            raise _Broken(f"cannot be reached ({error.reason})") from None
        except (OSError, http.client.HTTPException) as error:
            raise _Broken(f"was not answered ({type(error).__name__}: {error})") from None
        with opened as body:
            yield _answer(body, start_bytes)

    def _explain(self, status: int, reason: str) -> NoReturn:
        if status == 416:
            self._part.unlink(missing_ok=True)
            raise _Broken("the server has less than was there before")
        if status == 429 or status >= 500:
            raise _Broken(f"was answered {status} {reason}")
        raise RunFailed(
            f'{self._url}: was answered {status} {reason}; is the track\'s "base-url" right? Or put the file '
            "into the folder of the track"
        )

    def _refuse_another_size(self, answer: Answer) -> None:
        if self._wanted is not None and answer.total_bytes not in (None, self._wanted):
            raise RunFailed(
                f"{self._url}: the server has {answer.total_bytes:,} bytes, the track says {self._wanted:,}: "
                "it is another file. Nothing was downloaded; update the track, or ask who publishes it"
            )

    def _refuse_without_room(self, answer: Answer) -> None:
        if answer.total_bytes is None:
            return
        needed, free = answer.total_bytes - answer.start_bytes, shutil.disk_usage(self._part.parent).free
        if needed + _SPARE_BYTES > free:
            raise MissingCapability(
                f"{self._url}: {format_bytes(needed)} are still to come, and {format_bytes(free)} are free in "
                f"{self._part.parent}. Make room, or set INGEST_BENCH_CACHE to another folder"
            )


def _answer(body: http.client.HTTPResponse, asked_bytes: int) -> Answer:
    length = body.headers.get("Content-Length", "")
    size = int(length) if length.isascii() and length.isdecimal() else None
    start = 0
    if body.status == 206:
        # bytes FIRST-LAST/ALL
        unit, _, span = body.headers.get("Content-Range", "").partition(" ")
        first, whole = span.partition("-")[0], span.rpartition("/")[2]
        if unit != "bytes" or first != str(asked_bytes):
            raise _Broken("the server answered with another range than it was asked for")
        start, size = asked_bytes, int(whole) if whole.isascii() and whole.isdecimal() else None
    validator = body.headers.get("ETag", "")
    if not validator or validator.startswith("W/"):
        validator = body.headers.get("Last-Modified", "")
    return Answer(body=body, start_bytes=start, total_bytes=size, validator=validator)


def size(path: Path) -> int:
    """Its bytes; 0 when it is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def from_(part: Path) -> Path:
    """The file beside it that says where it comes from."""
    return part.with_suffix(".from")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, UnicodeDecodeError):
        return ""
