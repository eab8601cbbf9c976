"""What a run leaves on a server that is not ours: nothing. It touches no index but those that it makes itself."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from ingest_bench import urls
from ingest_bench.errors import IngestBenchError, RunFailed, SpecError
from ingest_bench.procedure import Ask, Procedure
from ingest_bench.serving import Serving
from ingest_bench.targets.http import Http

# As the servers have it, without what would be a pattern, several names, or an index of the server itself.
_PLAIN_NAME = re.compile(r'[^\s"*\\<>|,/?#:A-Z._+-][^\s"*\\<>|,/?#:A-Z]*')
# When it is looked again for what a bulk that was under way has made.
_LATE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The indices of a procedure. Whatever else it asks for only reads."""

    names: tuple[str, ...]
    made: frozenset[str]
    """Made by a request of their own, so that they carry the run's mark."""
    deleted: frozenset[str]
    """A track deletes them before it makes them, and the user allowed it."""


def of(procedure: Procedure) -> Footprint:
    """What the procedure touches; SpecError when that is not known, or more than its own indices. Pure."""
    if not procedure.indices_known:
        raise SpecError(
            "the documents name indices that are not known before the start; that is only for servers of ours"
        )
    made, deleted, named = set(), set(), dict.fromkeys(procedure.indices)
    for request in (request for part in procedure.parts if isinstance(part, Ask) for request in part.requests):
        names = unquote(request.path.partition("?")[0].strip("/").split("/")[0]).split(",")
        if request.method == "PUT":
            made |= set(names)
        elif request.method == "DELETE":
            deleted |= set(names)
        elif request.method == "POST":
            for name in names:
                if name not in procedure.indices:
                    raise SpecError(
                        f"{request.path}: it concerns more than the indices of this run; not on this server"
                    )
    named |= dict.fromkeys([*sorted(made), *sorted(deleted)])
    for name in named:
        if not _PLAIN_NAME.fullmatch(name):
            raise SpecError(f'"{name}": this is no plain name of an index; nothing is done to it on this server')
    return Footprint(names=tuple(named), made=frozenset(made), deleted=frozenset(deleted))


def check(serving: Serving, procedure: Procedure) -> tuple[str, ...]:
    """The indices that are not there yet; SpecError for one that is there and would be written to."""
    footprint = of(procedure)
    absent = []
    for name in footprint.names:
        there = _mapping(serving.http, name)
        if there is None:
            absent.append(name)
        elif name not in footprint.deleted:
            left = b"made_by" in there and b"ingest-bench" in there
            whose = "a run of ingest-bench left it that was killed" if left else "it is not touched"
            raise SpecError(
                f'{serving.http.origin}: there is an index "{name}" already; {whose}. Delete it yourself when nobody '
                f"needs it: curl -X DELETE {serving.http.origin}{urls.path(name)}"
            )
    return tuple(absent)


@contextlib.contextmanager
def removed(serving: Serving, procedure: Procedure, mark: str) -> Iterator[int]:
    """Afterwards what the block made is not there any more. Gives what the server counts already (only the sink does).

    Nothing is done for a server of ours: it ends with all that it has.
    """
    if serving.is_ours:
        yield 0
        return
    footprint = of(procedure)
    try:
        absent = check(serving, procedure)
    except SpecError as error:
        raise RunFailed(str(error)) from None
    before = serving.target.count_documents(serving.http, absent) if absent else 0
    try:
        yield before
    except BaseException as error:
        try:
            _remove(serving, footprint, absent, mark)
            # A bulk that was under way may have made an index anew, without our mark.
            time.sleep(_LATE_S)
            _remove(serving, dataclasses.replace(footprint, made=frozenset()), absent, mark)
        except IngestBenchError as second:
            if isinstance(error, RunFailed):
                raise RunFailed(f"{error}; and afterwards: {second}") from None
            raise second from error
        raise
    _remove(serving, footprint, absent, mark)


def _remove(serving: Serving, footprint: Footprint, absent: tuple[str, ...], mark: str) -> None:
    # A connection of its own: an interrupted question may still wait for its answer on the other one.
    with serving.asking() as http:
        for name in footprint.names:
            there = _mapping(http, name)
            ours = mark.encode() in there if there is not None and name in footprint.made else name in absent
            if there is None or not ours:
                continue
            answer = http.request("DELETE", f"{urls.path(name)}", timeout_s=120)
            if answer.status not in (200, 404):
                said = answer.body[:300].decode(errors="replace")
                raise RunFailed(f'{http.origin}: the index "{name}" of this run could not be deleted: {said}')


def _mapping(http: Http, name: str) -> bytes | None:
    """The mapping of an index or alias; None where there is none."""
    answer = http.request("GET", f"{urls.path(name, '_mapping')}")
    if answer.status == 404:
        return None
    if answer.status != 200:
        said = answer.body[:300].decode(errors="replace")
        raise SpecError(f'{http.origin}: whether there is an index "{name}" cannot be seen ({answer.status}): {said}')
    return answer.body
