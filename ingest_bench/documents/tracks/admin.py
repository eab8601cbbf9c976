"""What the six operations beside `bulk` ask of the server. Pure: an operation's parameters to requests."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from ingest_bench import urls
from ingest_bench.errors import SpecError
from ingest_bench.model.track import AdminRequest, TrackIndex
from ingest_bench.records import nearest

Parameters = Mapping[str, Any]
Declared = tuple[TrackIndex, ...]
# A track may declare indices that the procedure never creates.
_EXISTING = {"ignore_unavailable": True}
# How long Rally waits for an answer, unless the operation says otherwise.
TIMEOUT_S = 60


def delete_index(parameters: Parameters, declared: Declared) -> tuple[AdminRequest, ...]:
    """One deletion for each index. Only what the track declares: no pattern, no other name."""
    known = [index.name for index in declared]
    wanted = _names(parameters, known)
    for name in wanted:
        if name not in known:
            raise SpecError(
                f'delete-index: "{name}" is not declared under "indices" of the track, so it is not deleted; '
                f"{nearest(name, known)}"
            )
    return tuple(
        AdminRequest(method="DELETE", path=_path(name, parameters=parameters), accept=(200, 404)) for name in wanted
    )


def create_index(parameters: Parameters, declared: Declared) -> tuple[AdminRequest, ...]:
    """One creation for each index, its declared body with the operation's settings over it."""
    bodies = {index.name: index.body for index in declared}
    requests = []
    for name in _names(parameters, list(bodies)):
        if name not in bodies and "body" not in parameters:
            raise SpecError(f'create-index: "{name}" is not declared under "indices"; {nearest(name, bodies)}')
        body = copy.deepcopy(dict(parameters.get("body") or bodies.get(name, {})))
        if parameters.get("settings"):
            body["settings"] = {**body.get("settings", {}), **parameters["settings"]}
        requests.append(AdminRequest(method="PUT", path=_path(name, parameters=parameters), body=body))
    return tuple(requests)


def cluster_health(parameters: Parameters, declared: Declared) -> tuple[AdminRequest, ...]:  # noqa: ARG001 - as the others
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


def refresh(parameters: Parameters, declared: Declared) -> tuple[AdminRequest, ...]:
    """A refresh of the named indices, or of all that the track declares."""
    path = _path(_all(parameters, declared), "_refresh", parameters=parameters, extra=_EXISTING)
    return (AdminRequest(method="POST", path=path, timeout_ns=_ns(parameters)),)


def force_merge(parameters: Parameters, declared: Declared) -> tuple[AdminRequest, ...]:
    """A merge of the named indices, or of all that the track declares."""
    segments = int(parameters.get("max-num-segments", -1))
    extra = {"max_num_segments": segments} if segments > 0 else {}
    path = _path(_all(parameters, declared), "_forcemerge", parameters=parameters, extra={**_EXISTING, **extra})
    return (AdminRequest(method="POST", path=path, timeout_ns=_ns(parameters)),)


def index_stats(parameters: Parameters, declared: Declared) -> tuple[AdminRequest, ...]:
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


REQUESTS: Mapping[str, Callable[[Parameters, Declared], tuple[AdminRequest, ...]]] = {
    "delete-index": delete_index,
    "create-index": create_index,
    "cluster-health": cluster_health,
    "refresh": refresh,
    "force-merge": force_merge,
    "index-stats": index_stats,
}


def _names(parameters: Parameters, default: list[str]) -> list[str]:
    given = parameters.get("index", parameters.get("indices"))
    if given is None:
        return default
    return [str(name) for name in given] if isinstance(given, list) else str(given).split(",")


def _all(parameters: Parameters, declared: Declared) -> list[str]:
    return _names(parameters, [index.name for index in declared])


def _path(*parts: str | list[str], parameters: Parameters, extra: Mapping[str, Any] | None = None) -> str:
    query = {**(extra or {}), **parameters.get("request-params", {})}
    text = urlencode({key: str(value).lower() if isinstance(value, bool) else value for key, value in query.items()})
    return urls.path(*parts) + (f"?{text}" if text else "")


def _ns(parameters: Parameters) -> int:
    return int(float(parameters.get("request-timeout", TIMEOUT_S)) * 10**9)
