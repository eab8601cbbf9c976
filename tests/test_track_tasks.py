"""`--include-tasks` and `--exclude-tasks` choose tasks of a track as in Rally."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from example_tracks import BULK, write_track

from ingest_bench.cli import experiment_options
from ingest_bench.documents.tracks import reader
from ingest_bench.errors import SpecError
from ingest_bench.lab import planning

ROWS: list[Any] = [
    {"operation": "delete-index", "tags": "setup"},
    {"operation": "create-index", "tags": ["setup", "indices"]},
    {
        "parallel": {
            "completed-by": "second",
            "tasks": [
                {"name": "first", "operation": "index", "tags": ["fill"]},
                {"name": "second", "operation": "index"},
                {"name": "look", "operation": {"operation-type": "search"}},
            ],
        }
    },
    {"name": "third", "operation": "index", "tags": ["fill"]},
    {"operation": "force-merge"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a track with tasks alone and in parallel, some with tags."""
    return write_track(tmp_path, ROWS, operations=[{**BULK, "name": "index"}])


@pytest.mark.parametrize(
    ("choice", "filters", "names"),
    [
        ("include_tasks", ["type:bulk"], ["first", "second", "third"]),
        ("include_tasks", ["third"], ["third"]),
        ("include_tasks", ["tag:fill", "force-merge"], ["first", "third", "force-merge"]),
        ("include_tasks", ["tag:setup", "second"], ["delete-index", "create-index", "second"]),
        ("exclude_tasks", ["tag:fill"], ["delete-index", "create-index", "second", "force-merge"]),
        ("exclude_tasks", ["type:delete-index", "tag:indices", "second", "force-merge"], ["first", "third"]),
        ("exclude_tasks", ["first", "second", "look"], ["delete-index", "create-index", "third", "force-merge"]),
    ],
)
def test_chosen_tasks_run_in_the_order_of_the_track(
    folder: Path, choice: str, filters: list[str], names: list[str]
) -> None:
    arguments: dict[str, Any] = {choice: filters}
    assert [step.name for step in reader.read_track(folder, **arguments).steps] == names


def test_selection_without_a_bulk_is_refused(folder: Path) -> None:
    with pytest.raises(SpecError, match="has no bulk operation"):
        reader.read_track(folder, exclude_tasks=["type:bulk"])


def test_excluded_task_is_not_listed_as_skipped_and_ends_no_group(folder: Path) -> None:
    track = reader.read_track(folder, exclude_tasks=["second", "look"])
    assert track.skipped == ()
    assert [(step.name, step.group) for step in track.steps if step.operation == "bulk"] == [("first", 0), ("third", 0)]


@pytest.mark.parametrize(
    ("include", "exclude", "message"),
    [
        (["frist"], [], "no task matches 'frist'; did you mean \"first\"?"),
        ([], ["type:bluk"], "no task matches 'type:bluk'; did you mean \"type:bulk\"?"),
        (["kind:bulk"], [], "'kind:bulk' does not match tasks. Give a name, \"type:OPERATION-TYPE\""),
        ([], ["type:a:b"], "'type:a:b' does not match tasks"),
        (["tag:"], [], "'tag:' does not match tasks"),
        (["index"], ["third"], "--include-tasks cannot be combined with --exclude-tasks"),
    ],
)
def test_filter_without_a_match_is_refused(folder: Path, include: list[str], exclude: list[str], message: str) -> None:
    with pytest.raises(SpecError) as error:
        reader.read_track(folder, include_tasks=include, exclude_tasks=exclude)
    assert message in str(error.value)


def test_typed_filters_apply_to_every_run(folder: Path) -> None:
    others = ["delete-index", "create-index", "second", "force-merge"]
    for chosen, names in (
        (
            experiment_options.ExperimentOptions(track=folder, include_tasks=" tag:fill , second"),
            ["first", "second", "third"],
        ),
        (experiment_options.ExperimentOptions(track=folder, exclude_tasks="first,third"), others),
        (experiment_options.ExperimentOptions(track=folder, sets=["track.include_tasks=third"]), ["third"]),
    ):
        (plan,) = experiment_options.build_plans(chosen)
        choice = plan.runs[0].cell.load.track
        assert choice is not None
        assert [step.name for step in planning.read_track(choice).steps] == names
