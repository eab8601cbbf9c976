"""Rally tracks and OpenSearch Benchmark workloads: parsed steps, files, templates and refusals."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from example_tracks import SEND, read_track, write_track

from ingest_bench.documents.tracks import reader
from ingest_bench.documents.tracks.templates import Templates
from ingest_bench.errors import SpecError
from ingest_bench.model.load import Rate, Step, Track

FOLDER = Path(__file__).parent / "data" / "track"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy that the test may change."""
    return Path(shutil.copytree(FOLDER, tmp_path / "outer" / "track"))


def step(track: Track, name: str) -> Step:
    return next(candidate for candidate in track.steps if candidate.name == name)


def requests_of(track: Track, name: str) -> list[tuple[str, str, Any]]:
    return [(request.method, request.path, request.body) for request in step(track, name).requests]


def test_admin_steps_are_requests_to_declared_indices() -> None:
    track = reader.read_track(FOLDER)
    settings = {"index.number_of_shards": 1, "index.number_of_replicas": 0, "index.refresh_interval": "5s"}
    assert requests_of(track, "delete-index") == [("DELETE", "/rides", None), ("DELETE", "/places", None)]
    created = requests_of(track, "create-index")
    assert [path for _, path, _ in created] == ["/rides", "/places"]
    assert created[0][2]["settings"] == settings
    assert created[0][2]["mappings"]["properties"]["n"] == {"type": "integer"}
    assert requests_of(track, "check-cluster-health") == [("GET", "/_cluster/health?wait_for_status=green", None)]
    every = "ignore_unavailable=true"
    assert requests_of(track, "refresh-after-index") == [("POST", f"/rides,places/_refresh?{every}", None)]
    assert requests_of(track, "force-merge") == [
        ("POST", f"/rides,places/_forcemerge?{every}&max_num_segments=1", None)
    ]
    merges = step(track, "wait-until-merges-finish").requests[0]
    assert (merges.until_path, merges.until_value) == ("_all.total.merges.current", 0)
    assert step(track, "force-merge").requests[0].timeout_ns == 7200 * 10**9


def test_bulk_step_has_files_clients_size_warm_up_and_rate() -> None:
    rides = step(reader.read_track(FOLDER), "index-rides")
    assert (rides.clients, rides.bulk_documents, rides.warm_up_ns) == (2, 100, 5 * 10**9)
    assert rides.rate == Rate(2000, "documents")
    assert [(Path(file.path).name, file.index, file.has_action_lines) for file in rides.files] == [
        ("rides.json", "rides", False)
    ]
    places = step(reader.read_track(FOLDER), "index-places")
    assert [(Path(file.path).name, file.index, file.has_action_lines) for file in places.files] == [
        ("places.json.gz", "", True)
    ]


def test_parameters_are_visible_in_every_file() -> None:
    parameters = {"bulk_size": 7, "bulk_indexing_clients": 3, "number_of_shards": 4, "refresh_interval_s": 30}
    track = reader.read_track(FOLDER, parameters=parameters)
    assert step(track, "index-rides").bulk_documents == 7
    assert step(track, "index-rides").clients == 3
    settings = step(track, "create-index").requests[0].body
    assert settings is not None
    assert settings["settings"]["index.number_of_shards"] == 4
    assert settings["settings"]["index.refresh_interval"] == "30s"


def test_another_challenge_can_be_selected() -> None:
    track = reader.read_track(FOLDER, procedure="update")
    update = step(track, "update-rides")
    assert (update.clients, update.time_period_ns) == (1, 60 * 10**9)
    assert (update.action.conflicts, update.action.on_conflict, update.action.pipeline) == ("random", "update", "clean")
    assert update.action.conflict_probability_ppm == 300_000
    assert track.skipped == ("recent (search)", "snapshot (create-snapshot)")
    assert track.notes == (
        'update-rides: "recency" is not used: reused ids are drawn uniformly',
        'update-rides: no step creates its pipeline "clean"; the server must have it',
    )


def test_test_mode_sends_1000_documents_without_warm_up_or_rate(folder: Path) -> None:
    rides = step(reader.read_track(folder, test_mode=True), "index-rides")
    assert (rides.warm_up_ns, rides.rate, rides.files[0].documents) == (0, None, 1000)
    shutil.copy(folder / "rides.json", folder / "rides-1k.json")
    rides = step(reader.read_track(folder, test_mode=True), "index-rides")
    assert Path(rides.files[0].path).name == "rides-1k.json"
    assert rides.files[0].documents is None
    assert (
        step(reader.read_track(folder, procedure="update", test_mode=True), "update-rides").time_period_ns == 10 * 10**9
    )


def test_shared_folder_of_opensearch_benchmark_is_readable(tmp_path: Path) -> None:
    folder = write_track(tmp_path / "repo" / "mine")
    shared = tmp_path / "repo" / "common_operations"
    shared.mkdir()
    (shared / "delete_index.json").write_text('{"operation": "delete-index"}')
    (folder / "test_procedures").mkdir()
    (folder / "test_procedures" / "default.json").write_text(
        '{"name": "p", "schedule": [{{ benchmark.collect(parts="../../common_operations/delete_index.json") }},'
        '{"operation": "bulk"}]}'
    )
    table = json.loads((folder / "track.json").read_text())
    del table["schedule"]
    text = json.dumps(table)[:-1] + ', "test_procedures": [{{ benchmark.collect(parts="test_procedures/*.json") }}]}'
    (folder / "workload.json").write_text('{% import "benchmark.helpers" as benchmark with context %}' + text)
    (folder / "track.json").unlink()
    assert [done.operation for done in reader.read_track(folder).steps] == ["delete-index", "bulk"]


def test_corpus_may_be_outside_only_behind_a_link(tmp_path: Path) -> None:
    folder = write_track(tmp_path / "t")
    disk = (folder / "docs.json").rename(tmp_path / "on-a-large-disk.json")
    (folder / "docs.json").symlink_to(disk)
    track = reader.read_track(folder)
    reader.check_files(track)
    assert track.steps[0].files[0].path == str(folder / "docs.json")
    for name in ("../on-a-large-disk.json", str(disk)):
        with pytest.raises(SpecError, match="is outside the folder of the track"):
            read_track(tmp_path / "u", documents=[{"source-file": name}])


def test_complete_corpus_in_a_tool_cache_is_used(tmp_path: Path) -> None:
    caches = [tmp_path / "rally", tmp_path / "osb"]
    sizes = {"document-count": 2, "uncompressed-bytes": 18, "compressed-bytes": 5}
    document_set = {"source-file": "d.json.bz2", "base-url": "https://example.org", **sizes}
    folder = write_track(tmp_path / "t", documents=[document_set])

    def path() -> Path:
        track = reader.read_track(folder, downloads=tmp_path / "ours", tool_caches=caches)
        return Path(track.steps[0].files[0].path)

    assert path().is_relative_to(tmp_path / "ours")
    for cache in caches:
        (cache / "c").mkdir(parents=True)
    for name, size in (("d.json", 17), ("d.json.bz2", 4)):
        (caches[0] / "c" / name).write_bytes(b"x" * size)
    assert path().is_relative_to(tmp_path / "ours")
    (caches[1] / "c" / "d.json.bz2").write_bytes(b"x" * 5)
    assert path() == caches[1] / "c" / "d.json.bz2"
    (caches[0] / "c" / "d.json").write_bytes(b"x" * 18)
    assert path() == caches[0] / "c" / "d.json"
    (folder / "d.json").write_text("next to the track")
    assert path() == folder / "d.json"


@pytest.mark.parametrize(("corpus", "name"), [("..", "secret.json"), ("/etc", "passwd"), ("c/../..", "secret.json")])
def test_no_corpus_outside_the_cache_of_a_tool_is_used(tmp_path: Path, corpus: str, name: str) -> None:
    (tmp_path / "secret.json").write_text("{}")
    corpora = [{"name": corpus, "documents": [{"source-file": name}]}]
    folder = write_track(tmp_path / "t", corpora=corpora)
    track = reader.read_track(folder, tool_caches=[tmp_path / "cache"])
    assert track.steps[0].files[0].path == str(folder / name)


def test_track_may_be_one_json_file_of_any_name(tmp_path: Path) -> None:
    folder = write_track(tmp_path / "t")
    expected = reader.read_track(folder)
    file = (folder / "track.json").rename(folder / "sys log.json")
    assert reader.read_track(file) == dataclasses.replace(expected, name="sys log")
    reader.check_files(reader.read_track(file))
    (folder / "docs.txt").write_text("")
    with pytest.raises(SpecError, match=r"docs.txt: not a track"):
        reader.read_track(folder / "docs.txt")


def test_collect_may_have_a_computed_pattern(folder: Path) -> None:
    text = (folder / "track.json").read_text()
    (folder / "track.json").write_text(text.replace('"operations/*.json"', '"oper" ~ "ations/*.json"'))
    assert step(reader.read_track(folder), "index-rides").bulk_documents == 100


@pytest.mark.parametrize("name", ["other", "ride*", "_all", "*"])
def test_undeclared_index_may_be_deleted(tmp_path: Path, name: str) -> None:
    deletes = {"operation": {"operation-type": "delete-index", "index": name}}
    (deletion,) = read_track(tmp_path, [deletes, SEND]).steps[0].requests
    assert (deletion.method, deletion.path, deletion.accepted_statuses) == ("DELETE", f"/{name}", (200, 404))


OUTSIDE = [
    '{{ rally.collect(parts="../../secret.json") }}',
    '{{ rally.collect(parts="../../*.json") }}',
    '{{ rally.collect(parts="../operations/../../secret.json") }}',
    '{{ rally.collect(parts="/etc/passwd") }}',
    '{% include "../secret.json" %}',
    '{% include "../secret.json" ignore missing %}',
    '{% set p = "../secret.json" %}{{ rally.collect(parts=p) }}',
    '{% include "link.json" %}',
    '{{ rally.collect(parts="../lin*.json") }}',
    '{{ glob("../*.json") }}',
]


@pytest.mark.parametrize("template", OUTSIDE)
def test_template_that_reads_outside_its_folder_is_refused(folder: Path, template: str) -> None:
    (folder.parent / "secret.json").write_text('{"name": "secret"}')
    (folder / "link.json").symlink_to(folder.parent / "secret.json")
    (folder / "operations" / "index.json").write_text(template)
    with pytest.raises(SpecError, match="is outside the folder of the track"):
        reader.read_track(folder)


HELPERS = [
    ("{{ '2.11.0' | version_between('2.9', '2.11.0') }}", "True"),
    ("{{ '2.12' | version_between('2.9.0', '2.11.9') }}", "False"),
    ("{{ '2.8.3' | version_between('2.9.0', '2.11.9') }}", "False"),
    ("{{ 86400.0 | get_start_date }}", "1970-01-02"),
    ("{{ '1998-05-15' | get_start_date }}", "1998-05-15"),
    ("{{ 86400 | get_end_date }}", "1970-01-03"),
    ("{{ '1998-05-31' | get_end_date(2) }}", "1998-06-02"),
    ("{{ 0.0 | get_end_date(duration_days=31, date_format='%d.%m.%Y') }}", "01.02.1970"),
    ("{{ '15-05-1998' | days_ago('15-05-1999') }}", "365"),
    ("{{ '1998-05-15' | days_ago(end_date='1998-05-14', date_format='%Y-%m-%d') }}", "-1"),
    ("{{ now > 1700000000 and now is float }}", "True"),
    ("{{ 0 == ((now | get_start_date) | days_ago(now, date_format='%Y-%m-%d')) }}", "True"),
    (
        "{% for part in glob('operations/*.json') %}{{ part }} {% endfor %}",
        "operations/index.json operations/search.json ",
    ),
    ("{{ glob('nothing/*.json') }}{{ glob('nothing.json') }}", "[][]"),
]


@pytest.mark.parametrize(("template", "text"), HELPERS)
def test_helpers_do_what_the_tools_document(folder: Path, template: str, text: str) -> None:
    (folder / "track.json").write_text(json.dumps({"a": template}).replace('\\"', '"'))
    assert Templates(folder, {"now": 1, "glob": 2}).render_json("track.json") == {"a": text}


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ lipsum.__globals__['os'] }}", "may not do this"),
        ("{{ rally.collect.__globals__ }}", "may not do this"),
        ("{{ ('{0.__globals__[os].environ}'|attr('format'))(lipsum) }}", "may not do this"),
        ('{{ rally.collect(parts="index.json") }}', "collects itself"),
        ('{"name": "x",}', "is not JSON after rendering"),
        ("{% if x %}\n\n", "Unexpected end of template"),
        ("{{ [1, 2] | dictsort }}", "cannot be rendered: 'list' object has no attribute 'items'"),
        ('{{ {} | dictsort(by="x") }}', 'cannot be rendered: You can only sort by either "key" or "value"'),
        ('{% extends "index.json" %}{% extends "index.json" %}', "cannot be rendered: "),
        ('{"size": ' + "1" * 5000 + "}", "it has a number of thousands of digits"),
        ('{"name": "x", "settings": {"a": 1, "a": 2}}', "an object has two values for the key 'a'"),
        ("{{ my_size + 1 }}", '"my_size" has no value and no default. Pass it: --track-params my_size:VALUE'),
        ("{{ '2.x' | version_between('1.0', '3.0') }}", "cannot be rendered: invalid literal for int"),
        ("{{ version | version_between('1.0', '3.0') }}", 'the parameter "version" has no value'),
        ("{{ 1e300 | get_start_date }}", "cannot be rendered: "),
        ("{{ 0 | get_end_date(1e15) }}", "cannot be rendered: "),
        ("{{ 'yesterday' | days_ago(now) }}", "cannot be rendered: time data 'yesterday' does not match"),
    ],
)
def test_bad_template_is_refused(folder: Path, template: str, message: str) -> None:
    (folder / "operations" / "index.json").write_text(template)
    with pytest.raises(SpecError) as caught:
        reader.read_track(folder)
    assert message in str(caught.value)


def test_truncated_track_is_refused_with_the_line(folder: Path) -> None:
    (folder / "track.json").write_text("{\n\n")
    with pytest.raises(SpecError, match=r"track\.json: line [23]: is not JSON after rendering: .*: ''"):
        reader.read_track(folder)


BAD_LINES = [
    ('"size": 5', "is not JSON after rendering: Expecting ',' delimiter"),
    ('"size": {{ my_size }},', '"my_size" has no value and no default'),
    ("{{ 'a' | shout }}", "No filter named 'shout'"),
    ("{% if 1 is loud %}{% endif %}", "No test named 'loud'"),
    ("{% if %}", "Expected an expression, got 'end of statement block', in: '{% if %}'"),
    ("{{ 1 / 0 }}", "cannot be rendered: division by zero"),
    ("{{ my_size + 1 }}", '"my_size" has no value and no default'),
    ("{{ ''.__class__.__mro__ }}", "the template may not do this"),
    ('{% include "no.json" %}', "no.json: cannot be read"),
    ('{% set list = "[1," %}"list": {{ list }}\n],', "is not JSON after rendering: "),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES)
@pytest.mark.parametrize("inclusion", ["collect", "computed", "include", "nested"])
def test_error_in_a_fragment_is_reported_with_its_line(tmp_path: Path, inclusion: str, line: str, reason: str) -> None:
    folder = write_track(tmp_path / "t")
    (folder / "ops").mkdir()
    (folder / "ops" / "a.json").write_text('{% set long = [\n1,\n2] %}\n{"name": "a",\n"operation-type": "bulk"}\n')
    bad = f'{{# a\ncomment #}}\n{{%- if true -%}}\n\n{{"name": "b",\n{line}\n"operation-type": "bulk"}}\n{{% endif %}}'
    (folder / "ops" / "b.json").write_text(bad)
    (folder / "ops" / "c.jsn").write_text('{{ rally.collect(parts="b.json") }}')
    text = {
        "collect": '{{ rally.collect(parts="ops/*.json") }}',
        "computed": '{{ rally.collect(parts="ops/" ~ "*.json") }}',
        "include": '{% include "ops/a.json" %},\n{% include "ops/b.json" %}',
        "nested": '{{ rally.collect(parts="ops/c.jsn") }}',
    }[inclusion]
    (folder / "track.json").write_text(
        f'{{% import "rally.helpers" as rally with context %}}\n{{"version": 2,\n"operations": [\n  {text}\n],\n'
        '"indices": []}'
    )
    with pytest.raises(SpecError) as error:
        reader.read_track(folder)
    message = str(error.value)
    assert reason in message
    if "cannot be read" not in reason:
        # Python's parser reports a missing comma on the next line.
        assert message.startswith((f"{folder}/ops/b.json: line 6: ", f"{folder}/ops/b.json: line 7: "))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # Two fragments, and a comma too many next to the second one.
        ('{{"operations": [\n{0},\n{0},\n],\n"indices": []}}', "/track.json: line 3: is not JSON after rendering: "),
        # A template that reads its own text: the lines are unknown.
        (
            "{{% set x %}}a{{% endset %}}{{% if x|length == 1 %}}{{{{ x }}}}{{% endif %}}\n{{,}}",
            "/track.json: is not JSON",
        ),
        (
            "{{% set x %}}a{{% endset %}}{{{{ 1 // (2 - x|length) }}}}\n{{,}}",
            "/track.json: is not JSON after rendering: ",
        ),
    ],
)
def test_error_next_to_a_fragment_is_reported_with_its_line(folder: Path, text: str, message: str) -> None:
    (folder / "a.json").write_text('\n\n{"name":\n"a"}\n\n')
    (folder / "track.json").write_text(text.format('{{ rally.collect(parts="a.json") }}'))
    with pytest.raises(SpecError) as caught:
        reader.read_track(folder)
    assert message in str(caught.value)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python takes it as any name since 3.13")
def test_invalid_file_pattern_is_reported(folder: Path) -> None:
    (folder / "operations" / "index.json").write_text('{{ rally.collect(parts="ops/**.json") }}')
    with pytest.raises(SpecError, match=r'operations: "ops/\*\*\.json" is not a valid pattern of files'):
        reader.read_track(folder)


def test_undefined_parameter_matters_only_in_used_parts(folder: Path) -> None:
    # operations/search.json prints bucket_name, in an operation that is skipped: that is harmless.
    assert reader.read_track(folder, procedure="update").skipped[-1] == "snapshot (create-snapshot)"
    text = (folder / "operations" / "index.json").read_text()
    (folder / "operations" / "index.json").write_text(text.replace('"clean"', '"{{ pipeline_name }}"'))
    assert reader.read_track(folder).challenge == "append"
    with pytest.raises(SpecError, match='"pipeline_name" has no value and no default'):
        reader.read_track(folder, procedure="update")


def test_missing_file_is_reported_with_its_address(folder: Path) -> None:
    (folder / "rides.json").unlink()
    with pytest.raises(SpecError, match=r"rides.json.bz2.* --download .* https://example.org/corpora/"):
        reader.check_files(reader.read_track(folder))
    (folder / "index.json").unlink()
    with pytest.raises(SpecError, match=r"index\.json: cannot be read: No such file or directory"):
        reader.read_track(folder)


def test_wrong_names_suggest_the_nearest(folder: Path) -> None:
    with pytest.raises(SpecError, match='no procedure "apend"; did you mean "append"'):
        reader.read_track(folder, procedure="apend")
    with pytest.raises(SpecError, match='no parameter "bulk_sise"; did you mean "bulk_size"'):
        reader.read_track(folder, parameters={"bulk_sise": 1})
    with pytest.raises(SpecError, match="not a track"):
        reader.read_track(folder / "operations")


@pytest.mark.parametrize(
    ("throughput", "rate"),
    [
        (10, Rate(10)),
        ("10", Rate(10)),
        ("2.5 ops/s", Rate(2.5)),
        ("5000 docs/s", Rate(5000, "documents")),
        ("", None),
        (None, None),
    ],
)
def test_target_throughput_is_a_rate_of_requests_or_documents(
    tmp_path: Path, throughput: Any, rate: Rate | None
) -> None:
    assert read_track(tmp_path, [{**SEND, "target-throughput": throughput}]).steps[0].rate == rate


@pytest.mark.parametrize(
    "name", ["a b", "a\r\nHost: x", "../x", "a/b", "_all", "..", "", "a?b", "a#b", "x" * 256, "\x1b[2J"]
)
def test_invalid_index_name_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(SpecError, match="is not a valid index name"):
        read_track(folder, indices=[{"name": name, "body": "index.json"}])
    with pytest.raises(SpecError, match="is not a valid index name"):
        read_track(folder, documents=[{"source-file": "docs.json", "target-index": name}])


@pytest.mark.parametrize("name", ["a\0b", "\x1b[2J", "x" * 300, "\ud800"])
def test_invalid_file_name_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(SpecError, match="is not a valid file name"):
        read_track(folder, documents=[{"source-file": name}])
    with pytest.raises(SpecError, match="is not a valid file name"):
        read_track(folder, indices=[{"name": "i", "body": name}])


@pytest.mark.parametrize(("has", "message"), [(9, "has 9 documents"), (11, "has 11 documents"), (1, "has 1 document ")])
def test_file_with_another_document_count_is_refused(tmp_path: Path, has: int, message: str) -> None:
    folder = write_track(tmp_path)
    (folder / "docs.json").write_text('{"n": 1}\n' * has)
    with pytest.raises(SpecError, match=message) as error:
        reader.check_files(reader.read_track(folder))
    assert 'where the track says 10 ("document-count")' in str(error.value)
    (folder / "docs.json").write_text('{"n": 1}\n' * 10)
    reader.check_files(reader.read_track(folder))
