"""Our mark in what a run makes on a server that is not ours, so that it can be told from everybody else's. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ingest_bench.experiment import catalog

# Where what is made beside indices can carry it.
_PLACES: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "create-component-template": lambda mark: {"_meta": _made_by(mark)},
    "create-composable-template": lambda mark: {"_meta": _made_by(mark)},
    "create-index-template": lambda mark: {"mappings": {"_meta": _made_by(mark)}},
    "put-pipeline": lambda mark: {"description": f"made by ingest-bench, run {mark}"},
}


def marked(mapping: Mapping[str, Any], mark: str) -> Mapping[str, Any]:
    """The body of an index's creation, with our mark in it."""
    return catalog.merged(dict(mapping), {"mappings": {"_meta": _made_by(mark)}}) if mark else mapping


def marked_body(operation: str, body: Mapping[str, Any] | None, mark: str) -> dict[str, Any] | None:
    """The body of another request, with our mark in it where it makes something that can carry one."""
    if not mark or body is None or operation not in _PLACES:
        return None if body is None else dict(body)
    return dict(catalog.merged(dict(body), _PLACES[operation](mark)))


def _made_by(mark: str) -> dict[str, str]:
    return {"made_by": "ingest-bench", "run": mark}
