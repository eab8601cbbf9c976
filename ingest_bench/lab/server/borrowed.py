"""Protection of a server that is not ours: a run changes only objects that it creates itself, and removes them.

By its body a request reaches further than its path: an alias may lead to other indices, a template applies to each new
index of its patterns, and a pipeline can redirect a document. So only keys and processors of known effect are accepted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args
from urllib.parse import unquote

from ingest_bench.errors import IngestBenchError, RunFailed, SpecError
from ingest_bench.inputs import urls
from ingest_bench.inputs.user_json import parse_json
from ingest_bench.lab.planning import Procedure
from ingest_bench.lab.server.running_server import RunningServer
from ingest_bench.targets.cassandra.node import Cassandra
from ingest_bench.targets.custom import Custom
from ingest_bench.targets.http import Http, open_http
from ingest_bench.units import quote_value

T = TypeVar("T")

# The servers' own rule, without patterns, lists, placeholders and indices of the server itself.
_PLAIN_NAME = re.compile(r'[^\s"*\\<>|,/?#:A-Z{}%._+-][^\s"*\\<>|,/?#:A-Z{}%]*')
# A backing index of a data stream, and the name of that stream.
_BACKING = re.compile(r"\.ds-(.+?)(-[0-9]{4}\.[0-9]{2}\.[0-9]{2})?-[0-9]{6}")
# Templates and pipelines of Elasticsearch include existing objects with this suffix ("logs@custom").
_INCLUDED = "@custom"
_INCLUDED_BY: Mapping[str, str] = {"_component_template": "/_index_template", "_ingest/pipeline": "/_ingest/pipeline"}
# Delay before objects are removed again that a pending bulk request created.
_LATE_S = 1.0


Kind = Literal["index", "_data_stream", "_index_template", "_component_template", "_template", "_ingest/pipeline"]
# Order of deletion: streams before their templates, templates before their components.
_ORDER: tuple[Kind, ...] = get_args(Kind)
_KIND_NAMES: Mapping[Kind, str] = {
    "index": "an index",
    "_data_stream": "a data stream",
    "_index_template": "an index template",
    "_component_template": "a component template",
    "_template": "an index template",
    "_ingest/pipeline": "an ingest pipeline",
}


# --- What a procedure writes to (pure)


@dataclass(frozen=True, slots=True, order=True)
class ServerObject:
    """A named object of a server."""

    kind: Kind
    name: str

    @property
    def path(self) -> str:
        """Path to delete it, and to get it unless it is an index."""
        return urls.join_path(self.name) if self.kind == "index" else f"/{self.kind}{urls.join_path(self.name)}"

    def __str__(self) -> str:
        return f'{_KIND_NAMES[self.kind]} "{self.name}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSet:
    """The objects that a procedure writes to. All its other requests only read."""

    things: tuple[ServerObject, ...] = ()
    """In an order in which they can be deleted."""
    created: frozenset[ServerObject] = frozenset()
    """Created by a request of their own that carries the run's mark."""
    deleted: frozenset[ServerObject]
    """Deleted by a track before it creates them, with the user's permission."""
    absent: tuple[ServerObject, ...]
    """Names that must not exist: aliases, patterns of templates, component templates that are not created."""
    pipelines: tuple[str, ...]
    """Pipelines that are used and may exist already."""


def compute_write_set(procedure: Procedure) -> WriteSet:
    """Return the objects that the procedure writes to; SpecError if unknown, or if others are affected."""
    if not procedure.indices_known:
        raise SpecError(
            "the documents name indices that are unknown before the start. Only a launched server can take them."
        )
    created, deleted, names = _read_requests(procedure)
    streams = {thing.name for thing in created | deleted if thing.kind == "_data_stream"}
    written = {ServerObject("_data_stream" if name in streams else "index", name) for name in procedure.indices}
    things = created | deleted | written
    patterns = {ServerObject("index", name) for name in names.patterns}
    absent = {ServerObject("index", name) for name in names.aliases} | patterns
    absent |= {ServerObject("_component_template", name) for name in names.components}
    # An index or an alias with a data stream's name would take its documents.
    absent |= {ServerObject("index", name) for name in streams & set(procedure.indices)}
    pipelines = {ServerObject("_ingest/pipeline", name) for name in names.pipelines}
    for name in sorted(names.patterns):
        if name.startswith("*") or not _PLAIN_NAME.fullmatch(name.replace("*", "")):
            raise SpecError(
                f'a template of the track applies to "{name}", which includes indices of others. On this server a '
                "pattern must begin with a name, such as logs-mine-*."
            )
    for thing in sorted(things | (absent - patterns) | pipelines):
        if not _is_plain(thing):
            raise SpecError(
                f'"{thing.name}" is not a plain name ({_KIND_NAMES[thing.kind]}), so it is not written on this server'
            )
    return WriteSet(
        things=tuple(sorted(things, key=lambda thing: (_ORDER.index(thing.kind), thing.name))),
        created=frozenset(thing for thing in created if thing.kind != "_data_stream"),
        # A track may only require that objects are absent which it does not create or write to.
        deleted=frozenset(deleted & (created | written)),
        absent=tuple(sorted(absent - things)),
        pipelines=tuple(sorted(thing.name for thing in pipelines - (created - deleted))),
    )


def _read_requests(procedure: Procedure) -> tuple[set[ServerObject], set[ServerObject], Names]:
    """Return the objects that the requests create and delete, and the names in their bodies."""
    created: set[ServerObject] = set()
    deleted: set[ServerObject] = set()
    names = Names(pipelines=set(procedure.pipelines) - {"_none"})
    for request in procedure.requests:
        things = _objects_of(request.path.partition("?")[0])
        if request.method == "PUT":
            created |= things
            for thing in things:
                try:
                    names.read(thing.kind, request.body or {})
                except ValueError as error:
                    reason = f"{error}; refused on this server, which has indices of others"
                    raise SpecError(f"{thing}: {reason}") from None
                except RecursionError:
                    raise SpecError(f"{thing}: its body is nested too deeply") from None
        elif request.method == "DELETE":
            deleted |= things
        elif request.method == "POST" and any(thing.name not in procedure.indices for thing in things):
            raise SpecError(f"{request.path}: it affects more than the indices of this run; refused on this server")
    return created, deleted, names


def _objects_of(path: str) -> set[ServerObject]:
    parts = [unquote(part) for part in path.strip("/").split("/")]
    for kind in _ORDER:
        length = kind.count("/") + 1
        if "/".join(parts[:length]) == kind and len(parts) > length:
            return {ServerObject(kind, name) for name in parts[length].split(",")}
    return {ServerObject("index", name) for name in parts[0].split(",")}


def _is_plain(thing: ServerObject) -> bool:
    """Return True if the name denotes one object. Only names of indices must be in lower case."""
    # A lone surrogate, which JSON can contain, cannot be in a path. Other such characters are invisible in a message.
    return thing.name.isprintable() and bool(
        _PLAIN_NAME.fullmatch(thing.name if thing.kind == "index" else thing.name.lower())
    )


# --- Checks and cleanup on the server


@contextlib.contextmanager
def clean_up_after(server: RunningServer, procedure: Procedure, mark: str) -> Iterator[int | None]:
    """Remove what the block created. Yield the number of documents before it; None if the server cannot count.

    Do nothing on a launched server: it ends with all its data, and may have preloaded documents. A custom target's file
    says what is created and removed.
    """
    if isinstance(server.target, Custom):
        with _prepare_custom(server, server.target):
            yield server.count(())
        return
    if server.is_launched:
        yield server.count(procedure.indices if server.options.preloaded_documents else ())
        return
    if isinstance(server.target, Cassandra):
        drop = functools.partial(server.target.drop, server.http)
        with _finish(drop, drop):
            yield 0
        return
    writes = compute_write_set(procedure)
    try:
        absent = check_conflicts(server, procedure)
    except SpecError as error:
        raise RunFailed(str(error)) from None
    names = tuple(thing.name for thing in absent if thing.kind in ("index", "_data_stream"))
    before = server.count(names)

    def remove() -> None:
        _remove(server, writes, absent, mark)

    def remove_after_error() -> None:
        remove()
        # A pending bulk request may have created an index again, without our mark.
        time.sleep(_LATE_S)
        _remove(server, dataclasses.replace(writes, created=frozenset()), absent, mark)

    with _finish(remove, remove_after_error):
        yield before


@contextlib.contextmanager
def _prepare_custom(server: RunningServer, target: Custom) -> Iterator[None]:
    """Send the requests of a custom target's file before the block, and those that clean up after it.

    If one of the first fails, the others are not sent: what it would create may exist and be the user's.
    """
    nodes = (*server.nodes, *server.others)

    def clean_up() -> None:
        # Separate connections: an interrupted request may still be waiting for its response on the others.
        with contextlib.ExitStack() as stack:
            target.clean_up_nodes([stack.enter_context(open_http(http.address, http.enter)) for http in nodes])

    target.prepare_nodes(nodes)
    # A launched server ends with all its data, and after an error it may have ended already.
    with _finish(clean_up, (lambda: None) if server.is_launched else clean_up):
        yield


@contextlib.contextmanager
def _finish(after_success: Callable[[], None], after_error: Callable[[], None]) -> Iterator[None]:
    """Call one of the functions after the block; an error of it never hides the block's own."""
    try:
        yield
    except BaseException as error:
        try:
            after_error()
        except IngestBenchError as second:
            if isinstance(error, RunFailed):
                raise RunFailed(f"{error}; the cleanup failed too: {second}") from None
            raise second from error
        raise
    after_success()


def check_conflicts(server: RunningServer, procedure: Procedure) -> tuple[ServerObject, ...]:
    """Return the objects that do not exist yet; SpecError for an existing object that would be written to."""
    if isinstance(server.target, Cassandra):
        # Its keyspace is of this run alone, with a random name.
        return ()
    writes = compute_write_set(procedure)
    absent = []
    for thing in writes.things:
        content = _get(server.http, thing)
        if content is None:
            absent.append(thing)
        elif thing not in writes.deleted:
            is_leftover = b"ingest-bench" in content and (b"made_by" in content or b"made by" in content)
            owner = "a killed run of ingest-bench left it" if is_leftover else "it is not touched"
            raise SpecError(
                f"{server.http.origin}: there is {thing} already; {owner}. If it is not needed, delete it: "
                f"curl -X DELETE {server.http.origin}{thing.path}"
            )
        elif _owners(thing, content) != {thing}:
            raise SpecError(f'{server.http.origin}: "{thing.name}" leads to other indices; they are not deleted')
    _check_names(server.http, writes)
    return tuple(absent)


def check_templates(server: RunningServer, procedure: Procedure) -> None:
    """Raise RunFailed if a template of the server gives an index of the run an alias or a pipeline of others.

    Called before each load. An existing index is checked as it is, a missing one as the server would create it.
    """
    if server.is_launched or isinstance(server.target, Cassandra) or not procedure.indices:
        return
    writes, names = compute_write_set(procedure), Names()
    try:
        for name in procedure.indices:
            for body in _index_bodies(server.http, name):
                names.read_index({key: body[key] for key in ("settings", "aliases") if body.get(key)})
        aliases = {ServerObject("index", alias) for alias in names.aliases} - set(writes.things)
        from_templates = WriteSet(
            deleted=frozenset(writes.things),
            absent=tuple(sorted(aliases)),
            pipelines=tuple(sorted(names.pipelines)),
        )
        _check_names(server.http, from_templates)
    except (SpecError, ValueError) as error:
        raise RunFailed(
            f"{error}. A template of the server requires it for an index of this run; documents are not sent."
        ) from None


def _check_names(http: Http, writes: WriteSet) -> None:
    """Raise SpecError if a name in the body of a request leads to an object that is not of this run."""
    for thing in writes.absent:
        content = _get(http, thing)
        others = (_owners(thing, content) if content is not None else set()) - writes.deleted
        if others:
            raise SpecError(
                f'{http.origin}: a request names "{thing.name}", and there is {min(others)} already; it is not touched'
            )
    for thing in writes.created:
        including = _INCLUDED_BY.get(thing.kind) if thing.name.endswith(_INCLUDED) else None
        if including and f'"{thing.name}"'.encode() in http.request("GET", including).body:
            raise SpecError(f"{http.origin}: {thing} would become part of existing objects (GET {including})")
    names, checked = Names(pipelines=set(writes.pipelines)), set[str]()
    while unchecked := names.pipelines - checked:
        thing = ServerObject("_ingest/pipeline", min(unchecked))
        checked.add(thing.name)
        if not _is_plain(thing):
            raise SpecError(f'{http.origin}: "{thing.name}" is not a plain name (an ingest pipeline)')
        # The server itself refuses a pipeline that does not exist.
        body = _parse_object(_get(http, thing) or b"{}").get(thing.name, {})
        try:
            names.read_pipeline(body)
        except ValueError as error:
            raise SpecError(f"{http.origin}: {thing} is used: {error}; documents are not sent through it") from None


def _remove(server: RunningServer, writes: WriteSet, absent: tuple[ServerObject, ...], mark: str) -> None:
    # A separate connection: an interrupted request may still be waiting for its response on the other one.
    with server.connect() as http:
        for thing in writes.things:
            content = _get(http, thing)
            if content is None:
                continue
            is_ours = mark.encode() in content if thing in writes.created else thing in absent
            # An alias goes with its index.
            if not is_ours or _owners(thing, content) != {thing}:
                continue
            response = http.request("DELETE", thing.path, timeout_s=120)
            if response.status not in (200, 404):
                raise RunFailed(f"{http.origin}: cannot delete {thing} of this run: {response.excerpt()}")


def _index_bodies(http: Http, name: str) -> list[Any]:
    """Return the bodies of an index or of those of a data stream; for a missing one, those from templates."""
    indices = _fetch(http, urls.join_path(name), "the settings of an index")
    if indices is not None:
        return [body for body in _parse_object(indices).values() if isinstance(body, dict)]
    # The request exists since 7.9, such templates since 7.8.
    simulate = f"/_index_template/_simulate_index{urls.join_path(name)}"
    simulated = _fetch(http, simulate, "the templates of an index", method="POST", missing=(400, 404, 405))
    if simulated and (template := _parse_object(simulated).get("template")):
        return [template]
    bodies = _parse_object(_fetch(http, "/_template", "the templates of an index") or b"{}").values()
    # Before 6.0 "template" was the pattern.
    patterns = ((body, map(str, body.get("index_patterns") or [body.get("template")])) for body in bodies)
    matching = ((body, (re.escape(glob).replace(r"\*", ".*") for glob in globs)) for body, globs in patterns)
    return [body for body, regexes in matching if any(re.fullmatch(regex, name) for regex in regexes)]


def _fetch(
    http: Http, path: str, subject: object, *, method: str = "GET", missing: tuple[int, ...] = (404,)
) -> bytes | None:
    """Return the body of the response; None for the statuses that mean that the subject does not exist."""
    response = http.request(method, path)
    if response.status in missing:
        return None
    if response.status != 200:
        reason = f"({method} {path}, {response.status}): {response.excerpt()}"
        raise SpecError(f"{http.origin}: cannot read {subject} {reason}")
    return response.body


def _get(http: Http, thing: ServerObject) -> bytes | None:
    """Return the object's content (of an index or alias its mapping); None if it does not exist."""
    path = f"{urls.join_path(thing.name, '_mapping')}?expand_wildcards=all" if thing.kind == "index" else thing.path
    return _fetch(http, path, thing)


def _owners(thing: ServerObject, content: bytes) -> set[ServerObject]:
    """Return what a name leads to: itself, or the indices and data streams in the response to GET NAME/_mapping."""
    names = _parse_object(content).keys() if thing.kind == "index" else ()
    if not names:
        # A pattern without indices leads to nothing; Elasticsearch 5 names no index that has no mapping.
        return set() if "*" in thing.name else {thing}
    backing = {name: match[1] for name in names if (match := _BACKING.fullmatch(name))}
    streams = {ServerObject("_data_stream", name) for name in backing.values()}
    return streams | {ServerObject("index", name) for name in names - backing.keys()}


def _parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a response; SpecError for anything else."""
    try:
        value = parse_json(body.decode())
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise SpecError(f"a response of the server is not a JSON object: {quote_value(body)}; its safety is unknown")
    return value


# --- Names in request bodies (pure)

_INDEX = frozenset({"settings", "mappings", "aliases"})
_KEYS: Mapping[str, frozenset[str]] = {
    "index": _INDEX,
    "_data_stream": frozenset(),
    "_index_template": frozenset(
        (
            *("index_patterns", "template", "composed_of", "ignore_missing_component_templates", "data_stream"),
            *("priority", "version", "_meta", "allow_auto_create", "deprecated"),
        )
    ),
    "_component_template": frozenset({"template", "version", "_meta", "deprecated"}),
    "_template": _INDEX | {"index_patterns", "template", "order", "version"},
    "_ingest/pipeline": frozenset({"description", "processors", "on_failure", "version", "_meta", "deprecated"}),
}
# "lifecycle" of a data stream is the retention of its own documents.
_TEMPLATE = _INDEX | {"lifecycle"}
_PIPELINE_SETTINGS = ("default_pipeline", "final_pipeline")
# With these settings a policy of the server may copy an index into another one (rollup jobs, replication).
_POLICIES = ("plugins", "opendistro", "xpack")
# Processors that change only the fields that they name (ingest processors of OpenSearch 3.8 and Elasticsearch 8.19).
# Excluded: script, reroute and date_index_name choose an index; others are unknown.
_PROCESSORS = frozenset(
    (
        *("append", "attachment", "bytes", "circle", "community_id", "convert"),
        *("copy", "csv", "date", "dissect", "dot_expander", "drop"),
        *("enrich", "fail", "fingerprint", "foreach", "geo_grid", "geoip"),
        *("geojson-feature", "grok", "gsub", "html_strip", "inference", "ip2geo"),
        *("join", "json", "kv", "lowercase", "network_direction", "pipeline"),
        *("redact", "registered_domain", "remove", "remove_by_pattern", "rename", "set"),
        *("set_security_user", "sort", "sparse_encoding", "split", "terminate", "text_chunking"),
        *("text_embedding", "text_image_embedding", "trim", "uppercase", "uri_parts", "urldecode"),
        *("user_agent",),
    )
)
# Options that name no field: conditions only read, and values are not paths.
_NO_FIELDS = frozenset({"description", "tag", "if", "value", "message"})
_NESTED = frozenset({"on_failure", "processor"})
# A Mustache template, and dissect keys whose field names come from the document.
_DYNAMIC = re.compile(r"\{\{|%\{[^}]*[*&]")


@dataclass(frozen=True, slots=True)
class Names:
    """Names in the request bodies that were read."""

    aliases: set[str] = field(default_factory=set)
    patterns: set[str] = field(default_factory=set)
    """Patterns of the indices that a template applies to."""
    components: set[str] = field(default_factory=set)
    pipelines: set[str] = field(default_factory=set)

    def read(self, kind: str, body: Mapping[str, Any]) -> None:
        """Add the names in the body of a creation; ValueError for keys that may affect other indices."""
        _refuse_unknown(body, _KEYS[kind], "key")
        if kind == "_ingest/pipeline":
            self.read_pipeline(body)
        elif kind in ("index", "_template"):
            self.read_index({key: body[key] for key in body.keys() & _INDEX})
        else:
            self.read_index(_typed(body, "template", dict))
        # Before 6.0 "template" was the pattern.
        for key in ("index_patterns", "template") if kind == "_template" else ("index_patterns",):
            self.patterns.update(_texts(body, key))
        self.components.update(_texts(body, "composed_of"))

    def read_index(self, body: Mapping[str, Any]) -> None:
        """Add the names in the body of an index; ValueError for settings that may affect other indices."""
        _refuse_unknown(body, _TEMPLATE, "key")
        self.aliases.update(_typed(body, "aliases", dict))
        for key, value in _flatten(_typed(body, "settings", dict)):
            name = key.removeprefix("index.")
            if name in _PIPELINE_SETTINGS and value not in ("_none", None):
                self.pipelines.add(_expect(value, str, key))
            if name.partition(".")[0] in _POLICIES:
                raise ValueError(f'the setting "{key}" may name a policy that writes to other indices')

    def read_pipeline(self, body: Mapping[str, Any]) -> None:
        """Add the pipelines that this one calls; ValueError for a processor that may affect other indices."""
        for key in ("processors", "on_failure"):
            for processor in _typed(body, key, list):
                for name, options in _expect(processor, dict, key).items():
                    self._read_processor(name, options)

    def _read_processor(self, name: str, options: Any) -> None:
        _refuse_unknown({name: options}, _PROCESSORS, "processor")
        _expect(options, dict, name)
        self.read_pipeline({key: options[key] for key in options.keys() & {"on_failure"}})
        if name == "foreach":
            self.read_pipeline({"processors": [options.get("processor")]})
        if name == "pipeline":
            self.pipelines.add(_expect(options.get("name"), str, "name"))
        if name == "kv" and not options.get("target_field"):
            raise ValueError('the processor "kv" without a "target_field" sets fields that documents name')
        if name == "json" and options.get("add_to_root") not in (None, False):
            raise ValueError('the processor "json" with "add_to_root" sets fields that documents name')
        for text in _strings({key: options[key] for key in options.keys() - _NO_FIELDS - _NESTED}):
            if "_index" in text or "_source" in text:
                raise ValueError(f'the processor "{name}" has {quote_value(text)}: it may change a document\'s index')
            if _DYNAMIC.search(text) or (name == "dot_expander" and text == "*"):
                raise ValueError(f'the processor "{name}" has {quote_value(text)}: documents choose the field')


def _refuse_unknown(table: Mapping[str, Any], allowed: frozenset[str], role: str) -> None:
    if unknown := sorted(table.keys() - allowed):
        raise ValueError(f'the effect of the {role} "{unknown[0]}" on other indices is unknown')


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
    elif isinstance(value, str):
        yield value


def _texts(body: Mapping[str, Any], key: str) -> list[str]:
    value = body.get(key)
    return [_expect(text, str, key) for text in ([value] if isinstance(value, str) else _typed(body, key, list))]


def _typed(body: Mapping[str, Any], key: str, kind: type[T]) -> T:
    return _expect(body.get(key) or kind(), kind, key)


def _expect(value: Any, kind: type[T], key: str) -> T:
    """Return the value; ValueError if it has another type than servers accept there."""
    if isinstance(value, kind):
        return value
    raise ValueError(f'"{key}" is {quote_value(value)}, which no server accepts')
