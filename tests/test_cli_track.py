"""`run --track` and `plan --track` as a user types them: what is told, and what is refused with exit code 2."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ingest_bench.cli import app, what
from ingest_bench.experiment import fingerprints

TRACK = str(Path(__file__).parent / "data" / "track")


def typed(*words: str) -> int:
    return app.run(list(words))


def test_the_plan_of_a_track_says_what_it_skips(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("plan", "--track", TRACK, "--set", "heap=1g,2g") == 0
    # A narrow terminal breaks lines.
    said = " ".join(capsys.readouterr().out.split())
    assert "skipped: recent (search) skipped: sleep" in said
    assert "2 runs, each as long as its documents take. Nothing was started." in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--track", "/nowhere"), "/nowhere: is no track: neither track.json nor workload.json is in it"),
        (("run", "--track", TRACK, "--challenge", "apend"), 'no procedure "apend"; did you mean "append"?'),
        (("run", "--track", TRACK, "--track-params", "bulk_sise:5"), 'no parameter "bulk_sise"; did you mean'),
        (("run", "--track", TRACK, "--track-params", "bulk_size"), "'bulk_size' is not NAME:VALUE"),
        (("run", "--track", TRACK, "--documents", "x.json"), "load.documents: the track says it"),
        (("run", "--track", TRACK, "--measure", "5s"), "load.measure: the track says it"),
        (("run", "--track", TRACK, "--set", "users=5"), "load.users: the track says it"),
        (("run", "quickstart", "--challenge", "append"), "belong to --track DIR: which track?"),
        (("run", "quickstart", "--test-mode"), "belong to --track DIR: which track?"),
        (("run", "--resume", "results", "--track", TRACK), "--resume takes its plan from the folder"),
        (("run", "--resume", "results", "--test-mode"), "--resume takes its plan from the folder"),
        (("run", "track"), "give it by --track DIR"),
        (("run", "quickstart", "--documents", "-"), "write it to a file first"),
        (("net", "exec", "ethernet", "--server", 'sleep "1', "--", "true"), "a shell could not read it"),
        (("run",), "which experiment?"),
        (("run", "quickstart", "--set", "query_arrivals=5/s"), "nobody sends queries"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
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
def test_a_track_is_found_below_a_tilde_and_with_a_space_in_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    folder = shutil.copytree(TRACK, tmp_path / "my track, v2")
    monkeypatch.setenv("HOME", str(tmp_path))
    (plan,) = what.plans(what.What(track=Path(path), documents=None))
    track = plan.runs[0].cell.load.track
    assert track is not None
    assert Path(track.path) in (folder, folder / "track.json")
    assert plan.experiment == ("my_track_v2" if path.endswith("v2") else "track")
    assert len(fingerprints.of(plan)) == sum(
        1 for file in folder.rglob("*") if file.is_file() and (".json" in file.name or path.endswith("v2"))
    )


def test_a_corpus_that_is_missing_is_named_with_where_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(TRACK, tmp_path / "track"))
    (folder / "rides.json").unlink()
    assert typed("run", "--track", str(folder)) == 2
    assert (
        "say --download to fetch it into the cache (of unknown size, from https://example.org/corpora/)"
        in capsys.readouterr().err
    )
