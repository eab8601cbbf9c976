"""The names that bodies of requests bring in: aliases, index patterns, component templates and ingest pipelines. Pure.

By its body a request reaches further than its path says: an alias may lead to other indices, a template holds for each
new index of its patterns, and a pipeline can send a document elsewhere. So only keys and processors whose effect is
known are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ingest_bench.units import quoted

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
# "lifecycle" of a data stream says how long its own documents are kept.
_TEMPLATE = _INDEX | {"lifecycle"}
_PIPELINE_SETTINGS = ("default_pipeline", "final_pipeline")
# By these a policy of the server may copy an index into another one (rollup jobs, replication).
_POLICIES = ("plugins", "opendistro", "xpack")
# Processors that change only the fields that they name (ingest processors of OpenSearch 3.8 and Elasticsearch 8.19).
# Not among them: script, reroute and date_index_name choose an index; others are unknown.
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
# Texts that name no field: conditions read only, and values are no paths.
_NO_FIELDS = frozenset({"description", "tag", "if", "value", "message"})
_APART = frozenset({"on_failure", "processor"})
# A template of Mustache, and the keys of a dissect pattern that stand in the document.
_DYNAMIC = re.compile(r"\{\{|%\{[^}]*[*&]")


@dataclass(frozen=True, slots=True)
class Names:
    """Names in the bodies that were read."""

    aliases: set[str] = field(default_factory=set)
    patterns: set[str] = field(default_factory=set)
    """Patterns of the indices that a template applies to."""
    components: set[str] = field(default_factory=set)
    pipelines: set[str] = field(default_factory=set)

    def read(self, kind: str, body: Mapping[str, Any]) -> None:
        """Add the names in the body of a creation; ValueError for what may reach other indices."""
        _only(body, _KEYS[kind], "key")
        if kind == "_ingest/pipeline":
            self.read_pipeline(body)
        elif kind in ("index", "_template"):
            self.read_index({key: body[key] for key in body.keys() & _INDEX})
        else:
            self.read_index(_table(body, "template"))
        # Before 6.0 "template" was the pattern.
        for key in ("index_patterns", "template") if kind == "_template" else ("index_patterns",):
            self.patterns.update(_texts(body, key))
        self.components.update(_texts(body, "composed_of"))

    def read_index(self, body: Mapping[str, Any]) -> None:
        """Add the names in the body of an index; ValueError for what may reach other indices."""
        _only(body, _TEMPLATE, "key")
        self.aliases.update(_table(body, "aliases"))
        for key, value in _flat(_table(body, "settings")):
            name = key.removeprefix("index.")
            if name in _PIPELINE_SETTINGS and value not in ("_none", None):
                self.pipelines.add(_typed(value, str, key))
            if name.partition(".")[0] in _POLICIES:
                raise ValueError(f'the setting "{key}" may name a policy that writes to other indices')

    def read_pipeline(self, body: Mapping[str, Any]) -> None:
        """Add the pipelines that this one calls; ValueError for a processor that may reach other indices."""
        for key in ("processors", "on_failure"):
            for processor in _list(body, key):
                for name, options in _typed(processor, dict, key).items():
                    self._read_processor(name, options)

    def _read_processor(self, name: str, options: Any) -> None:
        _only({name: options}, _PROCESSORS, "processor")
        _typed(options, dict, name)
        self.read_pipeline({key: options[key] for key in options.keys() & {"on_failure"}})
        if name == "foreach":
            self.read_pipeline({"processors": [options.get("processor")]})
        if name == "pipeline":
            self.pipelines.add(_typed(options.get("name"), str, "name"))
        if name == "kv" and not options.get("target_field"):
            raise ValueError('the processor "kv" without a "target_field" sets fields that documents name')
        if name == "json" and options.get("add_to_root") not in (None, False):
            raise ValueError('the processor "json" with "add_to_root" sets fields that documents name')
        for text in _strings({key: options[key] for key in options.keys() - _NO_FIELDS - _APART}):
            if "_index" in text or "_source" in text:
                raise ValueError(f'the processor "{name}" has {quoted(text)}: it may change the index of a document')
            if _DYNAMIC.search(text) or (name == "dot_expander" and text == "*"):
                raise ValueError(f'the processor "{name}" has {quoted(text)}: documents say which field that is')


def _only(table: Mapping[str, Any], allowed: frozenset[str], what: str) -> None:
    if unknown := sorted(table.keys() - allowed):
        raise ValueError(f'what the {what} "{unknown[0]}" does to other indices is not known')


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Return the settings by their full names, however they are nested."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield before + key, value


def _strings(value: Any) -> Iterator[str]:
    """Yield all keys and texts."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
    elif isinstance(value, str):
        yield value


def _table(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value: Mapping[str, Any] = _typed(body.get(key) or {}, dict, key)
    return value


def _list(body: Mapping[str, Any], key: str) -> list[Any]:
    value: list[Any] = _typed(body.get(key) or [], list, key)
    return value


def _texts(body: Mapping[str, Any], key: str) -> list[str]:
    value = body.get(key)
    return [_typed(text, str, key) for text in ([value] if isinstance(value, str) else _list(body, key))]


def _typed(value: Any, kind: type, key: str) -> Any:
    """Return the value; ValueError if it is of another kind than the server takes there."""
    if isinstance(value, kind):
        return value
    raise ValueError(f'"{key}" is {quoted(value)}, and no server takes that there')
