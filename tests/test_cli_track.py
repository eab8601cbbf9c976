"""`run` and `plan` with a track, and options that are refused before anything starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ingest_bench.cli import app, experiment_options
from ingest_bench.experiment import catalog

NOWHERE = ("--interface", "nosuch0")
TRACK = str(Path(__file__).parent / "data" / "track")


def typed(*words: str) -> int:
    return app.run(list(words))


def test_plan_of_a_track_names_skipped_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("plan", "--track", TRACK, "--set", "heap=1g,2g") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "skipped: recent (search) skipped: sleep" in text
    assert "2 runs, as long as their documents take. Nothing was started." in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--track", "/nowhere"), "/nowhere: does not exist. Give the folder of a track"),
        (("run", "--track", TRACK, "--challenge", "apend"), 'no procedure "apend"; did you mean "append"?'),
        (("run", "--track", TRACK, "--track-params", "bulk_sise:5"), 'no parameter "bulk_sise"; did you mean'),
        (("run", "--track", TRACK, "--track-params", "bulk_size"), "'bulk_size' is not NAME:VALUE"),
        (("run", "--track", TRACK, "--documents", TRACK), "is a folder. For a track: --track DIR"),
        (("run", "--track", TRACK, "--measure", "5s"), "load.measure conflicts with a track"),
        (("run", "--track", TRACK, "--set", "users=5"), "load.users conflicts with a track"),
        (("run", "quickstart", "--challenge", "append"), "require --track DIR"),
        (("run", "quickstart", "--test-mode"), "require --track DIR"),
        (("run", "quickstart", "--include-tasks", "type:bulk"), "require --track DIR"),
        (("run", "quickstart", "--exclude-tasks", "type:bulk"), "require --track DIR"),
        (("run", "--resume", "results", "--track", TRACK), "--resume cannot be combined with an experiment"),
        (("run", "--resume", "results", "--test-mode"), "--resume cannot be combined with an experiment"),
        (("run", "track"), "requires --track DIR"),
        (("run", "quickstart", "--documents", "-"), "standard input can be read only once"),
        (("net", "exec", "ethernet", "--server", 'sleep "1', "--", "true"), "it is not a valid shell command"),
        (("net", "exec", "ethernet", "--server-port", "1", "--", "true"), "--server-port requires --server COMMAND"),
        (("net", "apply", "ethernet", *NOWHERE, "--to", "198.18.0.9:9200", "--for", "5"), "--for: '5' is not a time"),
        (("net", "apply", "ethernet", *NOWHERE, "--for", "5s"), "net apply requires --to HOST:PORT"),
        (("run",), "no experiment given"),
        (("run", "quickstart", "--set", "query_arrivals=5/s"), "requires query users"),
    ],
)
def test_impossible_options_are_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert typed(*words) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["~/my track, v2", "~/my track, v2/track.json"])
def test_path_of_a_track_may_have_a_tilde_and_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    folder = shutil.copytree(TRACK, tmp_path / "my track, v2")
    monkeypatch.setenv("HOME", str(tmp_path))
    (plan,) = experiment_options.build_plans(experiment_options.ExperimentOptions(track=Path(path), documents=None))
    track = plan.runs[0].cell.load.track
    assert track is not None
    assert Path(track.path) in (folder, folder / "track.json")
    assert plan.experiment == ("my_track_v2" if path.endswith("v2") else "track")
    assert len(catalog.compute_fingerprints(plan)) == sum(
        1 for file in folder.rglob("*") if file.is_file() and (".json" in file.name or path.endswith("v2"))
    )


def test_missing_corpus_is_named_with_its_address(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(TRACK, tmp_path / "track"))
    (folder / "rides.json").unlink()
    assert typed("run", "--track", str(folder)) == 2
    assert "(unknown size, from https://example.org/corpora/)" in capsys.readouterr().err
