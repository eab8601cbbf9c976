"""Requests to a server that is not ours: none may change objects of others."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.lab.planning import Procedure, Requests
from ingest_bench.lab.server import borrowed
from ingest_bench.lab.server.borrowed import Names
from ingest_bench.model.load import AdminRequest
from ingest_bench.targets.http import Response


def put(path: str, body: Any = None, method: Literal["PUT", "DELETE"] = "PUT") -> AdminRequest:
    return AdminRequest(method=method, path=path, body=body)


def procedure(*requests: AdminRequest, pipelines: tuple[str, ...] = ()) -> Procedure:
    return Procedure(steps=(Requests(name="x", requests=requests),), indices=("mine",), pipelines=pipelines)


def server_with(objects: dict[str, Any], deleted: list[str] | None = None) -> Any:
    """Return a server with these objects, by path. It appends deleted paths to *deleted*."""

    def request(method: str, path: str, **_: Any) -> Response:
        if method == "DELETE" and deleted is not None:
            deleted.append(path)
        path = path.partition("?")[0]
        missing = (200, b"{}") if "*" in path else (404, b"")
        return Response(200, json.dumps(objects[path]).encode()) if path in objects else Response(*missing)

    http = SimpleNamespace(origin="http://h:9200", request=request)
    return SimpleNamespace(
        is_launched=False, target=None, http=http, count=lambda _: 0, connect=lambda: contextlib.nullcontext(http)
    )


def check(procedure: Procedure, **objects: Any) -> tuple[borrowed.ServerObject, ...]:
    return borrowed.check_conflicts(server_with(objects), procedure)


def pipeline(*processors: Any, **more: Any) -> AdminRequest:
    return put("/_ingest/pipeline/p", {"processors": list(processors), **more})


INDEX = {"settings": {"number_of_shards": 1}, "mappings": {"_meta": {"x": 1}}, "aliases": {}}
COMPOSABLE: dict[str, Any] = {"index_patterns": ["mine*"], "template": INDEX, "priority": 5, "data_stream": {}}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (put("/mine", {"index": {"default_pipeline": "p"}}), 'an index "mine": the effect of the key "index" on other'),
        (put("/mine", {"aliases": {"{index}-x": {}}}), '"{index}-x" is not a plain name'),
        (put("/mine", {"aliases": {"x\ud800": {}}}), "is not a plain name"),
        (put("/mine", {"settings": {"default_pipeline": "x\ud800"}}), "is not a plain name"),
        (put("/mine", {"aliases": ["x"]}), "\"aliases\" is \\['x'\\], which no server accepts"),
        (put("/mine", {"settings": {"index": {"default_pipeline": ["p"]}}}), 'default_pipeline" is'),
        (put("/mine", {"settings": {"index.plugins.index_state_management.policy_id": "p"}}), "may name a policy"),
        (put("/_index_template/t", {**COMPOSABLE, "index_patterns": ["*"]}), r'applies to "\*", which includes'),
        (put("/_template/t", {"index_patterns": "*", "settings": {}}), r'applies to "\*"'),
        (put("/_template/t", {"template": "*", "settings": {}}), r'applies to "\*"'),
        (put("/_template/t", {"index_patterns": ["mine*,-x"]}), "which includes indices of others"),
        (put("/_index_template/t", {**COMPOSABLE, "composed_of": ["a*"]}), '"a\\*" is not a plain name'),
        (put("/_component_template/t", {"template": {"x": 1}}), 'the effect of the key "x"'),
        (put("/mine%2F_alias", {"aliases": {}}), '"mine/_alias" is not a plain name'),
        (pipeline({"set": {"field": "_index", "value": "prod"}}), "'_index': it may change a document's index"),
        (pipeline({"set": {"field": "_source._index", "value": "prod"}}), "may change a document.s index"),
        (pipeline({"set": {"field": "{{x}}", "value": "prod"}}), "documents choose the field"),
        (pipeline({"script": {"source": "ctx['_in'+'dex'] = 'prod'"}}), 'the effect of the processor "script"'),
        (pipeline({"json": {"field": "x", "add_to_root": True}}), "sets fields that documents name"),
        (pipeline({"kv": {"field": "x", "field_split": " ", "value_split": "="}}), "sets fields that documents name"),
        (pipeline({"dissect": {"field": "x", "pattern": "%{a*k} %{&k}"}}), "documents choose the field"),
        (pipeline({"grok": {"field": "x", "patterns": ["%{A}"], "pattern_definitions": {"A": "(?<_index>.)"}}}), "may"),
        (pipeline({"dot_expander": {"field": "*"}}), "documents choose the field"),
        (pipeline({"csv": {"field": "x", "target_fields": ["a", "_index"]}}), "may change a document.s index"),
        (pipeline({"foreach": {"field": "x", "processor": {"script": {"source": ""}}}}), 'processor "script" on other'),
        (pipeline({"set": {"field": "a", "value": 1, "on_failure": [{"set": {"field": "_index"}}]}}), "may change"),
        (pipeline({"set": {"field": "a", "value": 1}, "script": {"source": ""}}), 'processor "script" on other'),
        (pipeline(on_failure=[{"set": {"field": "_index", "value": "failed"}}]), "may change a document.s index"),
        (pipeline({"pipeline": {"name": "{{x}}"}}), "documents choose the field"),
        (pipeline({"pipeline": {"name": ["p"]}}), "which no server accepts"),
        (pipeline("script"), "which no server accepts"),
        (put("/_ingest/pipeline/p", {"processors": {"script": {}}}), "which no server accepts"),
    ],
)
def test_body_that_may_affect_other_indices_is_refused(request_: AdminRequest, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        borrowed.compute_write_set(procedure(request_))


@pytest.mark.parametrize(
    "request_",
    [
        put("/mine", INDEX),
        put("/mine", {"settings": {"index.lifecycle.name": "logs", "default_pipeline": "_none"}}),
        put("/mine", {"aliases": {"mine-too": {"is_write_index": True}}}),
        put("/_index_template/t", COMPOSABLE),
        put("/_template/t", {"index_patterns": ["mine*"], **INDEX}),
        put("/_component_template/t", {"template": {"lifecycle": {"data_retention": "7d"}}}),
        put("/_data_stream/mine"),
        pipeline({"set": {"field": "origin", "value": "{{_index}}", "if": "ctx._index == 'x'"}}),
        pipeline({"kv": {"field": "x", "target_field": "pairs"}}, {"json": {"field": "x", "add_to_root": False}}),
        pipeline({"foreach": {"field": "x", "processor": {"uppercase": {"field": "_ingest._value"}}}}),
        pipeline({"grok": {"field": "message", "patterns": ["%{IP:ip} %{GREEDYDATA:rest}"]}}),
    ],
)
def test_body_that_affects_only_the_run_is_accepted(request_: AdminRequest) -> None:
    assert check(procedure(request_))


def test_deeply_nested_body_is_refused() -> None:
    processor: Any = {"drop": {}}
    for _ in range(2000):
        processor = {"foreach": {"field": "x", "processor": processor}}
    with pytest.raises(SpecError, match="nested too deeply"):
        borrowed.compute_write_set(procedure(pipeline(processor)))


PROD: dict[str, Any] = {"prod": {"mappings": {}}}
ALIAS = put("/mine", {"aliases": {"all": {"is_write_index": True}}})
SCRIPT = {"p": {"processors": [{"script": {"source": "ctx._index = 'prod'"}}]}}


@pytest.mark.parametrize(
    ("steps", "objects", "message"),
    [
        (procedure(ALIAS), {"/all/_mapping": PROD}, 'names "all", and there is an index "prod" already; it is not tou'),
        (
            procedure(put("/_data_stream/mine", method="DELETE")),
            {"/mine/_mapping": {"mine": {}}},
            'names "mine", and there is an index "mine" already',
        ),
        (
            procedure(put("/_data_stream/mine")),
            {"/mine/_mapping": {".ds-prod-2026.11.28-000001": {}}},
            'names "mine", and there is a data stream "prod" already',
        ),
        (
            procedure(put("/_ingest/pipeline/p", method="DELETE"), pipeline(), pipelines=("p",)),
            {"/_ingest/pipeline/p": SCRIPT},
            '"p" is used: the effect of the processor "script"',
        ),
        (
            procedure(put("/_index_template/t", COMPOSABLE)),
            {"/mine*/_mapping": {"mine-2": {}}},
            'there is an index "mine-2"',
        ),
        (
            procedure(put("/_index_template/t", {**COMPOSABLE, "composed_of": ["c"]})),
            {"/_component_template/c": {"component_templates": []}},
            'names "c", and there is a component template "c" already',
        ),
        (
            procedure(pipelines=("p",)),
            {"/_ingest/pipeline/p": SCRIPT},
            '"p" is used: the effect of the processor "script"',
        ),
        (
            procedure(put("/mine", {"settings": {"index.final_pipeline": "q"}})),
            {
                "/_ingest/pipeline/q": {"q": {"processors": [{"pipeline": {"name": "p"}}]}},
                "/_ingest/pipeline/p": SCRIPT,
            },
            '"p" is used: the effect of the processor "script"',
        ),
        (
            procedure(put("/_ingest/pipeline/global@custom", {"processors": []})),
            {"/_ingest/pipeline": {"x": {"processors": [{"pipeline": {"name": "global@custom"}}]}}},
            "would become part of existing objects",
        ),
        (procedure(put("/mine", method="DELETE")), {"/mine/_mapping": PROD}, '"mine" leads to other indices; they are'),
    ],
)
def test_name_of_an_existing_object_of_others_is_refused(steps: Procedure, objects: Any, message: str) -> None:
    assert check(steps)
    with pytest.raises(SpecError, match=message):
        check(steps, **objects)


@pytest.mark.parametrize(
    ("meta", "owner"),
    [({"made_by": "ingest-bench"}, "a killed run of ingest-bench left it"), ({}, "it is not touched")],
)
def test_existing_index_is_refused_with_its_owner(meta: dict[str, str], owner: str) -> None:
    objects = {"/mine/_mapping": {"mine": {"mappings": {"_meta": meta}}}}
    with pytest.raises(SpecError, match=rf"{owner}\. If it is not needed, .*: curl -X DELETE http://h:9200/mine"):
        check(procedure(put("/mine", INDEX)), **objects)


def test_objects_that_a_track_deletes_first_may_exist() -> None:
    requests = (
        put("/_data_stream/mine", method="DELETE"),
        put("/_index_template/t", COMPOSABLE),
        put("/_data_stream/mine"),
    )
    backing: dict[str, Any] = {".ds-mine-2026.11.28-000001": {}, ".ds-mine-000002": {}}
    objects = {"/_data_stream/mine": {"data_streams": []}, "/mine*/_mapping": backing, "/mine/_mapping": backing}
    check(procedure(*requests), **objects)


def test_pipeline_of_the_server_may_call_itself() -> None:
    body = {"p": {"processors": [{"pipeline": {"name": "p"}}], "created_date_millis": 1}}
    assert check(procedure(pipelines=("p",)), **{"/_ingest/pipeline/p": body})


def test_cleanup_never_deletes_an_alias_by_its_name() -> None:
    steps = Procedure(steps=(Requests(name="x", requests=(ALIAS,)),), indices=("mine", "all"))
    deleted: list[str] = []
    objects: dict[str, Any] = {}
    with borrowed.clean_up_after(server_with(objects, deleted), steps, "mark"):
        objects |= {f"/{name}/_mapping": {"mine": {"run": "mark"}} for name in ("mine", "all")}
    assert deleted == ["/mine"]


def test_settings_are_read_in_every_nesting() -> None:
    names = Names()
    for number, settings in enumerate(
        ({"default_pipeline": "0"}, {"index.default_pipeline": "1"}, {"index": {"default_pipeline": "2"}})
    ):
        names.read("index", {"settings": settings})
        assert str(number) in names.pipelines


def check_templates(**objects: Any) -> None:
    """Check before a load into "mine", on a server with these objects."""
    borrowed.check_templates(server_with(objects), procedure(put("/mine", INDEX)))


SIMULATED = "/_index_template/_simulate_index/mine"
WITH_PIPELINE = {"settings": {"index": {"number_of_shards": "1", "final_pipeline": "p"}}, "aliases": {}}
WITH_ALIAS = {"settings": {"index": {"uuid": "u"}}, "aliases": {"all": {"is_write_index": True}}}


@pytest.mark.parametrize(
    "objects",
    [
        {"/mine": {"mine": WITH_PIPELINE}},
        {"/mine": {".ds-mine-000001": {"settings": {}}, ".ds-mine-000002": WITH_PIPELINE}},
        {SIMULATED: {"template": WITH_PIPELINE, "overlapping": []}},
        {"/_template": {"t": {"index_patterns": ["x", "m*e"], **WITH_PIPELINE}}},
        {SIMULATED: {}, "/_template": {"t": {"template": "*", **WITH_PIPELINE}}},
        {"/mine": {"mine": WITH_ALIAS}},
        {"/_template": {"t": {"index_patterns": ["*"], **WITH_ALIAS}}},
    ],
)
def test_template_of_the_server_that_affects_other_indices_fails_the_run(objects: Any) -> None:
    check_templates(**objects, **{"/all/_mapping": {"mine": {}}, "/_ingest/pipeline/p": {"p": {"processors": []}}})
    with pytest.raises(RunFailed, match="A template of the server requires it"):
        check_templates(**objects, **{"/all/_mapping": {"mine": {}, **PROD}, "/_ingest/pipeline/p": SCRIPT})


def test_template_of_the_server_for_other_indices_is_ignored() -> None:
    check_templates(
        **{"/_template": {"t": {"index_patterns": ["mine-*"], **WITH_PIPELINE}}, "/_ingest/pipeline/p": SCRIPT}
    )
    check_templates(**{"/mine": {"mine": {"settings": {}}}, SIMULATED: {"template": WITH_PIPELINE}})
