"""What tracks are made of beside indices and bulks: streams, templates, pipelines, parallel tasks, rates over time."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import made_runs
import pytest

from ingest_bench import system
from ingest_bench.documents import tracks
from ingest_bench.documents.tracks import __main__ as reader
from ingest_bench.errors import SpecError
from ingest_bench.lab import steps
from ingest_bench.lab.server import borrowed
from ingest_bench.lab.server.borrowed import Thing
from ingest_bench.lab.steps import downloads, track_steps
from ingest_bench.lab.steps.parts import Procedure, Send, Together
from ingest_bench.load.arrivals import schedule
from ingest_bench.load.plan import from_table
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import Arrivals, LoadOptions, Rate, TrackChoice
from ingest_bench.model.target import Endpoint, Place, TargetOptions
from ingest_bench.model.track import Step, Track

STREAMS = Path(__file__).parent / "data" / "streams"
PLACE = Place(endpoint=Endpoint("192.0.2.1", 9200))
SECOND = 10**9
BULK = {"name": "bulk", "operation-type": "bulk", "bulk-size": 5}


def written(folder: Path, rows: list[Any], **more: Any) -> Path:
    """A track with one index, one file of ten documents, and this schedule."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "docs.json").write_text('{"n": 1}\n' * 10)
    documents = [{"source-file": "docs.json", "document-count": 10}]
    table = {"version": 2, "indices": [{"name": "i"}], "corpora": [{"name": "c", "documents": documents}]}
    text = json.dumps({**table, "operations": [BULK], "schedule": rows, **more})
    (folder / "track.json").write_text(text.replace("Infinity", "1e999"))
    return folder


def sends(found: Track) -> list[Step]:
    return [step for step in found.steps if step.operation == "bulk"]


def asked(found: Track, operation: str) -> list[tuple[str, str, Any]]:
    requests = [request for step in found.steps if step.operation == operation for request in step.requests]
    return [(request.method, request.path, request.body) for request in requests]


def of(folder: Path, *, mark: str = "", target: TargetOptions | None = None) -> Procedure:
    cell = made_runs.cell(load=LoadOptions(track=TrackChoice(path=str(folder))))
    cell = dataclasses.replace(cell, target=target or cell.target)
    return steps.of(cell, PLACE, Path("out"), may_delete=True, mark=mark)


def test_streams_templates_and_pipelines_are_made_in_the_order_of_the_track() -> None:
    found = tracks.read(STREAMS)
    assert [step.operation for step in found.steps] == [
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
    ((_, path, body),) = asked(found, "create-composable-template")
    assert path == "/_index_template/logs"
    assert body["template"]["settings"] == {"index.number_of_shards": 1}
    assert body["data_stream"] == {}
    assert asked(found, "create-data-stream") == [("PUT", "/_data_stream/logs-app", None)]
    assert asked(found, "delete-data-stream") == [("DELETE", "/_data_stream/logs-app", None)]
    assert [path for _, path, _ in asked(found, "create-component-template")] == ["/_component_template/logs-settings"]
    assert [path for _, path, _ in asked(found, "create-index-template")] == ["/_template/old-rides"]
    assert [path for _, path, _ in asked(found, "put-pipeline")] == ["/_ingest/pipeline/clean"]
    assert found.steps[-1].requests[0].path == "/logs-app/_refresh?ignore_unavailable=true"


def test_a_data_stream_is_filled_by_create_and_an_index_by_index() -> None:
    logs, rides = sends(tracks.read(STREAMS))
    assert (logs.files[0].index, logs.files[0].stream, rides.files[0].stream) == ("logs-app", True, False)
    plans = [one.plan for part in of(STREAMS).parts if isinstance(part, Together) for one in part.sends]
    bodies = [next(plan.source().for_user(0)).data for plan in plans]
    assert bytes(bodies[0]).startswith(b'{"create":{"_index":"logs-app"}}\n{"@timestamp"')
    assert bytes(bodies[1]).startswith(b'{"index":{"_index":"rides-1"}}\n{"n":0}')


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"data-streams": [{"name": "s"}]}, 'has "indices" and "data-streams"'),
        ({"templates": [{"name": "t"}]}, 'templates: "t" has no "template", the file that it is in'),
        ({"composable-templates": [{"name": "t", "template": "docs.json"}]}, "is not JSON"),
        ({"component-templates": {"name": "t"}}, '"component-templates" is not a list of objects'),
        ({"corpora": "all"}, '"corpora" is not a list of objects'),
        ({"schedule": [{}]}, 'a task of the schedule has no "operation"'),
        ({"challenge": "x"}, """"challenge" is 'x', not an object"""),
        ({"schedule": [{"parallel": []}]}, '"parallel" is .*, not an object with "tasks"'),
    ],
)
def test_what_is_declared_wrongly_is_named(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        tracks.read(written(tmp_path, [{"operation": "bulk"}], **more))


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        ({"operation-type": "put-pipeline", "body": {}}, '"id", the name of the pipeline, is missing'),
        ({"operation-type": "put-pipeline", "id": "p", "body": []}, 'put-pipeline: "body" must be a JSON object'),
        ({"operation-type": "create-index-template", "template": "t"}, '"t" is declared nowhere in the track'),
        ({"operation-type": "create-index", "index": "x"}, '"x" is not declared under "indices" and the operation has'),
        ({"operation-type": "force-merge", "max-num-segments": "all"}, "cannot be done as it is written"),
        ({"operation-type": "force-merge", "max-num-segments": 1e999}, "cannot be done as it is written"),
        ({"operation-type": "refresh", "request-timeout": 1e999}, 'refresh: "request-timeout" is inf, not between 0'),
        ({"operation-type": "refresh", "request-timeout": 1e300}, 'refresh: "request-timeout" is 1e.300, not between'),
        ({"operation-type": "refresh", "request-timeout": -1}, 'refresh: "request-timeout" is -1, not between 0 and'),
        ({"operation-type": "index-stats", "retry-until-success": True, "condition": 5}, "cannot be done as it is"),
        ({"operation-type": "refresh", "request-params": [1]}, "cannot be done as it is written"),
    ],
)
def test_an_operation_that_cannot_be_done_is_named(tmp_path: Path, operation: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        tracks.read(written(tmp_path, [{"operation": operation}, {"operation": "bulk"}]))


def test_what_is_made_on_a_foreign_server_carries_the_mark_and_goes_in_an_order_that_can_be_deleted() -> None:
    found = of(STREAMS, mark="only-mine")
    touched = borrowed.write_set(found)
    assert touched.things == (
        Thing("index", "rides-1"),
        Thing("_data_stream", "logs-app"),
        Thing("_index_template", "logs"),
        Thing("_component_template", "logs-settings"),
        Thing("_template", "old-rides"),
        Thing("_ingest/pipeline", "clean"),
    )
    assert Thing("_template", "old-rides") not in touched.deleted
    assert Thing("_data_stream", "logs-app") in touched.deleted
    bodies = {request.path.partition("?")[0]: request.body for request in found.requests if request.body}
    assert len(bodies) == 4
    assert all("only-mine" in json.dumps(body) for body in bodies.values())


def test_an_index_that_a_track_deletes_and_does_not_declare_must_not_be_there(tmp_path: Path) -> None:
    deletion = {"operation-type": "delete-index", "index": "somebodys"}
    touched = borrowed.write_set(of(written(tmp_path, [{"operation": deletion}, {"operation": "bulk"}])))
    assert Thing("index", "somebodys") in touched.things
    assert Thing("index", "somebodys") not in touched.deleted


def test_a_pipeline_with_processors_is_refused_where_the_server_has_none(tmp_path: Path) -> None:
    put = {"operation-type": "put-pipeline", "id": "p", "body": {"processors": [{"set": {}}]}}
    folder = written(tmp_path, [{"operation": put}, {"operation": "bulk"}])
    with pytest.raises(SpecError, match=r"has no processors for an ingest pipeline.*--url URL"):
        of(folder)
    assert of(folder, target=TargetOptions(name="sink")).parts


def test_a_pipeline_that_nobody_makes_is_told(tmp_path: Path) -> None:
    found = tracks.read(written(tmp_path, [{"operation": {**BULK, "pipeline": "p"}}]))
    assert found.notes == ('bulk: its pipeline "p" is not made before; the server must have it',)


def parallel(*tasks: dict[str, Any], **more: Any) -> list[Any]:
    return [{"parallel": {"tasks": list(tasks), **more}}]


def task(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "operation": "bulk", **more}


def test_parallel_tasks_are_one_part_and_the_named_one_ends_it(tmp_path: Path) -> None:
    folder = written(tmp_path, parallel(task("a", clients=2), task("b"), **{"completed-by": "b"}))
    (together,) = of(folder).parts
    assert isinstance(together, Together)
    assert (together.name, together.ends_all) == ("a + b", (False, True))
    assert [one.plan.out.name for one in together.sends] == ["01-a", "02-b"]
    assert [one.plan.users for one in together.sends] == [2, 1]
    either = written(tmp_path / "any", parallel(task("a"), task("b"), **{"completed-by": "any"}))
    assert [step.completes_group for step in sends(tracks.read(either))] == [True, True]


def test_two_parallel_elements_in_a_row_are_two_parts(tmp_path: Path) -> None:
    rows = [*parallel(task("a"), task("b")), *parallel(task("c"), task("d")), {"operation": "bulk"}]
    assert [part.name for part in of(written(tmp_path, rows)).parts] == ["a + b", "c + d", "bulk"]


def test_a_limited_number_of_clients_does_parallel_tasks_in_turns(tmp_path: Path) -> None:
    rows = parallel(task("a", clients=2), task("b", clients=2), task("c", clients=1), clients=3)
    found = tracks.read(written(tmp_path, rows))
    assert [(step.name, step.group) for step in sends(found)] == [("a", 0), ("b", 2), ("c", 2)]
    assert found.notes == ('a, b, c: with "clients" 3 for all of them they are done in 2 turns, one after another',)


def test_searches_and_refreshes_beside_a_bulk_are_skipped_and_named(tmp_path: Path) -> None:
    search = {"name": "look", "operation": {"operation-type": "search"}}
    rows = parallel(task("a"), search, {"operation": "refresh"}, **{"completed-by": "look"})
    found = tracks.read(written(tmp_path, rows))
    assert found.skipped == ("look (search)", "refresh (refresh, beside a bulk)")
    assert found.notes == ('look: is skipped, so the parallel tasks that it would end ("completed-by") end last',)
    with pytest.raises(SpecError, match='"completed-by" is "lok", and no task beside it is called so'):
        tracks.read(written(tmp_path / "x", parallel(task("a"), search, **{"completed-by": "lok"})))


def test_clients_of_parallel_tasks_ramp_up_together_as_in_rally(tmp_path: Path) -> None:
    times = {"ramp-up-time-period": 40, "warmup-time-period": 60}
    folder = written(tmp_path, parallel(task("a", clients=3), task("b", clients=1), **times))
    (together,) = of(folder).parts
    assert isinstance(together, Together)
    a, b = (one.plan for one in together.sends)
    assert [a.starts_after_ns(user) / SECOND for user in range(3)] == [0, 10, 20]
    assert b.starts_after_ns(0) / SECOND == 30
    with pytest.raises(SpecError, match='"ramp-up-time-period" of parallel tasks stands beside "tasks"'):
        tracks.read(written(tmp_path / "x", parallel(task("a", **times), task("b"))))


def test_a_target_rate_grows_with_the_clients_that_ramp_up(tmp_path: Path) -> None:
    times = {"ramp-up-time-period": 10, "warmup-time-period": 10, "target-throughput": 100, "clients": 4}
    (part,) = of(written(tmp_path, [task("a", **times)])).parts
    assert isinstance(part, Send)
    assert part.plan.options.arrivals == Arrivals(shape="ramp", rate=Rate(0), to=Rate(100), period_ns=10 * SECOND)
    due = [when / SECOND for when, _ in zip(schedule(part.plan.options.arrivals), range(700), strict=False)]
    assert due[0] == 0
    assert len([when for when in due if when < 10]) == 500
    assert len([when for when in due if 10 <= when < 11]) == 100


def test_a_poisson_schedule_is_kept_and_a_schedule_that_is_code_is_refused(tmp_path: Path) -> None:
    (part,) = of(written(tmp_path, [task("a", schedule="poisson", **{"target-throughput": 5})])).parts
    assert isinstance(part, Send)
    assert part.plan.options.arrivals == Arrivals(shape="poisson", rate=Rate(5))
    with pytest.raises(SpecError, match="'mine', which is code of the track"):
        tracks.read(written(tmp_path / "x", [task("a", schedule="mine", **{"target-throughput": 5})]))


def test_a_looped_bulk_goes_on_until_its_time_is_over_and_needs_one(tmp_path: Path) -> None:
    looped = {**BULK, "looped": True}
    found = tracks.read(written(tmp_path, [{"operation": looped, "time-period": 5}]))
    assert (sends(found)[0].looped, sends(found)[0].time_period_ns) == (True, 5 * SECOND)
    with pytest.raises(SpecError, match='is "looped" and nothing ends it; give the task a "time-period"'):
        tracks.read(written(tmp_path / "x", [{"operation": looped}]))
    other = {"name": "other", "operation": looped}
    ended = written(tmp_path / "y", parallel(task("a"), other, **{"completed-by": "a"}))
    assert [step.looped for step in sends(tracks.read(ended))] == [False, True]
    with pytest.raises(SpecError, match="nothing that is done ends it"):
        tracks.read(written(tmp_path / "z", parallel(task("a"), other)))


@pytest.mark.parametrize("pool_bytes", [1, 10**6])
def test_a_loop_over_several_files_sends_each_again_and_again(tmp_path: Path, pool_bytes: int) -> None:
    documents = []
    for name in ("first", "second", "third"):
        (tmp_path / f"{name}.json").write_text("".join(f'{{"{name}":{number}}}\n' for number in range(6)))
        documents.append({"source-file": f"{name}.json", "document-count": 6})
    looped = {**BULK, "bulk-size": 2, "looped": True}
    rows = [{"operation": looped, "time-period": 5, "clients": 2}]
    found = tracks.read(written(tmp_path, rows, corpora=[{"name": "c", "documents": documents}]))
    cell = made_runs.cell(load=LoadOptions(track=TrackChoice(path=str(tmp_path))))
    (part,) = steps.of(cell, PLACE, Path("out"), may_delete=True).parts
    assert isinstance(part, Send)
    plan = dataclasses.replace(part.plan, pool_bytes=pool_bytes)
    user = plan.source().for_user(0)
    sent = [bytes(next(user).data) for _ in range(27)]
    assert len(sends(found)[0].files) == 3
    for word in (b"first", b"second", b"third"):
        assert len([one for one in sent if word in one]) >= 3
    assert sent.count(sent[0]) > 1


def test_a_number_of_documents_is_taken_from_the_files_in_order(tmp_path: Path) -> None:
    documents = [{"source-file": "docs.json", "document-count": 10}] * 3
    rows = [{"operation": {**BULK, "ingest-doc-count": 15}}]
    found = tracks.read(written(tmp_path, rows, corpora=[{"name": "c", "documents": documents}]))
    assert [file.documents for file in sends(found)[0].files] == [10, 5]
    both = {**BULK, "ingest-doc-count": 15, "ingest-percentage": 50}
    with pytest.raises(SpecError, match='has "ingest-doc-count" and "ingest-percentage"'):
        tracks.read(written(tmp_path / "x", [{"operation": both}]))


@pytest.mark.parametrize("value", [0, -1, 101, "half", None])
def test_a_percentage_that_is_none_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(SpecError, match='"ingest-percentage" is '):
        tracks.read(written(tmp_path, [{"operation": {**BULK, "ingest-percentage": value}}]))


def test_a_parameter_without_a_value_is_named_plainly_wherever_it_stands(tmp_path: Path) -> None:
    for more in (
        {"indices": [{"name": "i", "body": "{{ body_file }}"}]},
        {"indices": [{"name": "{{ body_file }}"}]},
        {"corpora": [{"name": "c", "documents": [{"source-file": "{{ body_file }}"}]}]},
    ):
        with pytest.raises(SpecError, match='"body_file" has no value and no default; give it: --track-params') as told:
            tracks.read(written(tmp_path, [{"operation": "bulk"}], **more))
        assert str(told.value).isprintable()


@pytest.mark.parametrize(
    ("rows", "more"),
    [
        ([{"operation": "index-{{ kind }}"}], {}),
        ([{"operation": "index-{{ kind }}"}, {"operation": "bulk"}], {}),
        ([{"operation": {"operation-type": "{{ kind }}"}}, {"operation": "bulk"}], {}),
        ([{"parallel": {"clients": "{{ kind }}", "tasks": [{"operation": "bulk"}]}}], {}),
        ([{"parallel": {"completed-by": "{{ kind }}", "tasks": [{"operation": "bulk"}]}}], {}),
        ([{"operation": {**BULK, "corpora": "{{ kind }}"}}], {}),
        ([{"operation": "bulk"}], {"challenge": "{{ kind }}"}),
    ],
)
def test_a_parameter_without_a_value_is_the_cause_wherever_it_was_needed(
    tmp_path: Path, rows: list[Any], more: dict[str, Any]
) -> None:
    with pytest.raises(SpecError) as error:
        tracks.read(written(tmp_path, rows, **more))
    assert 'the parameter "kind" has no value and no default; give it: --track-params kind:VALUE' in str(error.value)
    assert str(error.value).isprintable()


def test_a_parameter_without_a_value_prints_nothing_in_what_a_track_tells(tmp_path: Path) -> None:
    search = {"name": "find-{{ kind }}", "operation-type": "search"}
    code = {"name": "own", "operation-type": "bulk", "param-source": "{{ kind }}"}
    rows = [{"operation": search}, {"operation": code}, {"operation": "bulk", "{{ kind }}": 1}]
    track = tracks.read(written(tmp_path, rows, description="of {{ kind }}"))
    assert (track.description, track.notes) == ("of ", ('bulk: "" is not used: the key is unknown here',))
    assert track.skipped == ("find- (search)", 'own (bulk; its documents are made by code of the track, "")')


def test_a_parameter_without_a_value_prints_nothing_in_a_name_and_in_the_index_of_a_health_check(
    tmp_path: Path,
) -> None:
    health = {"operation-type": "cluster-health", "index": "{{ index_name }}"}
    rows = [{"operation": health}, {"name": "bulk-{{ clients }}-clients", "operation": "bulk"}]
    found = tracks.read(written(tmp_path, rows))
    assert [step.name for step in found.steps] == ["cluster-health", "bulk--clients"]
    assert found.steps[0].requests[0].path == "/_cluster/health"


def test_a_track_may_change_its_own_tables_and_not_what_it_was_given(tmp_path: Path) -> None:
    folder = written(tmp_path, [])
    text = '{% do given.append(1) %}{% set d = {"a": 5} %}{% do d.update({"b": d.a + given|length}) %}'
    table = json.dumps({"version": 2, "indices": [{"name": "i"}], "operations": [BULK]})
    corpora = '"corpora": [{"name": "c", "documents": [{"source-file": "docs.json"}]}]'
    rows = '"schedule": [{"operation": "bulk", "clients": {{ d.b }}}]'
    (folder / "track.json").write_text(f"{text}{table[:-1]}, {corpora}, {rows}}}")
    given = [0, 0]
    assert sends(tracks.read(folder, parameters={"given": given}))[0].clients == 8
    assert given == [0, 0]


def cell(**options: Any) -> Cell:
    return made_runs.cell(load=LoadOptions(**options))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ramp_up_ns": 4 * SECOND}, "load.ramp_up: 4 s is longer than the warm-up, 3 s"),
        ({"ramp_up_ns": SECOND, "warm_up_ns": "auto"}, "the warm-up must last until all users are there"),
        ({"ramp_up_ns": SECOND, "arrivals": Arrivals(shape="constant", rate=Rate(5))}, 'load.ramp_up: .*"ramp 100/s'),
        (
            {"think_time_ns": SECOND, "arrivals": Arrivals(shape="constant", rate=Rate(5))},
            "load.think_time: in an open",
        ),
    ],
)
def test_users_that_cannot_start_or_rest_as_asked_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        steps.check(cell(**options))


def test_users_start_evenly_over_the_ramp_the_first_at_once() -> None:
    found = steps.check(cell(ramp_up_ns=3 * SECOND, users=3, workload="nyc_taxis"))
    plan = next(part for part in found.parts if isinstance(part, Send)).plan
    assert [plan.starts_after_ns(user) / SECOND for user in range(3)] == [0, 1, 2]


ENDLESS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}" + "{% endfor %}" * 3,
    "{% macro f(n) %}{% for i in range(2) %}{% if n %}{{ f(n - 1) }}{% endif %}{% endfor %}{% endmacro %}{{ f(90) }}",
]
GROWING = [
    '{% set n = namespace(x="aaaaaaaa") %}{% for i in range(90) %}{% set n.x = n.x ~ n.x %}{% endfor %}{}',
    '{{ "x" * 10**11 }}',
    "[" * 100_000,
    "{% if 1 %}" * 5000 + "{% endif %}" * 5000,
]


@pytest.mark.processes
@pytest.mark.parametrize("text", [*ENDLESS, *GROWING])
def test_a_template_that_never_ends_or_grows_is_refused_and_harms_nobody(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(track_steps, "READING_CPU_S", 2)
    (tmp_path / "track.json").write_text(text)
    with pytest.raises(SpecError, match=r"did not come to an end|more than 1 GiB|recursion|nested too deeply") as told:
        track_steps.read(TrackChoice(path=str(tmp_path)))
    assert len(str(told.value)) < 1000


def test_whatever_reading_a_track_raises_is_one_sentence_about_the_track(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: object, **__: object) -> Track:
        raise LookupError("a line\nand another")

    monkeypatch.setattr(tracks, "read", raises)
    wanted: dict[str, Any] = {
        "folder": str(tmp_path),
        "parameters": {},
        "procedure": None,
        "test_mode": False,
        "downloads": "",
        "tool_caches": [],
        "include_tasks": [],
        "exclude_tasks": [],
    }
    assert reader.answer(wanted) == {"refused": f"{tmp_path}: cannot be read: LookupError: a line and another"}


def test_the_child_that_renders_a_track_gets_no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INGEST_BENCH_PASSWORD", "INGEST_BENCH_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN"):
        monkeypatch.setenv(name, "geheim")
    print_environment = """printf '{"refused": "%s"}' "$(env | tr '\\n' ' ')\""""
    monkeypatch.setattr(system, "python", lambda _: ("sh", "-c", print_environment))
    with pytest.raises(SpecError) as error:
        track_steps.read(TrackChoice(path=str(tmp_path)))
    assert "PATH=/" in str(error.value)
    assert "geheim" not in str(error.value)


def test_corpora_of_both_tools_are_found_where_their_users_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BENCHMARK_HOME", str(tmp_path / "x" / ".." / "osb"))
    documents = [{"source-file": "rally.json"}, {"source-file": "osb.json.gz"}]
    folder = written(tmp_path / "t", [{"operation": "bulk"}], corpora=[{"name": "c", "documents": documents}])
    homes = {"rally.json": tmp_path / "home" / ".rally", "osb.json.gz": tmp_path / "osb" / ".osb"}
    expected = [home / "benchmarks" / "data" / "c" / name for name, home in homes.items()]
    for path in expected:
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    (step,) = track_steps.read(TrackChoice(path=str(folder))).steps
    assert [Path(file.path) for file in step.files] == expected


def test_a_track_is_the_same_read_apart() -> None:
    assert track_steps.read(TrackChoice(path=str(STREAMS))) == tracks.read(STREAMS, downloads=downloads.folder())


def test_what_a_worker_is_told_of_a_step_is_what_it_gets(tmp_path: Path) -> None:
    times = {"ramp-up-time-period": 10, "warmup-time-period": 10, "target-throughput": 100, "clients": 4}
    (part,) = of(written(tmp_path, [task("a", **times)])).parts
    assert isinstance(part, Send)
    plan = dataclasses.replace(part.plan, out=tmp_path.absolute())
    assert from_table(json.loads(json.dumps(plan.table()))) == plan
