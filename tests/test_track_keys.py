"""Every key of a bulk operation, its task and a document set is used, harmless, or noted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import example_runs
import example_tracks
import pytest

from ingest_bench.documents.tracks import corpora, reader
from ingest_bench.errors import SpecError
from ingest_bench.lab import planning
from ingest_bench.load.plan import LoadPlan
from ingest_bench.model.load import LoadOptions, Track, TrackOptions
from ingest_bench.model.target import Endpoint, ServerAddress, TargetOptions

SECOND = 10**9
# Keys in the documentation and the schemas of Rally 2.13 and OpenSearch Benchmark 2.4.
DOCUMENTED: list[tuple[corpora.Keys, str]] = [
    (
        corpora.BULK_KEYS,
        (
            "name meta operation-type include-in-reporting assertions request-timeout headers opaque-id bulk-size "
            "ingest-percentage ingest-doc-count corpora indices data-streams batch-size pipeline conflicts "
            "conflict-probability on-conflict recency detailed-results timeout refresh looped request-params type"
        ),
    ),
    (
        corpora.TASK_KEYS,
        (
            "name meta tags operation clients warmup-iterations iterations ramp-up-time-period ramp-down-time-period "
            "warmup-time-period time-period schedule target-throughput target-interval ignore-response-error-level "
            "run-on-serverless serverless"
        ),
    ),
    (
        corpora.DOCUMENT_KEYS,
        (
            "name meta documents base-url source-url source-file source-file-parts source-format document-count "
            "includes-action-and-meta-data compressed-bytes uncompressed-bytes target-index target-data-stream "
            "target-type streaming-ingestion"
        ),
    ),
]


def write_track(
    folder: Path, documents: list[dict[str, Any]], operation: dict[str, Any] | None = None, **task: Any
) -> Path:
    """Write a track of two data streams whose one task sends these document sets."""
    streams = {"data-streams": [{"name": "logs-a"}, {"name": "logs-b"}]}
    bulk = {"operation-type": "bulk", "bulk-size": 5, **(operation or {})}
    example_tracks.write_track(folder, [{"operation": bulk, **task}], documents, indices=[], **streams)
    for name in ("a.json", "b.json"):
        (folder / name).write_text('{"n": 1}\n' * 10)
    return folder


def read_track(folder: Path, documents: list[dict[str, Any]], *operation: dict[str, Any], **task: Any) -> Track:
    return reader.read_track(write_track(folder, documents, *operation, **task))


def document_set(name: str, stream: str = "logs-a", **more: Any) -> dict[str, Any]:
    return {"source-file": name, "target-data-stream": stream, **more}


A, B = document_set("a.json"), document_set("b.json", "logs-b")


def files(track: Track) -> list[str]:
    return [Path(file.path).name for file in track.steps[0].files]


def build_load_plan(folder: Path, target: str = "sink") -> LoadPlan:
    cell = example_runs.cell(load=LoadOptions(track=TrackOptions(path=str(folder))), target=TargetOptions(name=target))
    place = ServerAddress(endpoint=Endpoint("192.0.2.1", 9200))
    (plan,) = planning.build_procedure(cell, place, Path("out"), may_delete=True).plans
    return plan


def test_every_documented_key_is_in_one_list() -> None:
    for table, documented in DOCUMENTED:
        assert not {*table.used} & {*table.harmless}
        assert not {*table.used, *table.harmless} & table.unsupported.keys()
        notes = list(table.notes(dict.fromkeys(documented.split(), 1), "x"))
        assert notes == [note for note in notes if "is unknown here" not in note]


def test_bulk_sends_only_to_its_data_streams(tmp_path: Path) -> None:
    assert files(read_track(tmp_path, [A, B], {"data-streams": ["logs-a"]})) == ["a.json"]
    assert files(read_track(tmp_path, [A, B], {"data-streams": "logs-b"})) == ["b.json"]
    with pytest.raises(SpecError, match="nothing to send: no corpus of the track has documents for logs-x"):
        read_track(tmp_path, [A, B], {"data-streams": ["logs-x"]})


def test_bulk_parameters_and_timeout_apply_to_each_request(tmp_path: Path) -> None:
    operation = {"timeout": "5m", "request-params": {"require_alias": False, "wait_for_active_shards": 2}}
    load_plan = build_load_plan(write_track(tmp_path, [A], {**operation, "request-timeout": 7200}))
    url = getattr(load_plan.build_protocol(), "url_path")  # noqa: B009 - of this protocol
    assert url == "/logs-a/_bulk?timeout=5m&require_alias=false&wait_for_active_shards=2"
    assert load_plan.options.timeout_ns == 7200 * SECOND
    default_plan = build_load_plan(write_track(tmp_path, [A]))
    assert default_plan.options.timeout_ns == LoadOptions().timeout_ns


def test_request_params_override_keys_of_the_operation(tmp_path: Path) -> None:
    operation = {"pipeline": "old", "refresh": "false", "timeout": "1m"}
    operation |= {"request-params": {"pipeline": "new", "refresh": True, "timeout": "2m"}}  # type: ignore[dict-item]
    step = read_track(tmp_path, [A], operation).steps[0]
    assert (step.action.pipeline, step.action.refresh, step.query) == ("new", "true", "timeout=2m")


def test_request_params_are_encoded(tmp_path: Path) -> None:
    load_plan = build_load_plan(write_track(tmp_path, [A], {"request-params": {"a&b": "1 HTTP/1.1\r\nX: y"}}))
    assert load_plan.wire.keys["path"] == "/logs-a/_bulk?a%26b=1+HTTP%2F1.1%0D%0AX%3A+y"


def test_request_params_require_http(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match='"request-params" and "timeout" require a bulk API over HTTP'):
        build_load_plan(write_track(tmp_path, [A], {"timeout": "5m"}), "kafka")


def test_unused_keys_are_noted_once(tmp_path: Path) -> None:
    operation = {"recency": 0.5, "headers": {"x": "y"}, "recency2": 0, "batch-size": 50, "detailed-results": True}
    task = {"ramp-down-time-period": 5, "iterations": 3, "warmup-iterations": 0, "#COMMENT": "c", "tags": ["t"]}
    more: dict[str, Any] = {"target-type": "_doc", "meta": {"a": 1}}
    documents = [document_set("a.json", **more)] * 2
    assert read_track(tmp_path, documents, operation, **task).notes == (
        'bulk: "recency" is not used: reused ids are drawn uniformly',
        'bulk: "headers" is not used: requests have no headers of the track',
        'bulk: "recency2" is not used: the key is unknown here',
        'bulk: "ramp-down-time-period" is not used: all clients end together',
        'bulk: "iterations" is not used: the whole corpus is sent',
        'corpus c: a.json: "target-type" is not used: today\'s servers have no document types',
    )


def test_documents_in_another_format_are_skipped(tmp_path: Path) -> None:
    hdf5 = document_set("vectors.hdf5", **{"source-format": "hdf5"})
    track = read_track(tmp_path, [A, hdf5])
    assert files(track) == ["a.json"]
    assert track.notes == ("corpus c: vectors.hdf5 is skipped: its \"source-format\" is 'hdf5'",)
    with pytest.raises(SpecError, match="nothing to send"):
        read_track(tmp_path, [hdf5])


def test_source_url_is_the_address_of_the_file(tmp_path: Path) -> None:
    signed = "https://signed.example.org/data/x?signature=1"
    base: dict[str, Any] = {"base-url": "https://example.org/base"}
    documents = [document_set("c.json.bz2", **base, **{"source-url": signed}), document_set("d.json.bz2", **base)]
    origins = [file.origin.url for file in read_track(tmp_path, documents).steps[0].files]
    assert origins == [signed, "https://example.org/base/d.json.bz2"]
    resigned = [document_set("c.json.bz2", **{"source-url": f"{signed}&again"})]
    first, second = (
        reader.read_track(write_track(tmp_path, sets), downloads=tmp_path).steps[0].files[0].path
        for sets in (documents, resigned)
    )
    assert first == second


def test_file_in_parts_has_no_address(tmp_path: Path) -> None:
    parts: dict[str, Any] = {"base-url": "https://example.org", "source-file-parts": [{"name": "e1", "size": 5}]}
    track = read_track(tmp_path, [document_set("e.json.bz2", **parts)])
    assert track.steps[0].files[0].origin.url == ""
    assert "join the parts yourself, and put the complete file into the folder of the track" in track.notes[0]
    with pytest.raises(SpecError, match=r"missing corpus files: e\.json\.bz2\. Put them into the folder"):
        reader.check_files(track)


def test_unused_key_may_have_an_undefined_parameter(tmp_path: Path) -> None:
    documents = [document_set("a.json", owner="{{ owner }}", meta={"team": "{{ team }}"})]
    track = read_track(tmp_path, documents, {"wish": "{{ wish }}"}, **{"{{ odd }}x": 1})
    assert track.notes == (
        'bulk: "wish" is not used: the key is unknown here',
        'bulk: "x" is not used: the key is unknown here',
        'corpus c: a.json: "owner" is not used: the key is unknown here',
    )
    with pytest.raises(SpecError, match='"where" has no value and no default'):
        read_track(tmp_path, [document_set("a.json", **{"base-url": "{{ where }}"})])
