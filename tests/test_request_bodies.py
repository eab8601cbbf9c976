"""Request bodies for a borrowed server: none may change indices of others."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.lab.server import borrowed
from ingest_bench.lab.server.request_bodies import Names
from ingest_bench.lab.steps.parts import Ask, Procedure
from ingest_bench.model.track import AdminRequest
from ingest_bench.targets.http import Answer


def put(path: str, body: Any = None, method: Literal["PUT", "DELETE"] = "PUT") -> AdminRequest:
    return AdminRequest(method=method, path=path, body=body)


def procedure(*requests: AdminRequest, pipelines: tuple[str, ...] = ()) -> Procedure:
    return Procedure(parts=(Ask(name="x", requests=requests),), indices=("mine",), pipelines=pipelines)


def check(procedure: Procedure, **answers: Any) -> tuple[borrowed.Thing, ...]:
    """Check against a server that has these things, by their paths."""

    def request(_method: str, path: str) -> Answer:
        path = path.partition("?")[0]
        none = (200, b"{}") if "*" in path else (404, b"")
        return Answer(200, json.dumps(answers[path]).encode()) if path in answers else Answer(*none)

    server: Any = SimpleNamespace(http=SimpleNamespace(origin="http://h:9200", request=request))
    return borrowed.check(server, procedure)


def pipeline(*processors: Any, **more: Any) -> AdminRequest:
    return put("/_ingest/pipeline/p", {"processors": list(processors), **more})


INDEX = {"settings": {"number_of_shards": 1}, "mappings": {"_meta": {"x": 1}}, "aliases": {}}
COMPOSABLE: dict[str, Any] = {"index_patterns": ["mine*"], "template": INDEX, "priority": 5, "data_stream": {}}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (put("/mine", {"index": {"default_pipeline": "p"}}), 'an index "mine": what the key "index" does to other'),
        (put("/mine", {"aliases": {"{index}-x": {}}}), '"{index}-x": this is no plain name'),
        (put("/mine", {"aliases": {"x\ud800": {}}}), "this is no plain name"),
        (put("/mine", {"settings": {"default_pipeline": "x\ud800"}}), "this is no plain name"),
        (put("/mine", {"aliases": {"<x-{now/d}>": {}}}), "this is no plain name"),
        (put("/mine", {"aliases": ["x"]}), "\"aliases\" is \\['x'\\], and no server takes that there"),
        (put("/mine", {"settings": {"index": {"default_pipeline": ["p"]}}}), 'default_pipeline" is'),
        (put("/mine", {"settings": {"index.plugins.index_state_management.policy_id": "p"}}), "may name a policy"),
        (put("/_index_template/t", {**COMPOSABLE, "index_patterns": ["*"]}), r'holds for "\*", also where'),
        (put("/_index_template/t", {**COMPOSABLE, "index_patterns": ["*-logs"]}), r'holds for "\*-logs", also where'),
        (put("/_template/t", {"index_patterns": "*", "settings": {}}), r'holds for "\*"'),
        (put("/_template/t", {"template": "*", "settings": {}}), r'holds for "\*"'),
        (put("/_template/t", {"index_patterns": ["mine*,-x"]}), "also where indices are not of this run"),
        (put("/_index_template/t", {**COMPOSABLE, "composed_of": ["a*"]}), '"a\\*": this is no plain name'),
        (put("/_component_template/t", {"template": {"x": 1}}), 'what the key "x" does'),
        (put("/mine%2F_alias", {"aliases": {}}), '"mine/_alias": this is no plain name'),
        (pipeline({"set": {"field": "_index", "value": "prod"}}), "'_index': it may change the index of a document"),
        (pipeline({"set": {"field": "_source._index", "value": "prod"}}), "may change the index"),
        (pipeline({"set": {"field": "{{x}}", "value": "prod"}}), "documents say which field that is"),
        (pipeline({"rename": {"field": "x", "target_field": "_index"}}), "may change the index"),
        (pipeline({"lowercase": {"field": "_index"}}), "may change the index"),
        (pipeline({"script": {"source": "ctx['_in'+'dex'] = 'prod'"}}), 'what the processor "script" does'),
        (pipeline({"reroute": {"destination": "prod"}}), 'what the processor "reroute" does'),
        (pipeline({"date_index_name": {"field": "d", "date_rounding": "d"}}), 'the processor "date_index_name" does'),
        (pipeline({"json": {"field": "x", "add_to_root": True}}), "sets fields that documents name"),
        (pipeline({"kv": {"field": "x", "field_split": " ", "value_split": "="}}), "sets fields that documents name"),
        (pipeline({"kv": {"field": "x", "target_field": "_source"}}), "may change the index"),
        (pipeline({"dissect": {"field": "x", "pattern": "%{a*k} %{&k}"}}), "documents say which field"),
        (pipeline({"dissect": {"field": "x", "pattern": "%{_index}"}}), "may change the index"),
        (pipeline({"grok": {"field": "x", "patterns": ["%{WORD:_index}"]}}), "may change the index"),
        (pipeline({"grok": {"field": "x", "patterns": ["%{A}"], "pattern_definitions": {"A": "(?<_index>.)"}}}), "may"),
        (pipeline({"dot_expander": {"field": "*"}}), "documents say which field"),
        (pipeline({"csv": {"field": "x", "target_fields": ["a", "_index"]}}), "may change the index"),
        (pipeline({"foreach": {"field": "x", "processor": {"script": {"source": ""}}}}), 'processor "script" does'),
        (pipeline({"set": {"field": "a", "value": 1, "on_failure": [{"set": {"field": "_index"}}]}}), "may change"),
        (pipeline({"set": {"field": "a", "value": 1}, "script": {"source": ""}}), 'processor "script" does'),
        (pipeline(on_failure=[{"set": {"field": "_index", "value": "failed"}}]), "may change the index"),
        (pipeline({"pipeline": {"name": "{{x}}"}}), "documents say which field"),
        (pipeline({"pipeline": {"name": ["p"]}}), "no server takes that there"),
        (pipeline("script"), "no server takes that there"),
        (put("/_ingest/pipeline/p", {"processors": {"script": {}}}), "no server takes that there"),
    ],
)
def test_a_body_that_may_reach_other_indices_is_refused(request_: AdminRequest, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        borrowed.write_set(procedure(request_))


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
def test_a_body_that_stays_with_the_run_is_accepted(request_: AdminRequest) -> None:
    assert check(procedure(request_))


def test_a_body_that_is_nested_without_end_is_refused() -> None:
    processor: Any = {"drop": {}}
    for _ in range(2000):
        processor = {"foreach": {"field": "x", "processor": processor}}
    with pytest.raises(SpecError, match="nested too deeply"):
        borrowed.write_set(procedure(pipeline(processor)))


PROD: dict[str, Any] = {"prod": {"mappings": {}}}
ALIAS = put("/mine", {"aliases": {"all": {"is_write_index": True}}})
SCRIPT = {"p": {"processors": [{"script": {"source": "ctx._index = 'prod'"}}]}}


@pytest.mark.parametrize(
    ("todo", "there", "message"),
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
            '"p" is used: what the processor "script"',
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
        (procedure(pipelines=("p",)), {"/_ingest/pipeline/p": SCRIPT}, '"p" is used: what the processor "script" does'),
        (
            procedure(put("/mine", {"settings": {"index.final_pipeline": "q"}})),
            {
                "/_ingest/pipeline/q": {"q": {"processors": [{"pipeline": {"name": "p"}}]}},
                "/_ingest/pipeline/p": SCRIPT,
            },
            '"p" is used: what the processor "script"',
        ),
        (
            procedure(put("/_ingest/pipeline/global@custom", {"processors": []})),
            {"/_ingest/pipeline": {"x": {"processors": [{"pipeline": {"name": "global@custom"}}]}}},
            "would become a part of others",
        ),
        (procedure(put("/mine", method="DELETE")), {"/mine/_mapping": PROD}, '"mine" leads to other indices; they are'),
    ],
)
def test_a_name_that_leads_to_something_of_others_is_refused(todo: Procedure, there: Any, message: str) -> None:
    assert check(todo)
    with pytest.raises(SpecError, match=message):
        check(todo, **there)


def test_what_a_track_deletes_before_it_makes_it_may_be_there() -> None:
    requests = (
        put("/_data_stream/mine", method="DELETE"),
        put("/_index_template/t", COMPOSABLE),
        put("/_data_stream/mine"),
    )
    backing: dict[str, Any] = {".ds-mine-2026.11.28-000001": {}, ".ds-mine-000002": {}}
    there = {"/_data_stream/mine": {"data_streams": []}, "/mine*/_mapping": backing, "/mine/_mapping": backing}
    check(procedure(*requests), **there)


def test_a_pipeline_of_the_server_may_call_itself() -> None:
    body = {"p": {"processors": [{"pipeline": {"name": "p"}}], "created_date_millis": 1}}
    assert check(procedure(pipelines=("p",)), **{"/_ingest/pipeline/p": body})


def test_an_alias_that_is_written_to_is_never_deleted_by_its_name() -> None:
    todo = Procedure(parts=(Ask(name="x", requests=(ALIAS,)),), indices=("mine", "all"))
    deleted: list[str] = []
    there: dict[str, Any] = {}

    def request(method: str, path: str, **_more: Any) -> Answer:
        if method == "DELETE":
            deleted.append(path)
        path = path.partition("?")[0]
        return Answer(200, json.dumps(there[path]).encode()) if path in there else Answer(404, b"")

    http: Any = SimpleNamespace(origin="http://h:9200", request=request)
    server: Any = SimpleNamespace(
        is_ours=False, http=http, count=lambda _names: 0, asking=lambda: contextlib.nullcontext(http)
    )
    with borrowed.removed(server, todo, "mark"):
        there |= {f"/{name}/_mapping": {"mine": {"run": "mark"}} for name in ("mine", "all")}
    assert deleted == ["/mine"]


def test_names_of_settings_are_read_in_every_spelling() -> None:
    names = Names()
    for number, settings in enumerate(
        ({"default_pipeline": "0"}, {"index.default_pipeline": "1"}, {"index": {"default_pipeline": "2"}})
    ):
        names.read("index", {"settings": settings})
        assert str(number) in names.pipelines


def check_made(**answers: Any) -> None:
    """Check before a load into "mine", on a server that has these things, by their paths."""

    def request(_method: str, path: str) -> Answer:
        path = path.partition("?")[0]
        return Answer(200, json.dumps(answers[path]).encode()) if path in answers else Answer(404, b"")

    http = SimpleNamespace(origin="http://h:9200", request=request)
    borrowed.check_made(SimpleNamespace(http=http, is_ours=False), procedure(put("/mine", INDEX)))  # type: ignore[arg-type]


SIMULATED = "/_index_template/_simulate_index/mine"
WITH_PIPELINE = {"settings": {"index": {"number_of_shards": "1", "final_pipeline": "p"}}, "aliases": {}}
WITH_ALIAS = {"settings": {"index": {"uuid": "u"}}, "aliases": {"all": {"is_write_index": True}}}


@pytest.mark.parametrize(
    "made",
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
def test_a_template_of_the_server_that_reaches_other_indices_ends_the_run(made: Any) -> None:
    check_made(**made, **{"/all/_mapping": {"mine": {}}, "/_ingest/pipeline/p": {"p": {"processors": []}}})
    with pytest.raises(RunFailed, match="A template of the server says so"):
        check_made(**made, **{"/all/_mapping": {"mine": {}, **PROD}, "/_ingest/pipeline/p": SCRIPT})


def test_a_template_of_the_server_for_other_indices_is_no_matter() -> None:
    check_made(**{"/_template": {"t": {"index_patterns": ["mine-*"], **WITH_PIPELINE}}, "/_ingest/pipeline/p": SCRIPT})
    check_made(**{"/mine": {"mine": {"settings": {}}}, SIMULATED: {"template": WITH_PIPELINE}})
