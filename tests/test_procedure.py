"""Procedure of a run: the load of a workload, or the steps of a track."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import example_runs
import pytest

from ingest_bench import targets
from ingest_bench.documents import corpus
from ingest_bench.documents.tracks.declarations import OPERATIONS, Declarations
from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog, spec
from ingest_bench.inputs import load_values, records
from ingest_bench.lab import campaign, planning
from ingest_bench.lab.planning import Loads, Procedure, Requests
from ingest_bench.load import supervisor
from ingest_bench.load.plan import LoadPlan
from ingest_bench.model.experiment import Cell, Fault, Plan, Run
from ingest_bench.model.load import BulkAction, LoadOptions, TrackOptions
from ingest_bench.model.target import Endpoint, ServerAddress, TargetOptions
from ingest_bench.protocols.bulk import Bulk

FOLDER = Path(__file__).parent / "data" / "track"
LISTEN = ServerAddress(endpoint=Endpoint("198.18.0.2", 9200))
SECOND = example_runs.SECOND


def cell(load: LoadOptions, target: str = "opensearch", version: str | None = None, **more: Any) -> Cell:
    return example_runs.cell(load=load, target=TargetOptions(name=target, version=version), **more)


def build(planned: Cell, *, may_delete: bool = True) -> Procedure:
    return planning.build_procedure(planned, LISTEN, Path("out"), may_delete=may_delete)


def track(target: str = "opensearch", version: str | None = None, **choice: Any) -> Procedure:
    return build(cell(LoadOptions(track=TrackOptions(path=str(FOLDER), **choice)), target, version))


def step_of(built: Procedure, name: str) -> Requests | Loads:
    return next(step for step in built.steps if step.name == name)


def load_of(built: Procedure, name: str) -> LoadPlan:
    step = step_of(built, name)
    assert isinstance(step, Loads)
    (plan,) = step.plans
    return plan


def requests_of(built: Procedure, name: str) -> Requests:
    step = step_of(built, name)
    assert isinstance(step, Requests)
    return step


def test_workload_has_an_index_and_one_load() -> None:
    built = build(cell(LoadOptions(workload="nyc_taxis")))
    assert [entry.name for entry in built.steps] == ["index", "load"]
    (create,) = requests_of(built, "index").requests
    assert (create.method, create.path) == ("PUT", "/nyc_taxis")
    assert create.body is not None
    assert create.body["mappings"]["properties"]["vendor_id"] == {"type": "keyword"}
    sending = load_of(built, "load")
    assert (sending.wire.destination, sending.folder, sending.step) == ("/nyc_taxis/_bulk", Path("out"), None)
    assert built.indices == ("nyc_taxis",)


def test_several_indices_are_created_queried_and_counted() -> None:
    options = LoadOptions(workload="nyc_taxis", query_users=1, action=BulkAction(indices=3))
    built = build(cell(options))
    assert built.indices == ("nyc_taxis-0", "nyc_taxis-1", "nyc_taxis-2")
    assert [request.path for request in requests_of(built, "index").requests] == [f"/{name}" for name in built.indices]
    assert load_of(built, "load").search_path == "/nyc_taxis-0,nyc_taxis-1,nyc_taxis-2/_search"


def test_bulk_bodies_go_to_their_own_indices(tmp_path: Path) -> None:
    path = tmp_path / "bulk.json"
    path.write_text('{"index": {"_index": "b"}}\n{}\n{"create": {"_index": "a"}}\n{}\n')
    options = LoadOptions(documents=str(path))
    assert build(cell(options)).indices == ("a", "b")
    path.write_text(path.read_text() + '{"index": {}}\n{}\n')
    assert build(cell(options)).indices == ("a", "b", corpus.index_name(path))


def test_documents_of_a_file_have_an_index_with_dynamic_mapping(tmp_path: Path) -> None:
    path = tmp_path / "orders.ndjson"
    path.write_text('{"price": 1}\n')
    built = build(cell(LoadOptions(documents=str(path))))
    (index,) = built.indices
    (create,) = requests_of(built, "index").requests
    assert (create.path, load_of(built, "load").wire.destination) == (f"/{index}", f"/{index}/_bulk")
    assert create.body == {"settings": {"index.number_of_shards": 1, "index.number_of_replicas": 0}}
    assert built.notes == ()


def test_mapping_and_settings_of_documents_come_from_files(tmp_path: Path) -> None:
    path, mapping, settings = (tmp_path / name for name in ("orders.ndjson", "m.json", "s.json"))
    path.write_text('{"price": 1}\n')
    mapping.write_text('{"dynamic": "strict", "properties": {"price": {"type": "long"}}}')
    settings.write_text('{"index": {"refresh_interval": "5s"}}')
    options = LoadOptions(documents=str(path), mapping=str(mapping), index_settings=str(settings))
    marked = planning.build_procedure(cell(options), LISTEN, Path("out"), may_delete=True, mark="m")
    body = requests_of(marked, "index").requests[0].body or {}
    assert body["mappings"]["properties"] == {"price": {"type": "long"}}
    assert body["mappings"]["_meta"]["run"] == "m"
    assert body["settings"]["index"] == {"refresh_interval": "5s"}
    for target in ("kafka", "cassandra"):
        with pytest.raises(SpecError, match=f"load.mapping and load.index_settings: {target} has no mappings"):
            build(cell(options, target))
    with pytest.raises(SpecError, match="require a file of documents: --documents FILE"):
        build(cell(dataclasses.replace(options, documents=None)))
    with pytest.raises(SpecError, match=r"load\.\w+ conflicts with a track"):
        build(cell(LoadOptions(track=TrackOptions(path=str(FOLDER)), mapping=str(mapping))))


def test_bulk_larger_than_servers_accept_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "orders.ndjson"
    path.write_text(f'{{"text": "{"x" * 20_000}"}}\n')
    assert (
        "10,000 documents of orders.ndjson have about 191MiB" in build(cell(LoadOptions(documents=str(path)))).notes[0]
    )
    smaller = LoadOptions(documents=str(path), bulk_bytes=10**7)
    assert build(cell(smaller)).notes == ()


@pytest.mark.parametrize(
    ("options_table", "message"),
    [
        ({"query_arrivals": "10/s"}, "requires query users"),
        ({"query_users": 1, "query_arrivals": "10docs/s"}, "a rate of requests"),
        ({"query_users": 1, "query_arrivals": "recorded x"}, "a rate of requests"),
        ({"query_users": 1, "query_arrivals": "burst 1 1s"}, "a rate of requests"),
    ],
)
def test_invalid_queries_are_refused(options_table: dict[str, Any], message: str) -> None:
    options = records.from_toml(LoadOptions, options_table, "load")
    with pytest.raises(SpecError, match=message):
        planning.check_procedure(cell(options))


@pytest.mark.parametrize(
    ("options_table", "message"),
    [
        ({"users": 63}, r"64 requests at once need 64 users, and there are 63: .* Set users = 64"),
        ({"warm_up": "3s"}, r'load.warm_up: 3s are not whole periods of 5s\. .* set warm_up = "5s"'),
        ({"measure": "12s"}, r'load.measure: 12s are not whole periods of 5s\. .* set measure = "15s"'),
        ({"measure_documents": 5}, r"load.measure_documents conflicts with bursts"),
        ({"warm_up": "auto"}, r'"burst" arrivals are never steady'),
    ],
)
def test_a_measurement_is_whole_bursts_with_idle_spans(options_table: dict[str, Any], message: str) -> None:
    valid = {"arrivals": "burst 64 5s", "users": 64, "warm_up": "5s", "measure": "10s"}
    assert planning.check_procedure(cell(records.from_toml(LoadOptions, valid, "load"))).steps
    options = records.from_toml(LoadOptions, valid | options_table, "load")
    with pytest.raises(SpecError, match=message):
        planning.check_procedure(cell(options))


def test_automatic_warm_up_requires_steady_arrivals() -> None:
    automatic = LoadOptions(warm_up_ns="auto")
    assert planning.check_procedure(cell(automatic)).steps
    fault = Fault(kind="reset", at_ns=SECOND)
    with pytest.raises(SpecError, match="conflicts with faults"):
        planning.check_procedure(cell(automatic, faults=(fault,)))
    steps = dataclasses.replace(automatic, arrivals=load_values.parse_arrivals("steps 100/s 200/s 1s"))
    with pytest.raises(SpecError, match='"steps" arrivals are never steady'):
        planning.check_procedure(cell(steps))


def test_query_users_0_is_a_valid_baseline_level() -> None:
    options = records.from_toml(LoadOptions, {"query_users": 0, "query_arrivals": "10/s"}, "load")
    for key in ("query_users", "load.query_users"):
        built = planning.check_procedure(dataclasses.replace(cell(options), levels={key: "0"}))
        assert load_of(built, "load").options.query_users == 0


def test_track_runs_step_by_step_and_counts_its_indices() -> None:
    built = track()
    assert [entry.name for entry in built.steps] == [
        "delete-index",
        "create-index",
        "check-cluster-health",
        "index-rides",
        "index-places",
        "refresh-after-index",
        "force-merge",
        "wait-until-merges-finish",
    ]
    assert built.indices == ("rides", "places")
    assert built.skipped == ("recent (search)", "sleep")
    rides = load_of(built, "index-rides")
    assert (rides.wire.destination, rides.users, rides.ends_when_sent) == ("/rides/_bulk", 2, True)
    assert (rides.options.warm_up_ns, rides.options.bulk_documents) == (5 * SECOND, 100)
    assert rides.options.arrivals.is_open_loop
    assert not load_of(built, "index-places").options.arrivals.is_open_loop
    assert len({rides.folder, load_of(built, "index-places").folder}) == 2


def test_step_lasts_for_its_time_period() -> None:
    update = load_of(track(challenge="update"), "update-rides")
    assert (update.ends_when_sent, update.options.measure_ns) == (False, 60 * SECOND)
    assert update.build_protocol() == Bulk(path="/rides/_bulk", action=update.options.action)
    assert update.options.action.pipeline == "clean"


def test_first_error_ends_a_step_unless_the_track_ignores_it(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FOLDER, tmp_path / "track"))
    options = LoadOptions(track=TrackOptions(path=str(folder)), on_error="abort")
    default = folder / "challenges" / "default.json"
    text = default.read_text()
    for level, expected in (("", "abort"), ('"ignore-response-error-level": "non-fatal", ', "continue")):
        default.write_text(text.replace('"clients": {{', level + '"clients": {{'))
        assert load_of(planning.check_procedure(cell(options)), "index-rides").options.on_error == expected
    default.write_text(text.replace('"clients": {{', '"ignore-response-error-level": "all", "clients": {{'))
    with pytest.raises(SpecError, match="\"ignore-response-error-level\" is 'all'"):
        planning.check_procedure(cell(options))


def test_indices_of_a_track_are_adapted_to_the_version() -> None:
    body = requests_of(track("elasticsearch", "5.6.16"), "create-index").requests[0].body
    assert body is not None
    assert body["mappings"]["doc"]["properties"]["n"] == {"type": "integer"}
    assert load_of(track("elasticsearch", "5.6.16"), "index-rides").wire.destination == "/rides/doc/_bulk"


@pytest.mark.parametrize("target", ["opensearch", "elasticsearch", "sink"])
def test_index_name_is_encoded_consistently(target: str) -> None:
    name = "<rides-{now/d}> ü"
    encoded = "/%3Crides-%7Bnow%2Fd%7D%3E%20%C3%BC"
    rides = load_of(track(target), "index-rides")
    target_options = cell(LoadOptions(), target).target
    path = targets.find_target(target).wire(target_options, dataclasses.replace(rides.workload, index=name)).destination
    assert path == f"{encoded}/_bulk"
    (create,) = OPERATIONS["create-index"]({"index": name, "body": {}}, Declarations())
    assert create.path == encoded
    assert Bulk(path=path, action=BulkAction()).url_path == f"{encoded}/_bulk"


@pytest.mark.parametrize(
    "options_table", [{"users": 3}, {"documents": "x"}, {"measure_ns": 1}, {"warm_up_ns": "auto"}, {"bulk_bytes": 5}]
)
def test_load_options_that_the_track_sets_are_refused(options_table: dict[str, Any]) -> None:
    options = LoadOptions(track=TrackOptions(path=str(FOLDER)), **options_table)
    key = records.toml_key(next(iter(options_table)))
    with pytest.raises(SpecError, match=f"load.{key} conflicts with a track"):
        planning.check_procedure(cell(options))


def test_track_conflicts_with_faults() -> None:
    fault = Fault(kind="pause", at_ns=1, for_ns=1)
    with pytest.raises(SpecError, match="a track conflicts with faults"):
        planning.check_procedure(cell(LoadOptions(track=TrackOptions(path=str(FOLDER))), faults=(fault,)))


def test_damaged_corpus_of_a_track_is_found_before_the_start(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FOLDER, tmp_path / "track"))
    (folder / "rides.json").write_text('{"n": 1}\n{"n": \n')
    with pytest.raises(SpecError, match=r"rides\.json: line 2 is not JSON"):
        planning.check_procedure(cell(LoadOptions(track=TrackOptions(path=str(folder)))))


def build_track_plan(*overrides: str) -> Plan:
    fixed = {"track": {"path": str(FOLDER), "parameters": {"bulk_size": 7}}}
    return spec.build_plan(spec.load_experiment("track", overrides, fixed=fixed))


def test_plan_of_a_track_can_be_repeated() -> None:
    again = records.from_json(Plan, json.loads(json.dumps(records.to_json(build_track_plan("heap=1g,2g")))))
    assert again == build_track_plan("heap=1g,2g")
    assert again.runs[0].cell.load.track == TrackOptions(path=str(FOLDER), parameters={"bulk_size": 7})
    assert [
        load_of(planning.check_procedure(run.cell), "index-rides").options.bulk_documents for run in again.runs
    ] == [7, 7]
    assert campaign.check_plan(again) == ("skipped: recent (search)", "skipped: sleep")


def test_sequential_loads_are_measured_as_one() -> None:
    first = example_runs.report()
    later = dataclasses.replace(
        first,
        started_monotonic_ns=first.measure_end_ns + SECOND,
        warm_up_end_ns=first.measure_end_ns + 2 * SECOND,
        measure_end_ns=first.measure_end_ns + 3 * SECOND,
        local_ports=(40001,),
    )
    both = supervisor.combine_sequential([first, later])
    assert (both.started_monotonic_ns, both.warm_up_end_ns) == (first.started_monotonic_ns, first.warm_up_end_ns)
    assert (both.measure_end_ns, both.local_ports) == (later.measure_end_ns, (40000, 40001))
    assert both.bytes_written == 2 * first.bytes_written
    assert supervisor.combine_sequential([first]) == first


def test_load_that_ended_in_its_warm_up_is_measured_from_its_start() -> None:
    short = example_runs.report(measure_end_ns=example_runs.START + SECOND, warm_up_end_ns=example_runs.START + SECOND)
    assert supervisor.combine_sequential([short]).warm_up_end_ns == example_runs.START


def test_every_workload_has_a_procedure_on_every_target() -> None:
    for name in ("geonames", "geopoint", "nyc_taxis", "percolator", "pmc"):
        for target in ("sink", "opensearch"):
            options = LoadOptions(workload=name)
            assert planning.check_procedure(cell(options, target)).indices == (catalog.load_workload(name).index,)


def test_invalid_workload_is_refused_before_the_start_unless_it_is_not_used(tmp_path: Path) -> None:
    path, documents = tmp_path / "made.toml", tmp_path / "documents.json"
    keys = 'description = "x"\nsource = "x"\nindex = "x"\npublished_documents = 100\npublished = 10000\n'
    path.write_text(keys + 'bulk_documents = 10\nusers = 2\nmapping = {}\nfields = [{ name = "n", kind = "dat" }]\n')
    documents.write_text('{"n": 1}\n')

    def plan(load: LoadOptions) -> Plan:
        run = Run(id="x/1", cell=cell(load), replicate=1)
        return Plan(experiment="x", description="", seed=1, factors=(), runs=(run,))

    with pytest.raises(SpecError, match=r'workload made: fields: n: unknown kind "dat"; did you mean "date"\?'):
        campaign.check_plan(plan(LoadOptions(workload=str(path))))
    assert campaign.check_plan(plan(LoadOptions(workload=str(path), documents=str(documents)))) == ()
