"""Streams, templates, pipelines, parallel tasks and parameters of reader, as steps of a run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import example_runs
import pytest
from example_tracks import (
    BULK,
    DOCUMENTS,
    SEND,
    bulk_operation,
    bulk_steps,
    bulk_task,
    read_track,
    write_track,
)

from ingest_bench import system
from ingest_bench.documents import corpus_download
from ingest_bench.documents.tracks import reader
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.lab import planning
from ingest_bench.lab.planning import Loads, Procedure
from ingest_bench.lab.server import borrowed
from ingest_bench.lab.server.borrowed import ServerObject
from ingest_bench.load.arrivals import schedule
from ingest_bench.load.plan import LoadPlan
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import Arrivals, LoadOptions, Rate, Track, TrackOptions
from ingest_bench.model.target import Endpoint, ServerAddress, TargetOptions

STREAMS = Path(__file__).parent / "data" / "streams"
PLACE = ServerAddress(endpoint=Endpoint("192.0.2.1", 9200))
SECOND = 10**9


def options(track: Track, operation: str) -> list[tuple[str, str, Any]]:
    requests = [request for step in track.steps if step.operation == operation for request in step.requests]
    return [(request.method, request.path, request.body) for request in requests]


def of(folder: Path, *, mark: str = "", target: TargetOptions | None = None) -> Procedure:
    cell = example_runs.cell(load=LoadOptions(track=TrackOptions(path=str(folder))))
    cell = dataclasses.replace(cell, target=target or cell.target)
    return planning.build_procedure(cell, PLACE, Path("out"), may_delete=True, mark=mark)


def test_streams_templates_and_pipelines_are_created_in_order() -> None:
    track = reader.read_track(STREAMS)
    assert [step.operation for step in track.steps] == [
        "delete-data-stream",
        "delete-composable-template",
        "delete-component-template",
        "delete-index",
        "create-component-template",
        "create-composable-template",
        "create-index-template",
        "create-data-stream",
        "put-pipeline",
        "bulk",
        "bulk",
        "refresh",
    ]
    ((_, path, body),) = options(track, "create-composable-template")
    assert path == "/_index_template/logs"
    assert body["template"]["settings"] == {"index.number_of_shards": 1}
    assert body["data_stream"] == {}
    assert options(track, "create-data-stream") == [("PUT", "/_data_stream/logs-app", None)]
    assert options(track, "delete-data-stream") == [("DELETE", "/_data_stream/logs-app", None)]
    assert [path for _, path, _ in options(track, "create-component-template")] == [
        "/_component_template/logs-settings"
    ]
    assert [path for _, path, _ in options(track, "create-index-template")] == ["/_template/old-rides"]
    assert [path for _, path, _ in options(track, "put-pipeline")] == ["/_ingest/pipeline/clean"]
    assert track.steps[-1].requests[0].path == "/logs-app/_refresh?ignore_unavailable=true"


def test_data_stream_is_filled_by_create_and_index_by_index() -> None:
    logs, rides = bulk_steps(reader.read_track(STREAMS))
    assert logs.files[0].index == "logs-app"
    assert (logs.files[0].is_data_stream, rides.files[0].is_data_stream) == (True, False)
    plans = of(STREAMS).plans
    bodies = [next(plan.open_source().bodies_of(0)).data for plan in plans]
    assert bytes(bodies[0]).startswith(b'{"create":{"_index":"logs-app"}}\n{"@timestamp"')
    assert bytes(bodies[1]).startswith(b'{"index":{"_index":"rides-1"}}\n{"n":0}')


def operation(kind: str, **keys: Any) -> list[Any]:
    return [{"operation": {"operation-type": kind, **keys}}, SEND]


PIPELINE: dict[str, Any] = {"id": "p", "body": []}
COUNTED: dict[str, Any] = {"retry-until-success": True, "condition": 5}
# A schedule, other keys of the track, and a part of the message.
REFUSED: list[tuple[list[Any], dict[str, Any], str]] = [
    ([SEND], {"data-streams": [{"name": "s"}]}, '"indices" cannot be combined with "data-streams"'),
    ([SEND], {"templates": [{"name": "t"}]}, 'templates: "t" has no "template", the file that it is in'),
    ([SEND], {"composable-templates": [{"name": "t", "template": "docs.json"}]}, "is not JSON"),
    ([SEND], {"component-templates": {"name": "t"}}, '"component-templates" is not a list of objects'),
    ([SEND], {"corpora": "all"}, '"corpora" is not a list of objects'),
    ([SEND], {"challenge": "x"}, """"challenge" is 'x', not an object"""),
    ([SEND], {"operations": [{**BULK, "param-source": "own-code"}]}, "only sends what code of the track "),
    ([{}], {}, 'a task of the schedule has no "operation"'),
    ([{"parallel": []}], {}, '"parallel" is [], not an object with "tasks"'),
    # Operations.
    (operation("put-pipeline", body={}), {}, '"id", the name of the pipeline, is missing'),
    (operation("put-pipeline", **PIPELINE), {}, 'put-pipeline: "body" must be a JSON object'),
    (operation("create-index-template", template="t"), {}, 'the track does not declare "t"'),
    (operation("create-index", index="x"), {}, '"x" is not declared under "indices" and the operation has'),
    (operation("force-merge", **{"max-num-segments": "all"}), {}, "invalid operation"),
    (operation("force-merge", **{"max-num-segments": 1e999}), {}, "invalid operation"),
    (operation("refresh", **{"request-timeout": 1e999}), {}, 'refresh: "request-timeout" is inf, not between 0'),
    (operation("refresh", **{"request-timeout": 1e300}), {}, 'refresh: "request-timeout" is 1e+300, not between'),
    (operation("refresh", **{"request-timeout": -1}), {}, 'refresh: "request-timeout" is -1, not between 0 and'),
    (operation("index-stats", **COUNTED), {}, "invalid operation"),
    (operation("refresh", **{"request-params": [1]}), {}, "invalid operation"),
    # Bulk operations.
    (bulk_operation(bulk_size=-1), {}, '"bulk-size" is -1, not between 0 and 1,000,000'),
    (bulk_operation(bulk_size=0), {}, '"bulk-size": 0 is not between 1 and 1,000,000'),
    (bulk_operation(bulk_size="NaN"), {}, "\"bulk-size\" is 'NaN', not between 0 and"),
    (bulk_operation(conflict_probability=101), {}, '"conflict-probability" is 101, not between 0 and 100'),
    (bulk_operation(pipeline=5), {}, "pipeline: 5 has the wrong type"),
    (bulk_operation(refresh="now"), {}, "refresh: 'now' has the wrong type"),
    (bulk_operation(request_params=[1]), {}, '"request-params" is [1], not an object of names and values'),
    (bulk_operation(request_params={"a": {}}), {}, '"a" of a request is {}, not a text, a number, true or false'),
    (bulk_operation(timeout=["1m"]), {}, """"timeout" of a request is ['1m'], not a text"""),
    (bulk_operation(request_timeout=86_401), {}, '"request-timeout" is 86401, not between 0 and 86,400'),
    (bulk_operation(request_timeout="1m"), {}, """"request-timeout" is '1m', not a number"""),
    (bulk_operation(ingest_percentage=0), {}, '"ingest-percentage" is 0: nothing would be sent'),
    (bulk_operation(ingest_percentage=-1), {}, '"ingest-percentage" is -1, not between'),
    (bulk_operation(ingest_percentage=101), {}, '"ingest-percentage" is 101, not between'),
    (bulk_operation(ingest_percentage="half"), {}, "\"ingest-percentage\" is 'half', not a number"),
    (bulk_operation(ingest_doc_count=15, ingest_percentage=50), {}, '"ingest-doc-count" cannot be combined with "inge'),
    (bulk_operation(looped=True), {}, 'is "looped" and nothing ends it. Give the task a "time-period"'),
    # Tasks.
    (bulk_task(clients=0), {}, '"clients": 0 is not between 1 and 28,232'),
    (bulk_task(clients=-4), {}, '"clients" is -4, not between 0 and 1,000,000'),
    (bulk_task(time_period=1e300), {}, '"time-period" is 1e+300, not between 0 and'),
    (bulk_task(target_throughput="1e300"), {}, "target rate: per_s: 1e+300 is not between 0 and"),
    (bulk_task(target_throughput="0.0"), {}, '"target-throughput" is 0. Remove it'),
    (bulk_task(target_interval=1e-300), {}, "target rate: per_s: 9.999999999999999e+299 is not between 0 and"),
    (bulk_task(target_throughput=1, target_interval=1), {}, "cannot be combined with"),
    *(
        (bulk_task(target_throughput=value), {}, '"target-throughput" is ')
        for value in ("50 MB/s", "5000docs/s", "fast", "-3", "0 docs/s", "10 ops", {"a": 1})
    ),
    (bulk_task(warmup_time_period=60, ramp_up_time_period=61), {}, 'is 61 and "warmup-time-period" is 60'),
    (bulk_task(schedule="mine"), {}, "'mine', code of the track"),
]


@pytest.mark.parametrize(("rows", "more", "message"), REFUSED)
def test_invalid_track_is_refused_with_the_key(
    tmp_path: Path, rows: list[Any], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        read_track(tmp_path, rows, **more)
    assert message in str(caught.value)


def test_share_requires_a_document_count(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r'"ingest-percentage" requires a "document-count" of docs\.json'):
        read_track(tmp_path, bulk_operation(ingest_percentage=50), [{"source-file": "docs.json"}])


def test_created_objects_carry_the_mark_and_are_deleted_in_order() -> None:
    track = of(STREAMS, mark="only-mine")
    touched = borrowed.compute_write_set(track)
    assert touched.things == (
        ServerObject("index", "rides-1"),
        ServerObject("_data_stream", "logs-app"),
        ServerObject("_index_template", "logs"),
        ServerObject("_component_template", "logs-settings"),
        ServerObject("_template", "old-rides"),
        ServerObject("_ingest/pipeline", "clean"),
    )
    assert ServerObject("_template", "old-rides") not in touched.deleted
    assert ServerObject("_data_stream", "logs-app") in touched.deleted
    bodies = {request.path.partition("?")[0]: request.body for request in track.requests if request.body}
    assert len(bodies) == 4
    assert all("only-mine" in json.dumps(body) for body in bodies.values())


def test_undeclared_index_that_a_track_deletes_must_not_exist(tmp_path: Path) -> None:
    deletion = {"operation-type": "delete-index", "index": "somebodys"}
    touched = borrowed.compute_write_set(of(write_track(tmp_path, [{"operation": deletion}, SEND])))
    assert ServerObject("index", "somebodys") in touched.things
    assert ServerObject("index", "somebodys") not in touched.deleted


def test_pipeline_with_processors_is_refused_on_a_server_without(tmp_path: Path) -> None:
    put = {"operation-type": "put-pipeline", "id": "p", "body": {"processors": [{"set": {}}]}}
    folder = write_track(tmp_path, [{"operation": put}, SEND])
    with pytest.raises(SpecError, match=r"has no processors for ingest pipelines.*--url URL"):
        of(folder)
    assert of(folder, target=TargetOptions(name="sink")).steps


def test_pipeline_that_is_not_created_is_noted(tmp_path: Path) -> None:
    track = read_track(tmp_path, bulk_operation(pipeline="p"))
    assert track.notes == ('bulk: no step creates its pipeline "p"; the server must have it',)


def parallel(*tasks: dict[str, Any], **more: Any) -> list[Any]:
    return [{"parallel": {"tasks": list(tasks), **more}}]


def task(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "operation": "bulk", **more}


def test_parallel_tasks_are_one_step_that_ends_with_the_completing_one(tmp_path: Path) -> None:
    folder = write_track(tmp_path, parallel(task("a", clients=2), task("b"), **{"completed-by": "b"}))
    (together,) = of(folder).steps
    assert isinstance(together, Loads)
    assert (together.name, together.ends_all) == ("a + b", (False, True))
    assert [plan.folder.name for plan in together.plans] == ["01-a", "02-b"]
    assert [plan.users for plan in together.plans] == [2, 1]
    either = read_track(tmp_path / "any", parallel(task("a"), task("b"), **{"completed-by": "any"}))
    assert [step.completes_group for step in bulk_steps(either)] == [True, True]
    rows = [*parallel(task("a"), task("b")), *parallel(task("c"), task("d")), SEND]
    assert [part.name for part in of(write_track(tmp_path / "two", rows)).steps] == ["a + b", "c + d", "bulk"]


def test_limited_clients_run_parallel_tasks_in_turns(tmp_path: Path) -> None:
    rows = parallel(task("a", clients=2), task("b", clients=2), task("c", clients=1), clients=3)
    track = read_track(tmp_path, rows)
    assert [(step.name, step.group) for step in bulk_steps(track)] == [("a", 0), ("b", 2), ("c", 2)]
    assert track.notes == ('a, b, c: because of "clients" 3 for all of them they run in 2 waves, one after another',)


def test_parallel_searches_and_refreshes_are_skipped_and_named(tmp_path: Path) -> None:
    search = {"name": "look", "operation": {"operation-type": "search"}}
    rows = parallel(task("a"), search, {"operation": "refresh"}, **{"completed-by": "look"})
    track = read_track(tmp_path, rows)
    assert track.skipped == ("look (search)", "refresh (refresh, parallel to a bulk)")
    assert track.notes == ('look: is skipped, so the parallel tasks that it would end ("completed-by") end last',)
    with pytest.raises(SpecError, match='"completed-by" is "lok", which is not one of its tasks'):
        read_track(tmp_path / "x", parallel(task("a"), search, **{"completed-by": "lok"}))


def test_clients_of_parallel_tasks_ramp_up_together(tmp_path: Path) -> None:
    times = {"ramp-up-time-period": 40, "warmup-time-period": 60}
    folder = write_track(tmp_path, parallel(task("a", clients=3), task("b", clients=1), **times))
    a, b = of(folder).plans
    assert [a.user_start_delay_ns(user) / SECOND for user in range(3)] == [0, 10, 20]
    assert b.user_start_delay_ns(0) / SECOND == 30
    with pytest.raises(SpecError, match='move "ramp-up-time-period" of parallel tasks next to "tasks"'):
        read_track(tmp_path / "x", parallel(task("a", **times), task("b")))


def test_test_mode_has_no_warm_up_and_no_ramp_up(tmp_path: Path) -> None:
    folder = write_track(tmp_path, bulk_task(warmup_time_period=60, ramp_up_time_period=60))
    assert reader.read_track(folder).steps[0].ramp_up_ns == 60 * SECOND
    in_test = reader.read_track(folder, test_mode=True).steps[0]
    assert (in_test.warm_up_ns, in_test.ramp_up_ns) == (0, 0)


def test_target_rate_grows_during_the_ramp_up(tmp_path: Path) -> None:
    times = {"ramp-up-time-period": 10, "warmup-time-period": 10, "target-throughput": 100, "clients": 4}
    (plan,) = of(write_track(tmp_path, [task("a", **times)])).plans
    assert plan.options.arrivals == Arrivals(shape="ramp", rate=Rate(0), end_rate=Rate(100), period_ns=10 * SECOND)
    due = [when / SECOND for when, _ in zip(schedule(plan.options.arrivals), range(700), strict=False)]
    assert due[0] == 0
    assert len([when for when in due if when < 10]) == 500
    assert len([when for when in due if 10 <= when < 11]) == 100


def test_poisson_schedule_is_kept(tmp_path: Path) -> None:
    (plan,) = of(write_track(tmp_path, bulk_task(schedule="poisson", target_throughput=5))).plans
    assert plan.options.arrivals == Arrivals(shape="poisson", rate=Rate(5))


def test_looped_bulk_requires_a_time_period(tmp_path: Path) -> None:
    looped = {**BULK, "looped": True}
    (step,) = bulk_steps(read_track(tmp_path, [{"operation": looped, "time-period": 5}]))
    assert (step.looped, step.time_period_ns) == (True, 5 * SECOND)
    other = {"name": "other", "operation": looped}
    ended = read_track(tmp_path, parallel(task("a"), other, **{"completed-by": "a"}))
    assert [step.looped for step in bulk_steps(ended)] == [False, True]
    with pytest.raises(SpecError, match="no step ends it"):
        read_track(tmp_path, parallel(task("a"), other))


@pytest.mark.parametrize("pool_bytes", [1, 10**6])
def test_loop_over_several_files_repeats_each(tmp_path: Path, pool_bytes: int) -> None:
    documents = []
    for name in ("first", "second", "third"):
        (tmp_path / f"{name}.json").write_text("".join(f'{{"{name}":{number}}}\n' for number in range(6)))
        documents.append({"source-file": f"{name}.json", "document-count": 6})
    looped = {**BULK, "bulk-size": 2, "looped": True}
    rows = [{"operation": looped, "time-period": 5, "clients": 2}]
    track = read_track(tmp_path, rows, documents)
    plan = dataclasses.replace(of(tmp_path).plans[0], pool_bytes=pool_bytes)
    user = plan.open_source().bodies_of(0)
    sent = [bytes(next(user).data) for _ in range(27)]
    assert len(bulk_steps(track)[0].files) == 3
    for word in (b"first", b"second", b"third"):
        assert len([item for item in sent if word in item]) >= 3
    assert sent.count(sent[0]) > 1


def test_number_of_documents_is_taken_from_the_files_in_order(tmp_path: Path) -> None:
    for share, counts in (({"ingest_doc_count": 15}, [10, 5]), ({"ingest_percentage": 29}, [2, 2, 2])):
        track = read_track(tmp_path, bulk_operation(**share), [DOCUMENTS] * 3)
        assert [file.documents for file in bulk_steps(track)[0].files] == counts


@pytest.mark.parametrize(
    ("rows", "more"),
    [
        ([{"operation": "index-{{ kind }}"}], {}),
        ([{"operation": "index-{{ kind }}"}, SEND], {}),
        ([{"operation": {"operation-type": "{{ kind }}"}}, SEND], {}),
        ([{"parallel": {"clients": "{{ kind }}", "tasks": [SEND]}}], {}),
        ([{"parallel": {"completed-by": "{{ kind }}", "tasks": [SEND]}}], {}),
        (bulk_operation(corpora="{{ kind }}"), {}),
        ([SEND], {"challenge": "{{ kind }}"}),
        ([SEND], {"indices": [{"name": "i", "body": "{{ kind }}"}]}),
        ([SEND], {"indices": [{"name": "{{ kind }}"}]}),
        ([SEND], {"documents": [{"source-file": "{{ kind }}"}]}),
    ],
)
def test_undefined_parameter_is_named_as_the_cause(tmp_path: Path, rows: list[Any], more: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as error:
        read_track(tmp_path, rows, **more)
    assert 'the parameter "kind" has no value and no default. Pass it: --track-params kind:VALUE' in str(error.value)
    assert str(error.value).isprintable()


def test_undefined_parameter_is_empty_in_descriptions_names_and_health_checks(tmp_path: Path) -> None:
    search = {"name": "find-{{ kind }}", "operation-type": "search"}
    code = {"name": "own", "operation-type": "bulk", "param-source": "{{ kind }}"}
    rows = [{"operation": search}, {"operation": code}, {**SEND, "{{ kind }}": 1}]
    track = read_track(tmp_path, rows, description="of {{ kind }}")
    assert (track.description, track.notes) == ("of ", ('bulk: "" is not used: the key is unknown here',))
    assert track.skipped == ("find- (search)", 'own (bulk; its documents are generated by code of the track, "")')
    health = {"operation-type": "cluster-health", "index": "{{ index_name }}"}
    rows = [{"operation": health}, {"name": "bulk-{{ clients }}-clients", "operation": "bulk"}]
    track = read_track(tmp_path, rows)
    assert [step.name for step in track.steps] == ["cluster-health", "bulk--clients"]
    assert track.steps[0].requests[0].path == "/_cluster/health"


def test_track_may_change_its_own_tables_but_not_its_parameters(tmp_path: Path) -> None:
    text = '{% do given.append(1) %}{% set d = {"a": 5} %}{% do d.update({"b": d.a + given|length}) %}'
    folder = write_track(tmp_path, bulk_task(clients="{{ d.b }}"))
    (folder / "track.json").write_text(text + (folder / "track.json").read_text())
    value = [0, 0]
    assert bulk_steps(reader.read_track(folder, parameters={"given": value}))[0].clients == 8
    assert value == [0, 0]


def cell(**options: Any) -> Cell:
    return example_runs.cell(load=LoadOptions(**options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ramp_up_ns": 4 * SECOND}, "load.ramp_up: 4 s is longer than the warm-up, 3 s"),
        ({"ramp_up_ns": SECOND, "warm_up_ns": "auto"}, "the warm-up must last until all users have started"),
        ({"ramp_up_ns": SECOND, "arrivals": Arrivals(shape="constant", rate=Rate(5))}, 'load.ramp_up: .*"ramp 100/s'),
        (
            {"think_time_ns": SECOND, "arrivals": Arrivals(shape="constant", rate=Rate(5))},
            "load.think_time: in an open",
        ),
    ],
)
def test_impossible_ramp_up_and_think_time_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        planning.check_procedure(cell(**options))


def test_users_start_evenly_over_the_ramp() -> None:
    (plan,) = planning.check_procedure(cell(ramp_up_ns=3 * SECOND, users=3, workload="nyc_taxis")).plans
    assert [plan.user_start_delay_ns(user) / SECOND for user in range(3)] == [0, 1, 2]


ENDLESS_OR_GROWING = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}" + "{% endfor %}" * 3,
    '{% set n = namespace(x="aaaaaaaa") %}{% for i in range(90) %}{% set n.x = n.x ~ n.x %}{% endfor %}{}',
    '{{ "x" * 10**11 }}',
    "[" * 100_000,
]


@pytest.mark.processes
@pytest.mark.parametrize("text", ENDLESS_OR_GROWING)
def test_endless_or_growing_template_is_refused(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "READING_CPU_S", 2)
    (tmp_path / "track.json").write_text(text)
    with pytest.raises(SpecError, match=r"a template loops|more than 1 GiB|recursion|nested too deeply") as error:
        planning.read_track(TrackOptions(path=str(tmp_path)))
    assert len(str(error.value)) < 1000


def test_any_error_of_reading_a_track_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*_: object, **__: object) -> Track:
        raise LookupError("a line\nand another")

    monkeypatch.setattr(reader, "read_track", raises)
    refused = f"{tmp_path}: cannot be read: LookupError: a line and another"
    assert reader.answer_request(str(tmp_path), {}) == {"refused": refused}


def test_child_that_renders_a_track_gets_no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INGEST_BENCH_PASSWORD", "INGEST_BENCH_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN"):
        monkeypatch.setenv(name, "geheim")
    print_environment = """printf '{"refused": "%s"}' "$(env | tr '\\n' ' ')\""""
    monkeypatch.setattr(system, "build_module_argv", lambda _: ("sh", "-c", print_environment))
    with pytest.raises(SpecError) as error:
        planning.read_track(TrackOptions(path=str(tmp_path)))
    assert "PATH=/" in str(error.value)
    assert "geheim" not in str(error.value)


def test_corpora_of_rally_and_osb_are_found_in_their_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BENCHMARK_HOME", str(tmp_path / "x" / ".." / "osb"))
    documents = [{"source-file": "rally.json"}, {"source-file": "osb.json.gz"}]
    folder = write_track(tmp_path / "t", documents=documents)
    homes = {"rally.json": tmp_path / "home" / ".rally", "osb.json.gz": tmp_path / "osb" / ".osb"}
    expected = [home / "benchmarks" / "data" / "c" / name for name, home in homes.items()]
    for path in expected:
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    (step,) = planning.read_track(TrackOptions(path=str(folder))).steps
    assert [Path(file.path) for file in step.files] == expected


def test_track_read_by_a_child_is_the_same() -> None:
    assert planning.read_track(TrackOptions(path=str(STREAMS))) == reader.read_track(
        STREAMS, downloads=corpus_download.corpora_folder()
    )


def test_step_of_a_plan_survives_json(tmp_path: Path) -> None:
    times = {"ramp-up-time-period": 10, "warmup-time-period": 10, "target-throughput": 100, "clients": 4}
    (plan,) = of(write_track(tmp_path, [task("a", **times)])).plans
    plan = dataclasses.replace(plan, folder=tmp_path.absolute())
    assert records.from_json(LoadPlan, json.loads(json.dumps(plan.to_json()))) == plan
