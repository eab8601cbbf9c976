"""What a track declares beside its documents: indices, data streams and templates, each with its name and body."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ingest_bench.documents.tracks.template import Templates
from ingest_bench.errors import SpecError
from ingest_bench.model.track import TrackIndex, TrackTemplate

# MetadataCreateIndexService.validateIndexOrAliasName of both servers: none of these, and none of the three in front.
_INDEX = re.compile(r'(?!\.{1,2}$)[^\s"*\\<>|,/?#:_+-][^\s"*\\<>|,/?#:]*')
_LONGEST_INDEX_BYTES = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What operations mean when they name nothing themselves."""

    indices: tuple[TrackIndex, ...] = ()
    streams: tuple[str, ...] = ()
    templates: tuple[TrackTemplate, ...] = ()
    """Of the old kind."""
    composable: tuple[TrackTemplate, ...] = ()
    components: tuple[TrackTemplate, ...] = ()

    @property
    def names(self) -> list[str]:
        """What can be written to or asked about."""
        return [*(index.name for index in self.indices), *self.streams]


def declared(table: Mapping[str, Any], templates: Templates, where: str) -> Declared:
    """All declarations of a track's file; SpecError says which one is wrong."""
    found = Declared(
        indices=tuple(_index(one, templates, where) for one in listed(table, "indices", where)),
        streams=tuple(_stream(one, templates, where) for one in listed(table, "data-streams", where)),
        templates=_templates(table, "templates", templates, where),
        composable=_templates(table, "composable-templates", templates, where),
        components=_templates(table, "component-templates", templates, where),
    )
    if found.indices and found.streams:
        raise SpecError(f'{where}: has "indices" and "data-streams"; a track may have one of the two')
    return found


def listed(table: Mapping[str, Any], key: str, where: str) -> Sequence[Mapping[str, Any]]:
    """The objects that stand under a key; none when it is not there."""
    found = table.get(key, ())
    if not isinstance(found, list | tuple) or not all(isinstance(one, dict) for one in found):
        raise SpecError(f'{where}: "{key}" is not a list of objects, as a track has it')
    return found


def index_name(name: str, where: str) -> str:
    """The name, when an index may be called so; SpecError otherwise. The server itself may have more to say."""
    if not _INDEX.fullmatch(name) or not name.isprintable() or len(name.encode()) > _LONGEST_INDEX_BYTES:
        raise SpecError(f"{where}: no index can be called {name[:60]!r}")
    return name


def _named(table: Mapping[str, Any], kind: str, where: str) -> str:
    if "name" not in table:
        raise SpecError(f'{where}: one of "{kind}" has no "name"')
    return str(table["name"])


def _stream(table: Mapping[str, Any], templates: Templates, where: str) -> str:
    """A name, or a pattern: tracks declare those to delete them."""
    name = templates.complete(_named(table, "data-streams", where), "data-streams")
    index_name(name.replace("*", "x"), f"{where}: data-streams")
    return name


def _index(table: Mapping[str, Any], templates: Templates, where: str) -> TrackIndex:
    name = index_name(templates.complete(_named(table, "indices", where), "indices"), f"{where}: indices")
    body = templates.json(str(table["body"])) if table.get("body") else {}
    return TrackIndex(name=name, body=_object(templates.complete(body, f"index {name}"), f"{where}: index {name}"))


def _templates(table: Mapping[str, Any], key: str, templates: Templates, where: str) -> tuple[TrackTemplate, ...]:
    return tuple(_template(one, key, templates, where) for one in listed(table, key, where))


def _template(table: Mapping[str, Any], key: str, templates: Templates, where: str) -> TrackTemplate:
    name = templates.complete(_named(table, key, where), key)
    if not table.get("template"):
        raise SpecError(f'{where}: {key}: "{name}" has no "template", the file that it is in')
    body = templates.json(str(table["template"]))
    for part in filter(None, str(table.get("template-path", "")).split(".")):
        if not isinstance(body, dict) or part not in body:
            raise SpecError(f'{where}: {key}: {table["template"]} has nothing at the "template-path" of "{name}"')
        body = body[part]
    return TrackTemplate(name=name, body=_object(templates.complete(body, f"{key} {name}"), f"{where}: {key} {name}"))


def _object(body: Any, where: str) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise SpecError(f"{where}: its file holds no JSON object")
    return body
