"""What a run leaves on a server that is not ours: nothing. It touches no index but those that it makes itself."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args
from urllib.parse import unquote

from ingest_bench.errors import IngestBenchError, RunFailed, SpecError
from ingest_bench.inputs import urls
from ingest_bench.inputs.user_json import parse_json
from ingest_bench.lab.server.request_bodies import Names
from ingest_bench.lab.server.running_server import RunningServer
from ingest_bench.lab.steps.parts import Procedure
from ingest_bench.targets.http import Http
from ingest_bench.units import quoted

# As the servers have it, but no pattern, no several names, no placeholder and no index of the server itself.
_PLAIN_NAME = re.compile(r'[^\s"*\\<>|,/?#:A-Z{}%._+-][^\s"*\\<>|,/?#:A-Z{}%]*')
# An index that holds documents of a data stream, and the name of that stream.
_BACKING = re.compile(r"\.ds-(.+?)(-[0-9]{4}\.[0-9]{2}\.[0-9]{2})?-[0-9]{6}")
# Templates and pipelines of Elasticsearch include parts that end so as soon as they are there ("logs@custom").
_INCLUDED = "@custom"
_INCLUDED_BY: Mapping[str, str] = {"_component_template": "/_index_template", "_ingest/pipeline": "/_ingest/pipeline"}
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
    absent: tuple[Thing, ...]
    """Names that must lead to nothing: aliases, patterns of templates, component templates that are not made."""
    pipelines: tuple[str, ...]
    """Pipelines that are used. The server may have them already."""


def write_set(procedure: Procedure) -> WriteSet:
    """What the procedure touches; SpecError when that is not known, or more than its own indices. Pure."""
    if not procedure.indices_known:
        raise SpecError(
            "the documents name indices that are not known before the start; that is only for servers of ours"
        )
    created, deleted, names = _read_requests(procedure)
    streams = {thing.name for thing in created | deleted if thing.kind == "_data_stream"}
    written = {Thing("_data_stream" if name in streams else "index", name) for name in procedure.indices}
    things = created | deleted | written
    patterns = {Thing("index", name) for name in names.patterns}
    absent = {Thing("index", name) for name in names.aliases} | patterns
    absent |= {Thing("_component_template", name) for name in names.components}
    # An index or an alias of a data stream's name would take the documents.
    absent |= {Thing("index", name) for name in streams & set(procedure.indices)}
    pipelines = {Thing("_ingest/pipeline", name) for name in names.pipelines}
    for name in sorted(names.patterns):
        if name.startswith("*") or not _PLAIN_NAME.fullmatch(name.replace("*", "")):
            raise SpecError(
                f'a template of the track holds for "{name}", also where indices are not of this run; on this server a '
                "pattern must begin with a name, such as logs-mine-*"
            )
    for thing in sorted(things | (absent - patterns) | pipelines):
        if not _is_plain(thing):
            raise SpecError(
                f'"{thing.name}": this is no plain name ({_CALLED[thing.kind]}); nothing is done to it on this server'
            )
    return WriteSet(
        things=tuple(sorted(things, key=lambda thing: (_ORDER.index(thing.kind), thing.name))),
        made=frozenset(thing for thing in created if thing.kind != "_data_stream"),
        # Of what it does not make or write to a track may only say that it shall not be there.
        deleted=frozenset(deleted & (created | written)),
        absent=tuple(sorted(absent - things)),
        pipelines=tuple(sorted(thing.name for thing in pipelines - (created - deleted))),
    )


def _read_requests(procedure: Procedure) -> tuple[set[Thing], set[Thing], Names]:
    """Return what the requests make, what they delete, and the names in their bodies."""
    created: set[Thing] = set()
    deleted: set[Thing] = set()
    names = Names(pipelines=set(procedure.pipelines) - {"_none"})
    for request in procedure.requests:
        things = _things(request.path.partition("?")[0])
        if request.method == "PUT":
            created |= things
            for thing in things:
                _read_body(names, thing, request.body or {})
        elif request.method == "DELETE":
            deleted |= things
        elif request.method == "POST" and any(thing.name not in procedure.indices for thing in things):
            raise SpecError(f"{request.path}: it concerns more than the indices of this run; not on this server")
    return created, deleted, names


def _read_body(names: Names, thing: Thing, body: Mapping[str, Any]) -> None:
    try:
        names.read(thing.kind, body)
    except ValueError as error:
        raise SpecError(f"{thing}: {error}; not on this server, which has indices of others") from None
    except RecursionError:
        raise SpecError(f"{thing}: its body is nested too deeply; no track has one") from None


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
        elif _owners(thing, there) != {thing}:
            raise SpecError(f'{server.http.origin}: "{thing.name}" leads to other indices; they are not deleted')
    _check_names(server.http, writes)
    return tuple(absent)


def check_made(server: RunningServer, procedure: Procedure) -> None:
    """Raise RunFailed if a template of the server gives an index of the run an alias or a pipeline of others.

    Called before each load. An existing index is checked as it is, a missing one as the server would create it.
    """
    if server.is_ours or not procedure.indices:
        return
    writes, names = write_set(procedure), Names()
    try:
        for name in procedure.indices:
            for body in _index_bodies(server.http, name):
                names.read_index({key: body[key] for key in ("settings", "aliases") if body.get(key)})
        aliases = {Thing("index", alias) for alias in names.aliases} - set(writes.things)
        given = WriteSet(
            things=(),
            made=frozenset(),
            deleted=frozenset(writes.things),
            absent=tuple(sorted(aliases)),
            pipelines=tuple(sorted(names.pipelines)),
        )
        _check_names(server.http, given)
    except (SpecError, ValueError) as error:
        raise RunFailed(
            f"{error}. A template of the server says so for an index of this run; documents are not sent"
        ) from None


def _index_bodies(http: Http, name: str) -> list[Any]:
    """Return the bodies of an index or of those of a data stream; for a missing one, what templates would give it."""
    indices = _answer(http, "GET", urls.path(name), missing=(404,))
    if indices is not None:
        return [body for body in indices.values() if isinstance(body, dict)]
    # Before 7.9 there is no such request, and before 7.8 there are no such templates.
    simulated = _answer(http, "POST", f"/_index_template/_simulate_index{urls.path(name)}", missing=(400, 404, 405))
    if simulated and simulated.get("template"):
        return [simulated["template"]]
    old = _answer(http, "GET", "/_template", missing=(404,)) or {}
    # Before 6.0 "template" was the pattern.
    patterns = ((body, body.get("index_patterns") or [body.get("template")]) for body in old.values())
    return [body for body, each in patterns if any(_matches(str(pattern), name) for pattern in each)]


def _matches(pattern: str, name: str) -> bool:
    return bool(re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name))


def _answer(http: Http, method: str, path: str, missing: tuple[int, ...]) -> dict[str, Any] | None:
    """The object in an answer; None for the statuses that mean that there is none."""
    answer = http.request(method, path)
    if answer.status in missing:
        return None
    if answer.status != 200:
        reply = answer.body[:300].decode(errors="replace")
        raise SpecError(f"{http.origin}: what an index gets cannot be seen ({method} {path}, {answer.status}): {reply}")
    return _object(answer.body)


def _check_names(http: Http, writes: WriteSet) -> None:
    """Raise SpecError if a name in the body of a request leads to something that is not of this run."""
    for thing in writes.absent:
        there = _there(http, thing)
        others = (_owners(thing, there) if there is not None else set()) - writes.deleted
        if others:
            raise SpecError(
                f'{http.origin}: a request names "{thing.name}", and there is {min(others)} already; it is not touched'
            )
    for thing in writes.made:
        by = _INCLUDED_BY.get(thing.kind) if thing.name.endswith(_INCLUDED) else None
        if by and f'"{thing.name}"'.encode() in http.request("GET", by).body:
            raise SpecError(f"{http.origin}: {thing} would become a part of others that are there (GET {by})")
    names, read = Names(pipelines=set(writes.pipelines)), set[str]()
    while unread := names.pipelines - read:
        thing = Thing("_ingest/pipeline", min(unread))
        read.add(thing.name)
        if not _is_plain(thing):
            raise SpecError(f'{http.origin}: "{thing.name}" is no plain name (an ingest pipeline)')
        # One that is not there the server refuses itself.
        body = _object(_there(http, thing) or b"{}").get(thing.name, {})
        try:
            names.read_pipeline(body)
        except ValueError as error:
            raise SpecError(f"{http.origin}: {thing} is used: {error}; documents are not sent through it") from None


def _owners(thing: Thing, there: bytes) -> set[Thing]:
    """Return what a name leads to: itself, or the indices and data streams in the answer to GET NAME/_mapping."""
    names = _object(there).keys() if thing.kind == "index" else ()
    if not names:
        # A pattern without indices leads to nothing; Elasticsearch 5 names no index that has no mapping.
        return set() if "*" in thing.name else {thing}
    backing = {name: _BACKING.fullmatch(name) for name in names}
    return {Thing("_data_stream", match[1]) if match else Thing("index", name) for name, match in backing.items()}


def _is_plain(thing: Thing) -> bool:
    """Return True if the name is that of one thing. Only names of indices must be in lower case."""
    # A lone surrogate, which JSON can have, has no form in a path. Other such characters are invisible in a message.
    return thing.name.isprintable() and bool(
        _PLAIN_NAME.fullmatch(thing.name if thing.kind == "index" else thing.name.lower())
    )


def _object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in an answer; SpecError for anything else."""
    try:
        value = parse_json(body.decode())
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise SpecError(f"an answer of the server is no JSON object: {quoted(body)}; whether it is safe is not known")
    return value


@contextlib.contextmanager
def removed(server: RunningServer, procedure: Procedure, mark: str) -> Iterator[int | None]:
    """Afterwards what the block made is not there any more. Gives what the server counts already; None: it cannot be.

    Nothing is done for a server of ours: it ends with all that it has, and has what an earlier run left in its files.
    """
    if server.is_ours:
        yield server.count(procedure.indices if server.asked.earlier_documents else ())
        return
    writes = write_set(procedure)
    try:
        absent = check(server, procedure)
    except SpecError as error:
        raise RunFailed(str(error)) from None
    names = tuple(thing.name for thing in absent if thing.kind in ("index", "_data_stream"))
    before = server.count(names)
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
            if _owners(thing, there) != {thing}:
                # An alias: it goes with its index.
                continue
            answer = http.request("DELETE", thing.path, timeout_s=120)
            if answer.status not in (200, 404):
                said = answer.body[:300].decode(errors="replace")
                raise RunFailed(f"{http.origin}: {thing} of this run could not be deleted: {said}")


def _there(http: Http, thing: Thing) -> bytes | None:
    """What the server says of it (of an index or alias its mapping); None where there is none."""
    path = f"{urls.path(thing.name, '_mapping')}?expand_wildcards=all" if thing.kind == "index" else thing.path
    answer = http.request("GET", path)
    if answer.status == 404:
        return None
    if answer.status != 200:
        said = answer.body[:300].decode(errors="replace")
        raise SpecError(f"{http.origin}: whether there is {thing} cannot be seen ({answer.status}): {said}")
    return answer.body
