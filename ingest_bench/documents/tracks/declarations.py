"""Indices, data streams and templates that a track declares, and the requests of operations other than `bulk`."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlencode

from ingest_bench.documents.tracks.templates import Templates
from ingest_bench.errors import SpecError
from ingest_bench.inputs import urls
from ingest_bench.inputs.records import suggest
from ingest_bench.model.load import AdminRequest, TrackIndex, TrackTemplate
from ingest_bench.units import quote_value

Parameters = Mapping[str, Any]
Requests = tuple[AdminRequest, ...]
# MetadataCreateIndexService.validateIndexOrAliasName of both servers: none of these, and none of the three in front.
_INDEX = re.compile(r'(?!\.{1,2}$)[^\s"*\\<>|,/?#:_+-][^\s"*\\<>|,/?#:]*')
_LONGEST_INDEX_BYTES = 255
# A track may declare indices that the procedure never creates.
_IGNORE_UNAVAILABLE = {"ignore_unavailable": True}
# Rally's default timeout of a request.
TIMEOUT_S = 60
# The largest bulk: no number of a task is larger.
_LARGEST = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """The default objects of operations that name none."""

    indices: tuple[TrackIndex, ...] = ()
    streams: tuple[str, ...] = ()
    templates: tuple[TrackTemplate, ...] = ()
    """Legacy index templates."""
    composable: tuple[TrackTemplate, ...] = ()
    components: tuple[TrackTemplate, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the indices and data streams."""
        return [*(index.name for index in self.indices), *self.streams]


def parse_declarations(table: Mapping[str, Any], templates: Templates, where: str) -> Declarations:
    """Return the declarations of a track's main file; SpecError names the invalid one."""
    declarations = Declarations(
        indices=tuple(_parse_index(item, templates, where) for item in object_list(table, "indices", where)),
        streams=tuple(_parse_stream(item, templates, where) for item in object_list(table, "data-streams", where)),
        templates=_parse_templates(table, "templates", templates, where),
        composable=_parse_templates(table, "composable-templates", templates, where),
        components=_parse_templates(table, "component-templates", templates, where),
    )
    if declarations.indices and declarations.streams:
        raise SpecError(f'{where}: "indices" cannot be combined with "data-streams"')
    return declarations


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


def _name_of(table: Mapping[str, Any], kind: str, where: str) -> str:
    if "name" not in table:
        raise SpecError(f'{where}: one of "{kind}" has no "name"')
    return str(table["name"])


def _parse_stream(table: Mapping[str, Any], templates: Templates, where: str) -> str:
    """Return a name or a pattern: tracks declare patterns to delete the streams."""
    name = templates.require_complete(_name_of(table, "data-streams", where), "data-streams")
    check_index_name(name.replace("*", "x"), f"{where}: data-streams")
    return name


def _parse_index(table: Mapping[str, Any], templates: Templates, where: str) -> TrackIndex:
    name = templates.require_complete(_name_of(table, "indices", where), "indices")
    check_index_name(name, f"{where}: indices")
    body = templates.render_json(str(table["body"])) if table.get("body") else {}
    body = templates.require_complete(body, f"index {name}")
    return TrackIndex(name=name, body=_require_object(body, f"{where}: index {name}"))


def _parse_templates(table: Mapping[str, Any], key: str, templates: Templates, where: str) -> tuple[TrackTemplate, ...]:
    return tuple(_parse_template(item, key, templates, where) for item in object_list(table, key, where))


def _parse_template(table: Mapping[str, Any], key: str, templates: Templates, where: str) -> TrackTemplate:
    name = templates.require_complete(_name_of(table, key, where), key)
    if not table.get("template"):
        raise SpecError(f'{where}: {key}: "{name}" has no "template", the file that it is in')
    body = templates.render_json(str(table["template"]))
    for part in filter(None, str(table.get("template-path", "")).split(".")):
        if not isinstance(body, dict) or part not in body:
            raise SpecError(f'{where}: {key}: {table["template"]} has nothing at the "template-path" of "{name}"')
        body = body[part]
    body = templates.require_complete(body, f"{key} {name}")
    return TrackTemplate(name=name, body=_require_object(body, f"{where}: {key} {name}"))


def _require_object(body: Any, where: str) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise SpecError(f"{where}: its file is not a JSON object")
    return body


def _delete_indices(parameters: Parameters, declarations: Declarations) -> Requests:
    """Delete each index, also one that the track does not declare: it may be missing."""
    return _deletions(_names(parameters, [index.name for index in declarations.indices]), parameters)


def _create_indices(parameters: Parameters, declarations: Declarations) -> Requests:
    """Create each index with its declared body, overridden by the operation's settings."""
    bodies = {index.name: index.body for index in declarations.indices}
    requests = []
    for name in _names(parameters, list(bodies)):
        if name not in bodies and "body" not in parameters:
            raise SpecError(
                f'create-index: "{name}" is not declared under "indices" and the operation has no "body"; '
                f"{suggest(name, bodies)}"
            )
        body = copy.deepcopy(_body(parameters, "create-index") if parameters.get("body") else bodies.get(name, {}))
        if parameters.get("settings"):
            body["settings"] = {**body.get("settings", {}), **parameters["settings"]}
        requests.append(AdminRequest(method="PUT", path=_path(name, parameters=parameters), body=body))
    return tuple(requests)


def _create_data_streams(parameters: Parameters, declarations: Declarations) -> Requests:
    """Create each data stream; a composable template defines it."""
    names = _names(parameters, list(declarations.streams), "data-stream")
    return tuple(AdminRequest(method="PUT", path=_path("_data_stream", name, parameters=parameters)) for name in names)


def _delete_data_streams(parameters: Parameters, declarations: Declarations) -> Requests:
    """Delete each data stream with its documents."""
    return _deletions(_names(parameters, list(declarations.streams), "data-stream"), parameters, "_data_stream")


def _create_templates(api: str, key: str, parameters: Parameters, declarations: Declarations) -> Requests:
    """Create each template of a kind with its declared body, overridden by the operation's settings."""
    operation = parameters["operation-type"]
    templates: tuple[TrackTemplate, ...] = getattr(declarations, key)
    name = parameters.get("template")
    if name is not None and "body" in parameters:
        templates = (TrackTemplate(name=str(name), body=_body(parameters, operation)),)
    elif name is not None:
        names = [template.name for template in templates]
        if name not in names:
            raise SpecError(f'{operation}: the track does not declare "{name}"; {suggest(str(name), names)}')
        templates = (templates[names.index(name)],)
    requests = []
    for template in templates:
        body = copy.deepcopy(template.body)
        if parameters.get("settings"):
            holder = body if api == "_template" else body.setdefault("template", {})
            holder["settings"] = {**holder.get("settings", {}), **parameters["settings"]}
        path = _path(api, template.name, parameters=parameters)
        requests.append(AdminRequest(method="PUT", path=path, body=body))
    return tuple(requests)


def _delete_templates(api: str, key: str, parameters: Parameters, declarations: Declarations) -> Requests:
    """Delete each template of a kind, but not the indices that match it."""
    names = [template.name for template in getattr(declarations, key)]
    return _deletions([str(parameters["template"])] if parameters.get("template") else names, parameters, api)


def _put_pipeline(parameters: Parameters, declarations: Declarations) -> Requests:  # noqa: ARG001 - as in OPERATIONS
    path = _path("_ingest", "pipeline", _pipeline_id(parameters), parameters=parameters)
    return (AdminRequest(method="PUT", path=path, body=_body(parameters, "put-pipeline")),)


def _delete_pipeline(parameters: Parameters, declarations: Declarations) -> Requests:  # noqa: ARG001 - as in OPERATIONS
    return _deletions([_pipeline_id(parameters)], parameters, "_ingest", "pipeline")


def _cluster_health(parameters: Parameters, declarations: Declarations) -> Requests:  # noqa: ARG001 - as in OPERATIONS
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


def _refresh(parameters: Parameters, declarations: Declarations) -> Requests:
    path = _path(_all_names(parameters, declarations), "_refresh", parameters=parameters, extra=_IGNORE_UNAVAILABLE)
    return (AdminRequest(method="POST", path=path, timeout_ns=_timeout_ns(parameters)),)


def _force_merge(parameters: Parameters, declarations: Declarations) -> Requests:
    segments = int(parameters.get("max-num-segments", -1))
    extra = {**_IGNORE_UNAVAILABLE, **({"max_num_segments": segments} if segments > 0 else {})}
    path = _path(_all_names(parameters, declarations), "_forcemerge", parameters=parameters, extra=extra)
    return (AdminRequest(method="POST", path=path, timeout_ns=_timeout_ns(parameters)),)


def _index_stats(parameters: Parameters, declarations: Declarations) -> Requests:
    """Request the statistics until the operation's condition holds."""
    condition = parameters.get("condition") if parameters.get("retry-until-success") else None
    path = _path(_all_names(parameters, declarations), "_stats", parameters=parameters, extra=_IGNORE_UNAVAILABLE)
    return (
        AdminRequest(
            method="GET",
            path=path,
            until_path=str(condition["path"]) if condition else "",
            until_value=condition["expected-value"] if condition else None,
            timeout_ns=_timeout_ns(parameters),
        ),
    )


OPERATIONS: Mapping[str, Callable[[Parameters, Declarations], Requests]] = {
    "cluster-health": _cluster_health,
    "create-component-template": partial(_create_templates, "_component_template", "components"),
    "create-composable-template": partial(_create_templates, "_index_template", "composable"),
    "create-data-stream": _create_data_streams,
    "create-index": _create_indices,
    "create-index-template": partial(_create_templates, "_template", "templates"),
    "delete-component-template": partial(_delete_templates, "_component_template", "components"),
    "delete-composable-template": partial(_delete_templates, "_index_template", "composable"),
    "delete-data-stream": _delete_data_streams,
    "delete-index": _delete_indices,
    "delete-index-template": partial(_delete_templates, "_template", "templates"),
    "delete-pipeline": _delete_pipeline,
    "force-merge": _force_merge,
    "index-stats": _index_stats,
    "put-pipeline": _put_pipeline,
    "refresh": _refresh,
}
"""The requests of each operation, from its parameters."""


def _deletions(names: list[str], parameters: Parameters, *api: str) -> Requests:
    return tuple(
        AdminRequest(method="DELETE", path=_path(*api, name, parameters=parameters), accepted_statuses=(200, 404))
        for name in names
    )


def _names(parameters: Parameters, default: list[str], *more_keys: str) -> list[str]:
    keys = ("index", "indices", *more_keys)
    names = next((parameters[key] for key in keys if parameters.get(key) is not None), None)
    if names is None:
        return default
    return [str(name) for name in names] if isinstance(names, list) else str(names).split(",")


def _all_names(parameters: Parameters, declarations: Declarations) -> list[str]:
    return _names(parameters, declarations.names, "data-stream")


def _pipeline_id(parameters: Parameters) -> str:
    if not parameters.get("id"):
        raise SpecError(f'{parameters["operation-type"]}: "id", the name of the pipeline, is missing')
    return str(parameters["id"])


def _body(parameters: Parameters, operation: str) -> dict[str, Any]:
    if not isinstance(parameters.get("body"), dict):
        raise SpecError(f'{operation}: "body" must be a JSON object')
    return dict(parameters["body"])


def _path(*parts: str | list[str], parameters: Parameters, extra: Mapping[str, Any] | None = None) -> str:
    text = encode_query({**(extra or {}), **parameters.get("request-params", {})})
    return urls.join_path(*parts) + (f"?{text}" if text else "")


def encode_query(query: Mapping[str, Any]) -> str:
    """Return a query string; booleans are written in lower case."""
    return urlencode({key: str(value).lower() if isinstance(value, bool) else value for key, value in query.items()})


def _timeout_ns(parameters: Parameters) -> int:
    return int(parse_number(parameters, "request-timeout", parameters["operation-type"], TIMEOUT_S) * 10**9)
