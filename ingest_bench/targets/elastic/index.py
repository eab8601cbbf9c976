"""Requests that create a workload's indices, in the form of one version of a server."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ingest_bench.errors import SpecError
from ingest_bench.inputs import urls
from ingest_bench.model.load import AdminRequest
from ingest_bench.model.target import Preparation
from ingest_bench.targets.elastic.node_options import Version
from ingest_bench.units import quote_value

# The type of all documents in versions with types (before 7).
DOCUMENT_TYPE = "doc"
# The servers' default limit (es.index.max_number_of_shards, opensearch.index.max_number_of_shards).
_MAX_SHARDS = 1024
_MISSING = object()


def index_body(
    mapping: Mapping[str, Any], version: Version, *, replicas: int = 0, override_replicas: bool = False
) -> dict[str, Any]:
    """Return the body that creates an index in that version, by default with one shard and these replicas.

    Settings of the mapping win, except its replicas if `override_replicas`. With replicas, no document is accepted
    before all copies exist.
    """
    body = copy.deepcopy(dict(mapping))
    settings = body["settings"] = _table(body, "settings")
    if override_replicas:
        for table, name in _spellings(settings, "number_of_replicas"):
            table.pop(name, None)
    defaults: dict[str, int | str] = {"number_of_shards": 1, "number_of_replicas": replicas}
    if replicas:
        defaults["write.wait_for_active_shards"] = "all"
    for key, value in defaults.items():
        if _find_setting(settings, key) is _MISSING:
            settings[f"index.{key}"] = value
    _count_shards(settings)
    _replace_unsupported(_table(body, "mappings"), version)
    if version.before_7 and "mappings" in body:
        body["mappings"] = {DOCUMENT_TYPE: body["mappings"]}
    return body


def _spellings(settings: dict[str, Any], key: str) -> tuple[tuple[dict[str, Any], str], ...]:
    """Return the tables and names under which an index's settings may hold a key."""
    return (settings, f"index.{key}"), (settings, key), (_table(settings, "index"), key)


def _find_setting(settings: dict[str, Any], key: str) -> Any:
    return next((table[name] for table, name in _spellings(settings, key) if name in table), _MISSING)


def _count_shards(settings: dict[str, Any]) -> int:
    """Return the number of shards in an index's settings; SpecError for an invalid one."""
    shards = _find_setting(settings, "number_of_shards")
    text = str(shards)
    is_number = isinstance(shards, int | str) and not isinstance(shards, bool) and text.isascii() and text.isdigit()
    if not is_number or len(text) > 4 or not 1 <= int(text) <= _MAX_SHARDS:
        raise SpecError(
            f'mapping: "number_of_shards" is {quote_value(shards)}; write a whole number from 1 to {_MAX_SHARDS}'
        )
    return int(text)


def _table(body: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the table of a key, an empty one if it is missing."""
    table = body.get(key, {})
    if not isinstance(table, dict):
        raise SpecError(f'mapping: "{key}" is {quote_value(table)}, not a table; write it as the server takes it')
    return table


def create_indices(names: Sequence[str], body: Mapping[str, Any]) -> Preparation:
    """Return requests that create indices with this body, and the path of their searches."""
    return Preparation(
        requests=tuple(AdminRequest(method="PUT", path=urls.join_path(name), body=dict(body)) for name in names),
        indices=tuple(names),
        search_path=urls.join_path(names, "_search"),
    )


def place_primaries(preparation: Preparation, first_node: str) -> Preparation:
    """Add requests that put all primaries on the first node and wait for all replicas.

    A cluster places primaries by chance, and that decides which nodes wait for which others.
    """
    requests = []
    for name, request in zip(preparation.indices, preparation.requests, strict=True):
        body = request.body or {}
        replicas = body["settings"].get("index.number_of_replicas")
        if replicas:
            pinned = {"index.number_of_replicas": 0, "index.routing.allocation.include._name": first_node}
            released = {"index.number_of_replicas": replicas, "index.routing.allocation.include._name": None}
            requests.append(dataclasses.replace(request, body={**body, "settings": body["settings"] | pinned}))
            requests.append(AdminRequest(method="PUT", path=urls.join_path(name, "_settings"), body=released))
        else:
            requests.append(request)
        requests.append(AdminRequest(method="GET", path=_wait_for_green(name)))
    return dataclasses.replace(preparation, requests=tuple(requests))


def recover_primaries(preparation: Preparation, nodes: Sequence[str], replicas: int) -> Preparation:
    """Add requests for indices that the nodes find in their files: wait for all copies, primaries on the first node.

    After a restart primaries are placed by chance again. If each node has a copy, those of the other nodes are
    cancelled, and recover from the first node.
    """
    if not preparation.indices:
        return preparation
    wait = AdminRequest(
        method="GET",
        path=_wait_for_green(preparation.indices),
        accepted_statuses=(200, 408),
        until_path="status",
        until_value="green",
    )
    if replicas != len(nodes) - 1:
        return dataclasses.replace(preparation, requests_if_preloaded=(wait,))
    settings = (preparation.requests[0].body or {})["settings"]
    commands = [
        {"cancel": {"index": name, "shard": shard, "node": node, "allow_primary": True}}
        for name in preparation.indices
        for shard in range(_count_shards(settings))
        for node in nodes[1:]
    ]
    cancel = AdminRequest(method="POST", path="/_cluster/reroute", body={"commands": commands})
    return dataclasses.replace(preparation, requests_if_preloaded=(wait, cancel, wait))


def _wait_for_green(indices: str | Sequence[str]) -> str:
    return f"/_cluster/health{urls.join_path(indices)}?wait_for_status=green&timeout=50s"


def _replace_unsupported(mapping: dict[str, Any], version: Version) -> None:
    """Replace field types and analyzers that the version lacks, in place."""
    for key, value in list(mapping.items()):
        if isinstance(value, dict):
            _replace_unsupported(value, version)
        elif key in ("type", "analyzer") and isinstance(value, str) and value in version.replaced:
            replacement = version.replaced[value]
            if replacement is None:
                raise SpecError(
                    f'{version.name} {version.number}: no {key} "{value}": its module is not '
                    "published. Choose another version or workload."
                )
            mapping[key] = replacement
            mapping.pop("scaling_factor", None)
