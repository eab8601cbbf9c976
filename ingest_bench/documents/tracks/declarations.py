"""Indices, data streams and templates that a track declares, and the requests of operations other than `bulk`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal
from urllib.parse import urlencode

from ingest_bench.documents.tracks.templates import Templates
from ingest_bench.errors import SpecError
from ingest_bench.inputs import urls
from ingest_bench.inputs.names import check_name
from ingest_bench.model.load import AdminRequest
from ingest_bench.units import quote_value

Parameters = Mapping[str, Any]
Requests = tuple[AdminRequest, ...]
Bodies = dict[str, dict[str, Any]]
"""Bodies of indices or templates by name."""
# MetadataCreateIndexService.validateIndexOrAliasName of both servers: none of these, and none of the three in front.
_INDEX = re.compile(r'(?!\.{1,2}$)[^\s"*\\<>|,/?#:_+-][^\s"*\\<>|,/?#:]*')
_LONGEST_INDEX_BYTES = 255
# Rally's default timeout of a request.
TIMEOUT_S = 60
# The largest bulk: no number of a task is larger.
_LARGEST = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """The default objects of operations that name none, each with its body."""

    indices: Bodies = field(default_factory=dict)
    streams: tuple[str, ...] = ()
    templates: Bodies = field(default_factory=dict)
    """Legacy index templates."""
    composable: Bodies = field(default_factory=dict)
    components: Bodies = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Names of the indices and data streams."""
        return [*self.indices, *self.streams]


def parse_declarations(table: Mapping[str, Any], templates: Templates, where: str) -> Declarations:
    """Return the declarations of a track's main file; SpecError names the invalid one."""
    # A name or a pattern: tracks declare patterns to delete the streams.
    streams = tuple(name for name, _ in _declared(table, "data-streams", templates, where))
    for name in streams:
        check_index_name(name.replace("*", "x"), f"{where}: data-streams")
    indices = {}
    for name, item in _declared(table, "indices", templates, where):
        check_index_name(name, f"{where}: indices")
        body = templates.render_json(str(item["body"])) if item.get("body") else {}
        indices[name] = _check_body(body, f"index {name}", templates, where)
    if indices and streams:
        raise SpecError(f'{where}: "indices" cannot be combined with "data-streams"')
    return Declarations(
        indices=indices,
        streams=streams,
        templates=_parse_templates(table, "templates", templates, where),
        composable=_parse_templates(table, "composable-templates", templates, where),
        components=_parse_templates(table, "component-templates", templates, where),
    )


def _parse_templates(table: Mapping[str, Any], key: str, templates: Templates, where: str) -> Bodies:
    bodies = {}
    for name, item in _declared(table, key, templates, where):
        if not item.get("template"):
            raise SpecError(f'{where}: {key}: "{name}" has no "template", the file that it is in')
        body = templates.render_json(str(item["template"]))
        for part in filter(None, str(item.get("template-path", "")).split(".")):
            if not isinstance(body, dict) or part not in body:
                raise SpecError(f'{where}: {key}: {item["template"]} has nothing at the "template-path" of "{name}"')
            body = body[part]
        bodies[name] = _check_body(body, f"{key} {name}", templates, where)
    return bodies


def _declared(
    table: Mapping[str, Any], key: str, templates: Templates, where: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and the keys of each object under a key."""
    for item in object_list(table, key, where):
        if "name" not in item:
            raise SpecError(f'{where}: one of "{key}" has no "name"')
        yield templates.require_complete(str(item["name"]), key), item


def _check_body(body: Any, label: str, templates: Templates, where: str) -> dict[str, Any]:
    if not isinstance(templates.require_complete(body, label), dict):
        raise SpecError(f"{where}: {label}: its file is not a JSON object")
    return dict(body)


def object_list(table: Mapping[str, Any], key: str, where: str) -> Sequence[Mapping[str, Any]]:
    """Return the list of objects under a key; empty without the key."""
    items = table.get(key, ())
    if not isinstance(items, list | tuple) or not all(isinstance(item, dict) for item in items):
        raise SpecError(f'{where}: "{key}" is not a list of objects')
    return items


def check_index_name(name: str, where: str) -> str:
    """Return the name if it is valid for an index; SpecError otherwise. The server may have more rules."""
    if not _INDEX.fullmatch(name) or not name.isprintable() or len(name.encode()) > _LONGEST_INDEX_BYTES:
        raise SpecError(f"{where}: {name[:60]!r} is not a valid index name")
    return name


def parse_number(table: Mapping[str, Any], key: str, where: str, default: float = 0, maximum: int = _LARGEST) -> float:
    """Return a number of the track between 0 and *maximum*."""
    value = table.get(key, default)
    try:
        number = float(default if value is None else value)
    except (TypeError, ValueError, OverflowError):
        raise SpecError(f'{where}: "{key}" is {quote_value(value)}, not a number') from None
    if not 0 <= number <= maximum:
        raise SpecError(f'{where}: "{key}" is {quote_value(value)}, not between 0 and {maximum:,}')
    return number


def _create_indices(parameters: Parameters, declarations: Declarations) -> Requests:
    """Create each index with its declared body, overridden by the operation's settings."""
    requests = []
    for name in _index_names(parameters, declarations):
        if "body" not in parameters:
            problem = f'create-index: "{name}" is not declared under "indices" and the operation has no "body"'
            check_name(name, declarations.indices, problem)
        body = _body(parameters) if parameters.get("body") else declarations.indices.get(name, {})
        requests.append(_put(parameters, name, body=_with_settings(body, parameters)))
    return tuple(requests)


def _create_data_streams(parameters: Parameters, declarations: Declarations) -> Requests:
    """Create each data stream; a composable template defines it."""
    return tuple(_put(parameters, "_data_stream", name) for name in _stream_names(parameters, declarations))


def _create_templates(api: str, key: str, parameters: Parameters, declarations: Declarations) -> Requests:
    """Create each template of a kind with its declared body, overridden by the operation's settings."""
    bodies: Bodies = getattr(declarations, key)
    name = None if parameters.get("template") is None else str(parameters["template"])
    if name is not None and "body" in parameters:
        bodies = {name: _body(parameters)}
    elif name is not None:
        check_name(name, bodies, f'{parameters["operation-type"]}: the track does not declare "{name}"')
    requests = []
    for template in bodies if name is None else [name]:
        body = bodies[template]
        if api == "_template":
            body = _with_settings(body, parameters)
        elif parameters.get("settings"):
            body = {**body, "template": _with_settings(body.get("template", {}), parameters)}
        requests.append(_put(parameters, api, template, body=body))
    return tuple(requests)


def _put_pipeline(parameters: Parameters, declarations: Declarations) -> Requests:
    (name,) = _pipeline_ids(parameters, declarations)
    return (_put(parameters, "_ingest", "pipeline", name, body=_body(parameters)),)


def _delete(
    api: Sequence[str],
    find_names: Callable[[Parameters, Declarations], Iterable[str]],
    parameters: Parameters,
    declarations: Declarations,
) -> Requests:
    """Delete each object of a kind, also one that the track does not declare: it may be missing."""
    return tuple(
        AdminRequest(method="DELETE", path=_path(*api, name, parameters=parameters), accepted_statuses=(200, 404))
        for name in find_names(parameters, declarations)
    )


def _cluster_health(parameters: Parameters, _declarations: Declarations) -> Requests:
    """Wait for health; repeat if the server's own wait timed out (408) and the operation has `retry-until-success`."""
    names = _names(parameters, [])
    retry = bool(parameters.get("retry-until-success"))
    return (
        AdminRequest(
            method="GET",
            path=_path("_cluster", "health", *([names] if names else []), parameters=parameters),
            accepted_statuses=(200, 408) if retry else (200,),
            until_path="timed_out" if retry else "",
            until_value=False if retry else None,
            timeout_ns=_timeout_ns(parameters),
        ),
    )


def _request_all(
    method: Literal["GET", "POST"], api: str, parameters: Parameters, declarations: Declarations, **more: Any
) -> Requests:
    """Send one request for all indices and data streams."""
    names = _names(parameters, declarations.names, "data-stream")
    # A track may declare indices that the procedure never creates.
    query = {"ignore_unavailable": True, **more.pop("query", {})}
    path = _path(names, api, parameters=parameters, query=query)
    return (AdminRequest(method=method, path=path, timeout_ns=_timeout_ns(parameters), **more),)


def _force_merge(parameters: Parameters, declarations: Declarations) -> Requests:
    segments = int(parameters.get("max-num-segments", -1))
    query = {"max_num_segments": segments} if segments > 0 else {}
    return _request_all("POST", "_forcemerge", parameters, declarations, query=query)


def _index_stats(parameters: Parameters, declarations: Declarations) -> Requests:
    """Request the statistics until the operation's condition holds."""
    until = {}
    if (condition := parameters.get("condition")) and parameters.get("retry-until-success"):
        until = {"until_path": str(condition["path"]), "until_value": condition["expected-value"]}
    return _request_all("GET", "_stats", parameters, declarations, **until)


def _names(parameters: Parameters, default: Iterable[str], *more_keys: str) -> list[str]:
    keys = ("index", "indices", *more_keys)
    names = next((parameters[key] for key in keys if parameters.get(key) is not None), None)
    if names is None:
        return list(default)
    return [str(name) for name in names] if isinstance(names, list) else str(names).split(",")


def _index_names(parameters: Parameters, declarations: Declarations) -> list[str]:
    return _names(parameters, declarations.indices)


def _stream_names(parameters: Parameters, declarations: Declarations) -> list[str]:
    return _names(parameters, declarations.streams, "data-stream")


def _template_names(key: str, parameters: Parameters, declarations: Declarations) -> list[str]:
    return [str(parameters["template"])] if parameters.get("template") else list(getattr(declarations, key))


def _pipeline_ids(parameters: Parameters, _declarations: Declarations) -> list[str]:
    if not parameters.get("id"):
        raise SpecError(f'{parameters["operation-type"]}: "id", the name of the pipeline, is missing')
    return [str(parameters["id"])]


_TEMPLATE_APIS = {
    "component-template": ("_component_template", "components"),
    "composable-template": ("_index_template", "composable"),
    "index-template": ("_template", "templates"),
}
OPERATIONS: Mapping[str, Callable[[Parameters, Declarations], Requests]] = {
    "cluster-health": _cluster_health,
    "create-data-stream": _create_data_streams,
    "create-index": _create_indices,
    "delete-data-stream": partial(_delete, ["_data_stream"], _stream_names),
    "delete-index": partial(_delete, [], _index_names),
    "delete-pipeline": partial(_delete, ["_ingest", "pipeline"], _pipeline_ids),
    "force-merge": _force_merge,
    "index-stats": _index_stats,
    "put-pipeline": _put_pipeline,
    "refresh": partial(_request_all, "POST", "_refresh"),
    **{f"create-{kind}": partial(_create_templates, *api) for kind, api in _TEMPLATE_APIS.items()},
    **{
        f"delete-{kind}": partial(_delete, [api], partial(_template_names, key))
        for kind, (api, key) in _TEMPLATE_APIS.items()
    },
}
"""The requests of each operation, from its parameters."""


def _with_settings(body: dict[str, Any], parameters: Parameters) -> dict[str, Any]:
    settings = {**body.get("settings", {}), **(parameters.get("settings") or {})}
    return {**body, "settings": settings} if settings else body


def _put(parameters: Parameters, *parts: str, body: dict[str, Any] | None = None) -> AdminRequest:
    return AdminRequest(method="PUT", path=_path(*parts, parameters=parameters), body=body)


def _body(parameters: Parameters) -> dict[str, Any]:
    if not isinstance(parameters.get("body"), dict):
        raise SpecError(f'{parameters["operation-type"]}: "body" must be a JSON object')
    return dict(parameters["body"])


def _path(*parts: str | list[str], parameters: Parameters, query: Mapping[str, Any] | None = None) -> str:
    text = encode_query({**(query or {}), **parameters.get("request-params", {})})
    return urls.join_path(*parts) + (f"?{text}" if text else "")


def encode_query(query: Mapping[str, Any]) -> str:
    """Return a query string; booleans are written in lower case."""
    return urlencode({key: str(value).lower() if isinstance(value, bool) else value for key, value in query.items()})


def _timeout_ns(parameters: Parameters) -> int:
    return int(parse_number(parameters, "request-timeout", parameters["operation-type"], TIMEOUT_S) * 10**9)
