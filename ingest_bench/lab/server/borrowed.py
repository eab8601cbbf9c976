"""What a run leaves on a server that is not ours: nothing. It touches no index but those that it makes itself."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import unquote

from ingest_bench.errors import IngestBenchError, RunFailed, SpecError
from ingest_bench.inputs import urls
from ingest_bench.lab.server.running_server import RunningServer
from ingest_bench.lab.steps.parts import Procedure
from ingest_bench.targets.http import Http

# As the servers have it, without what would be a pattern, several names, or an index of the server itself.
_PLAIN_NAME = re.compile(r'[^\s"*\\<>|,/?#:A-Z._+-][^\s"*\\<>|,/?#:A-Z]*')
# When it is looked again for what a bulk that was under way has made.
_LATE_S = 1.0


Kind = Literal["index", "_data_stream", "_index_template", "_component_template", "_template", "_ingest/pipeline"]
# Streams before what they are made from, and templates before their parts.
_ORDER: tuple[Kind, ...] = get_args(Kind)
_CALLED: Mapping[Kind, str] = {
    "index": "an index",
    "_data_stream": "a data stream",
    "_index_template": "an index template",
    "_component_template": "a component template",
    "_template": "an index template",
    "_ingest/pipeline": "an ingest pipeline",
}


@dataclass(frozen=True, slots=True, order=True)
class Thing:
    """Something that a server keeps under a name."""

    kind: Kind
    name: str

    @property
    def path(self) -> str:
        """Where it is deleted, and, but for an index, looked at."""
        return urls.path(self.name) if self.kind == "index" else f"/{self.kind}{urls.path(self.name)}"

    def __str__(self) -> str:
        return f'{_CALLED[self.kind]} "{self.name}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSet:
    """What a procedure writes to. Whatever else it asks for only reads."""

    things: tuple[Thing, ...]
    """In the order in which they can be deleted."""
    made: frozenset[Thing]
    """Made by a request of their own that carries the run's mark."""
    deleted: frozenset[Thing]
    """A track declares them and deletes them before it makes them, and the user allowed it."""


def write_set(procedure: Procedure) -> WriteSet:
    """What the procedure touches; SpecError when that is not known, or more than its own indices. Pure."""
    if not procedure.indices_known:
        raise SpecError(
            "the documents name indices that are not known before the start; that is only for servers of ours"
        )
    made: set[Thing] = set()
    deleted: set[Thing] = set()
    for request in procedure.requests:
        path = request.path.partition("?")[0]
        things = _things(path)
        if request.method == "PUT":
            made |= things
        elif request.method == "DELETE":
            deleted |= things
        elif request.method == "POST":
            for thing in things:
                if thing.name not in procedure.indices:
                    raise SpecError(
                        f"{request.path}: it concerns more than the indices of this run; not on this server"
                    )
    streams = {thing.name for thing in made | deleted if thing.kind == "_data_stream"}
    written = {Thing("_data_stream" if name in streams else "index", name) for name in procedure.indices}
    found = made | deleted | written
    for thing in sorted(found):
        if not _PLAIN_NAME.fullmatch(thing.name):
            raise SpecError(
                f'"{thing.name}": this is no plain name ({_CALLED[thing.kind]}); nothing is done to it on this server'
            )
    return WriteSet(
        things=tuple(sorted(found, key=lambda thing: (_ORDER.index(thing.kind), thing.name))),
        made=frozenset(thing for thing in made if thing.kind != "_data_stream"),
        # Of what it does not make or write to a track may only say that it shall not be there.
        deleted=frozenset(deleted & (made | written)),
    )


def _things(path: str) -> set[Thing]:
    """What a request's path names."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    for kind in _ORDER:
        length = kind.count("/") + 1
        if "/".join(parts[:length]) == kind and len(parts) > length:
            return {Thing(kind, name) for name in parts[length].split(",")}
    return {Thing("index", name) for name in parts[0].split(",")}


def check(server: RunningServer, procedure: Procedure) -> tuple[Thing, ...]:
    """What is not there yet; SpecError for what is there and would be written to."""
    writes = write_set(procedure)
    absent = []
    for thing in writes.things:
        there = _there(server.http, thing)
        if there is None:
            absent.append(thing)
        elif thing not in writes.deleted:
            left = b"ingest-bench" in there and (b"made_by" in there or b"made by" in there)
            whose = "a run of ingest-bench left it that was killed" if left else "it is not touched"
            raise SpecError(
                f"{server.http.origin}: there is {thing} already; {whose}. Delete it yourself when nobody "
                f"needs it: curl -X DELETE {server.http.origin}{thing.path}"
            )
    return tuple(absent)


@contextlib.contextmanager
def removed(server: RunningServer, procedure: Procedure, mark: str) -> Iterator[int | None]:
    """Afterwards what the block made is not there any more. Gives what the server counts already; None: it cannot be.

    Nothing is done for a server of ours: it ends with all that it has, and has what an earlier run left in its files.
    """
    if server.is_ours:
        yield server.target.count(server.nodes, procedure.indices if server.asked.earlier_documents else ())
        return
    writes = write_set(procedure)
    try:
        absent = check(server, procedure)
    except SpecError as error:
        raise RunFailed(str(error)) from None
    names = tuple(thing.name for thing in absent if thing.kind in ("index", "_data_stream"))
    before = server.target.count(server.nodes, names)
    try:
        yield before
    except BaseException as error:
        try:
            _remove(server, writes, absent, mark)
            # A bulk that was under way may have made an index anew, without our mark.
            time.sleep(_LATE_S)
            _remove(server, dataclasses.replace(writes, made=frozenset()), absent, mark)
        except IngestBenchError as second:
            if isinstance(error, RunFailed):
                raise RunFailed(f"{error}; and afterwards: {second}") from None
            raise second from error
        raise
    _remove(server, writes, absent, mark)


def _remove(server: RunningServer, writes: WriteSet, absent: tuple[Thing, ...], mark: str) -> None:
    # A connection of its own: an interrupted question may still wait for its answer on the other one.
    with server.asking() as http:
        for thing in writes.things:
            there = _there(http, thing)
            ours = mark.encode() in there if there is not None and thing in writes.made else thing in absent
            if there is None or not ours:
                continue
            answer = http.request("DELETE", thing.path, timeout_s=120)
            if answer.status not in (200, 404):
                said = answer.body[:300].decode(errors="replace")
                raise RunFailed(f"{http.origin}: {thing} of this run could not be deleted: {said}")


def _there(http: Http, thing: Thing) -> bytes | None:
    """What the server says of it (of an index or alias its mapping); None where there is none."""
    answer = http.request("GET", urls.path(thing.name, "_mapping") if thing.kind == "index" else thing.path)
    if answer.status == 404:
        return None
    if answer.status != 200:
        said = answer.body[:300].decode(errors="replace")
        raise SpecError(f"{http.origin}: whether there is {thing} cannot be seen ({answer.status}): {said}")
    return answer.body
