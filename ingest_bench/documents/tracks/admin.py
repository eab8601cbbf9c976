"""What the operations beside `bulk` ask of the server. Pure: an operation's parameters to requests."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlencode

from ingest_bench.documents.tracks.declared import Declared
from ingest_bench.documents.tracks.sending import number
from ingest_bench.errors import SpecError
from ingest_bench.inputs import urls
from ingest_bench.inputs.records import nearest
from ingest_bench.model.track import AdminRequest, TrackTemplate

Parameters = Mapping[str, Any]
Requests = tuple[AdminRequest, ...]
# A track may declare indices that the procedure never creates.
_EXISTING = {"ignore_unavailable": True}
# How long Rally waits for an answer, unless the operation says otherwise.
TIMEOUT_S = 60


def delete_index(parameters: Parameters, declared: Declared) -> Requests:
    """One deletion for each index, also of one that the track does not declare: it may not be there."""
    return _deletions(_names(parameters, [index.name for index in declared.indices]), parameters)


def create_index(parameters: Parameters, declared: Declared) -> Requests:
    """One creation for each index, its declared body with the operation's settings over it."""
    bodies = {index.name: index.body for index in declared.indices}
    requests = []
    for name in _names(parameters, list(bodies)):
        if name not in bodies and "body" not in parameters:
            raise SpecError(
                f'create-index: "{name}" is not declared under "indices" and the operation has no "body"; '
                f"{nearest(name, bodies)}"
            )
        body = copy.deepcopy(_body(parameters, "create-index") if parameters.get("body") else bodies.get(name, {}))
        if parameters.get("settings"):
            body["settings"] = {**body.get("settings", {}), **parameters["settings"]}
        requests.append(AdminRequest(method="PUT", path=_path(name, parameters=parameters), body=body))
    return tuple(requests)


def create_data_stream(parameters: Parameters, declared: Declared) -> Requests:
    """One creation for each data stream. What it is like, a composable template says."""
    names = _names(parameters, list(declared.streams), "data-stream")
    return tuple(AdminRequest(method="PUT", path=_path("_data_stream", name, parameters=parameters)) for name in names)


def delete_data_stream(parameters: Parameters, declared: Declared) -> Requests:
    """One deletion for each data stream, with all that is in it."""
    return _deletions(_names(parameters, list(declared.streams), "data-stream"), parameters, "_data_stream")


def create_template(api: str, key: str, parameters: Parameters, declared: Declared) -> Requests:
    """One creation for each template of a kind, its declared body with the operation's settings over it."""
    operation = parameters["operation-type"]
    known: tuple[TrackTemplate, ...] = getattr(declared, key)
    name = parameters.get("template")
    if name is not None and "body" in parameters:
        known = (TrackTemplate(name=str(name), body=_body(parameters, operation)),)
    elif name is not None:
        names = [template.name for template in known]
        if name not in names:
            raise SpecError(f'{operation}: "{name}" is declared nowhere in the track; {nearest(str(name), names)}')
        known = (known[names.index(name)],)
    requests = []
    for template in known:
        body = copy.deepcopy(template.body)
        if parameters.get("settings"):
            holder = body if api == "_template" else body.setdefault("template", {})
            holder["settings"] = {**holder.get("settings", {}), **parameters["settings"]}
        path = _path(api, template.name, parameters=parameters)
        requests.append(AdminRequest(method="PUT", path=path, body=body))
    return tuple(requests)


def delete_template(api: str, key: str, parameters: Parameters, declared: Declared) -> Requests:
    """One deletion for each template of a kind. Indices that match it stay: only what is named is deleted."""
    known = [template.name for template in getattr(declared, key)]
    return _deletions([str(parameters["template"])] if parameters.get("template") else known, parameters, api)


def put_pipeline(parameters: Parameters, declared: Declared) -> Requests:  # noqa: ARG001 - as the others
    """The creation of an ingest pipeline."""
    path = _path("_ingest", "pipeline", _id(parameters), parameters=parameters)
    return (AdminRequest(method="PUT", path=path, body=_body(parameters, "put-pipeline")),)


def delete_pipeline(parameters: Parameters, declared: Declared) -> Requests:  # noqa: ARG001 - as the others
    """The deletion of an ingest pipeline."""
    return _deletions([_id(parameters)], parameters, "_ingest", "pipeline")


def cluster_health(parameters: Parameters, declared: Declared) -> Requests:  # noqa: ARG001 - as the others
    """A wait for health, asked again when the server's own wait ran out (408) and the operation wants that."""
    names = _names(parameters, [])
    again = bool(parameters.get("retry-until-success"))
    return (
        AdminRequest(
            method="GET",
            path=_path("_cluster", "health", *([names] if names else []), parameters=parameters),
            accept=(200, 408) if again else (200,),
            until_path="timed_out" if again else "",
            until_value=False if again else None,
            timeout_ns=_ns(parameters),
        ),
    )


def refresh(parameters: Parameters, declared: Declared) -> Requests:
    """A refresh of the named indices, or of all that the track declares."""
    path = _path(_all(parameters, declared), "_refresh", parameters=parameters, extra=_EXISTING)
    return (AdminRequest(method="POST", path=path, timeout_ns=_ns(parameters)),)


def force_merge(parameters: Parameters, declared: Declared) -> Requests:
    """A merge of the named indices, or of all that the track declares."""
    segments = int(parameters.get("max-num-segments", -1))
    extra = {"max_num_segments": segments} if segments > 0 else {}
    path = _path(_all(parameters, declared), "_forcemerge", parameters=parameters, extra={**_EXISTING, **extra})
    return (AdminRequest(method="POST", path=path, timeout_ns=_ns(parameters)),)


def index_stats(parameters: Parameters, declared: Declared) -> Requests:
    """The statistics, asked again until the operation's condition holds."""
    condition = parameters.get("condition") if parameters.get("retry-until-success") else None
    return (
        AdminRequest(
            method="GET",
            path=_path(_all(parameters, declared), "_stats", parameters=parameters, extra=_EXISTING),
            until_path=str(condition["path"]) if condition else "",
            until_value=condition["expected-value"] if condition else None,
            timeout_ns=_ns(parameters),
        ),
    )


REQUESTS: Mapping[str, Callable[[Parameters, Declared], Requests]] = {
    "cluster-health": cluster_health,
    "create-component-template": partial(create_template, "_component_template", "components"),
    "create-composable-template": partial(create_template, "_index_template", "composable"),
    "create-data-stream": create_data_stream,
    "create-index": create_index,
    "create-index-template": partial(create_template, "_template", "templates"),
    "delete-component-template": partial(delete_template, "_component_template", "components"),
    "delete-composable-template": partial(delete_template, "_index_template", "composable"),
    "delete-data-stream": delete_data_stream,
    "delete-index": delete_index,
    "delete-index-template": partial(delete_template, "_template", "templates"),
    "delete-pipeline": delete_pipeline,
    "force-merge": force_merge,
    "index-stats": index_stats,
    "put-pipeline": put_pipeline,
    "refresh": refresh,
}


def _deletions(names: list[str], parameters: Parameters, *api: str) -> Requests:
    return tuple(
        AdminRequest(method="DELETE", path=_path(*api, name, parameters=parameters), accept=(200, 404))
        for name in names
    )


def _names(parameters: Parameters, default: list[str], *more: str) -> list[str]:
    given = next((parameters[key] for key in ("index", "indices", *more) if parameters.get(key) is not None), None)
    if given is None:
        return default
    return [str(name) for name in given] if isinstance(given, list) else str(given).split(",")


def _all(parameters: Parameters, declared: Declared) -> list[str]:
    return _names(parameters, declared.names, "data-stream")


def _id(parameters: Parameters) -> str:
    if not parameters.get("id"):
        raise SpecError(f'{parameters["operation-type"]}: "id", the name of the pipeline, is missing')
    return str(parameters["id"])


def _body(parameters: Parameters, operation: str) -> dict[str, Any]:
    if not isinstance(parameters.get("body"), dict):
        raise SpecError(f'{operation}: "body" must be a JSON object')
    return dict(parameters["body"])


def _path(*parts: str | list[str], parameters: Parameters, extra: Mapping[str, Any] | None = None) -> str:
    query = {**(extra or {}), **parameters.get("request-params", {})}
    text = urlencode({key: str(value).lower() if isinstance(value, bool) else value for key, value in query.items()})
    return urls.path(*parts) + (f"?{text}" if text else "")


def _ns(parameters: Parameters) -> int:
    return int(number(parameters, "request-timeout", parameters["operation-type"], TIMEOUT_S) * 10**9)
