"""`run` and `plan` with a track; test_slips.py has the options that are refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ingest_bench.cli import app, experiment_options
from ingest_bench.experiment import catalog

TRACK = str(Path(__file__).parent / "data" / "track")


def typed(*words: str) -> int:
    return app.run(list(words))


def test_plan_of_a_track_names_skipped_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("plan", "--track", TRACK, "--set", "heap=1g,2g") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "skipped: recent (search) skipped: sleep" in text
    assert "2 runs, as long as their documents take. Nothing was started." in text


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
