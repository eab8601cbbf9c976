"""A workload's index as one version of a server understands it."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any

from ingest_bench.errors import SpecError
from ingest_bench.inputs import urls
from ingest_bench.model.target import Preparation
from ingest_bench.model.track import AdminRequest
from ingest_bench.units import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ingest_bench.targets.elastic.node_options import Version

# The type of every document where there are types (before 7).
TYPE = "doc"
# What a server takes where nobody tells it else (es.index.max_number_of_shards, opensearch.index.max_number_of_shards).
_MOST_SHARDS = 1024
_NONE = object()


def body(
    mapping: Mapping[str, Any], version: Version, *, replicas: int = 0, whatever_it_says: bool = False
) -> dict[str, Any]:
    """The body of an index's creation, as that version understands it: one shard and so many copies beside it.

    Unless the mapping says else; of the copies also `whatever_it_says`. Where there are copies no document is taken
    before all of them are there.
    """
    created = copy.deepcopy(dict(mapping))
    given = created["settings"] = _table(created, "settings")
    if whatever_it_says:
        for table, name in _ways(given, "number_of_replicas"):
            table.pop(name, None)
    usual: dict[str, int | str] = {"number_of_shards": 1, "number_of_replicas": replicas}
    if replicas:
        usual["write.wait_for_active_shards"] = "all"
    for key, value in usual.items():
        if _setting(given, key) is _NONE:
            given[f"index.{key}"] = value
    _shards(given)
    _replace(_table(created, "mappings"), version)
    if version.before_7 and "mappings" in created:
        created["mappings"] = {TYPE: created["mappings"]}
    return created


def _ways(settings: dict[str, Any], key: str) -> tuple[tuple[dict[str, Any], str], ...]:
    """In which table of an index's settings, and under which name, a key may stand."""
    return (settings, f"index.{key}"), (settings, key), (_table(settings, "index"), key)


def _setting(settings: dict[str, Any], key: str) -> Any:
    """What the settings of an index say for a key."""
    return next((table[name] for table, name in _ways(settings, key) if name in table), _NONE)


def _shards(settings: dict[str, Any]) -> int:
    """How many shards the settings of an index give it; SpecError where they give no such number."""
    found = _setting(settings, "number_of_shards")
    text = str(found)
    is_number = isinstance(found, int | str) and not isinstance(found, bool) and text.isascii() and text.isdigit()
    if not is_number or len(text) > 4 or not 1 <= int(text) <= _MOST_SHARDS:
        raise SpecError(
            f'mapping: "number_of_shards" is {quoted(found)}; write a whole number from 1 to {_MOST_SHARDS}'
        )
    return int(text)


def _table(body: dict[str, Any], key: str) -> dict[str, Any]:
    """The table under a key, an empty one where there is none."""
    found = body.get(key, {})
    if not isinstance(found, dict):
        raise SpecError(f'mapping: "{key}" is {quoted(found)}, not a table; write it as the server takes it')
    return found


def creation(names: Sequence[str], created: Mapping[str, Any]) -> Preparation:
    """These indices made with such a body, and where they are searched."""
    return Preparation(
        requests=tuple(AdminRequest(method="PUT", path=urls.path(name), body=dict(created)) for name in names),
        indices=tuple(names),
        search_path=urls.path(names, "_search"),
    )


def copied(prepared: Preparation, first: str) -> Preparation:
    """The same indices, whose first copy is on the node of that name, and all copies are there before a load.

    Where a cluster puts the first copy is chance, and which nodes wait for which others depends on it.
    """
    requests = []
    for name, request in zip(prepared.indices, prepared.requests, strict=True):
        body = request.body or {}
        replicas = body["settings"].get("index.number_of_replicas")
        if replicas:
            held = {"index.number_of_replicas": 0, "index.routing.allocation.include._name": first}
            released = {"index.number_of_replicas": replicas, "index.routing.allocation.include._name": None}
            requests.append(dataclasses.replace(request, body={**body, "settings": body["settings"] | held}))
            requests.append(AdminRequest(method="PUT", path=urls.path(name, "_settings"), body=released))
        else:
            requests.append(request)
        green = f"/_cluster/health{urls.path(name)}?wait_for_status=green&timeout=50s"
        requests.append(AdminRequest(method="GET", path=green))
    return dataclasses.replace(prepared, requests=tuple(requests))


def found_again(prepared: Preparation, nodes: Sequence[str], replicas: int) -> Preparation:
    """The same indices, which nodes of these names find in their files: then, too, all copies are there before a load.

    Where each node has one the first one is on the first node. After a start that is chance again: the others are given
    up, and come back from what their nodes have.
    """
    if not prepared.indices:
        return prepared
    green = AdminRequest(
        method="GET",
        path=f"/_cluster/health{urls.path(prepared.indices)}?wait_for_status=green&timeout=50s",
        accept=(200, 408),
        until_path="status",
        until_value="green",
    )
    if replicas != len(nodes) - 1:
        return dataclasses.replace(prepared, requests_again=(green,))
    given = (prepared.requests[0].body or {})["settings"]
    others = [
        {"cancel": {"index": name, "shard": shard, "node": node, "allow_primary": True}}
        for name in prepared.indices
        for shard in range(_shards(given))
        for node in nodes[1:]
    ]
    first = AdminRequest(method="POST", path="/_cluster/reroute", body={"commands": others})
    return dataclasses.replace(prepared, requests_again=(green, first, green))


def _replace(mapping: dict[str, Any], version: Version) -> None:
    """Other field types and analyzers, in place, where the version has not those of the mapping."""
    for key, value in list(mapping.items()):
        if isinstance(value, dict):
            _replace(value, version)
        elif key in ("type", "analyzer") and isinstance(value, str) and value in version.replaced:
            other = version.replaced[value]
            if other is None:
                raise SpecError(
                    f'{version.archive.name} {version.archive.version}: it has no {key} "{value}", the module is not '
                    "published. Choose another version or workload."
                )
            mapping[key] = other
            mapping.pop("scaling_factor", None)
