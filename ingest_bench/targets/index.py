"""A workload's index as one version of a server understands it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from ingest_bench.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingest_bench.targets.node_options import Version

# The type of every document where there are types (before 7).
TYPE = "doc"


def body(mapping: Mapping[str, Any], version: Version) -> dict[str, Any]:
    """The body of an index's creation, as that version understands it: one shard and no replica, unless it says so."""
    created = copy.deepcopy(dict(mapping))
    given = created.setdefault("settings", {})
    flat = given.get("index", given)
    for key in ("number_of_shards", "number_of_replicas"):
        if key not in flat and f"index.{key}" not in given:
            given[f"index.{key}"] = 1 if key == "number_of_shards" else 0
    _replace(created.get("mappings", {}), version)
    if version.before_7 and "mappings" in created:
        created["mappings"] = {TYPE: created["mappings"]}
    return created


def _replace(mapping: dict[str, Any], version: Version) -> None:
    """Other field types and analyzers, in place, where the version has not those of the mapping."""
    for key, value in list(mapping.items()):
        if isinstance(value, dict):
            _replace(value, version)
        elif key in ("type", "analyzer") and value in version.replaced:
            other = version.replaced[value]
            if other is None:
                raise SpecError(
                    f'{version.archive.name} {version.archive.version}: it has no {key} "{value}", the module is not '
                    "published. Choose another version or workload."
                )
            mapping[key] = other
            mapping.pop("scaling_factor", None)
