"""What the files of a plan hold, and a resumed run that finds others."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ingest_bench.analysis.run import summary
from ingest_bench.cli.app import app
from ingest_bench.errors import SpecError
from ingest_bench.experiment import fingerprints, order, spec
from ingest_bench.inputs import data
from ingest_bench.model.experiment import Plan
from ingest_bench.results import layout
from ingest_bench.results.facts import facts

LINE = '{"a": 1}\n'


def planned(folder: Path) -> Plan:
    (folder / "docs.ndjson").write_text(LINE * 100)
    (folder / "net.toml").write_text('description = "x"\nmedium = "veth"\n')
    (folder / "x.toml").write_text(
        '[target]\nname = "sink"\n[load]\nworkload = "nyc_taxis"\n'
        f'[network]\nprofile = "{folder}/net.toml"\n'
        f'[[fault]]\nkind = "profile"\nprofile = "{folder}/net.toml"\nat = "1s"\nfor = "1s"\n'
    )
    return order.order(spec.load(str(folder / "x.toml"), fixed={"documents": str(folder / "docs.ndjson")}))


def test_each_file_of_a_plan_has_a_fingerprint_that_changes_with_any_piece_of_it(tmp_path: Path) -> None:
    made = planned(tmp_path)
    first = fingerprints.of(made)
    assert sorted(Path(path).name for path in first) == ["docs.ndjson", "net.toml"]
    fingerprints.check(first, made)
    docs = tmp_path / "docs.ndjson"
    for text in (LINE * 99 + '{"a": 2}\n', '{"b": 1}\n' + LINE * 99, LINE * 101):
        docs.write_text(text)
        with pytest.raises(SpecError, match=r"docs\.ndjson: it has changed .* Bring it back \(900 bytes, "):
            fingerprints.check(first, made)
    docs.unlink()
    with pytest.raises(SpecError, match=r"docs\.ndjson: it is gone"):
        fingerprints.check(first, made)


def test_a_track_is_all_that_is_in_its_folder_and_a_servers_paths_are_none_of_ours(tmp_path: Path) -> None:
    track = tmp_path / "track"
    (track / "ops").mkdir(parents=True)
    (track / "track.json").write_text("{}")
    (track / "ops" / "a.json").write_text("{}")
    found = [
        str(path.relative_to(tmp_path))
        for given in fingerprints._given(
            {"load": {"track": {"path": str(track)}}, "ready": {"path": "/"}, "folder": "/"}
        )
        for path in fingerprints._files(given)
    ]
    assert found == ["track/ops/a.json", "track/track.json"]


def test_a_track_in_one_file_is_only_what_a_run_can_read_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("track.json", "docs.json.gz", "ops/a.json", ".other/token.json", ".state.json", "theirs/a.json")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    # Root can read all files.
    monkeypatch.setattr(os, "access", lambda path, _mode: path.parent.name != "theirs")
    for path, expected in ((tmp_path / "track.json", names[:3]), (tmp_path, names[:5])):
        paths = fingerprints._given({"load": {"track": {"path": str(path)}}})
        files = {str(file.relative_to(tmp_path)) for path in paths for file in fingerprints._files(path)}
        assert files == set(expected)


def test_a_file_that_is_new_in_a_folder_is_noticed(tmp_path: Path) -> None:
    track = tmp_path / "track"
    track.mkdir()
    (track / "track.json").write_text("{}")
    planned(tmp_path)
    made = order.order(spec.load(str(tmp_path / "x.toml"), fixed={"track": {"path": str(track)}}))
    first = fingerprints.of(made)
    fingerprints.check(first, made)
    (track / "more.json").write_text("{}")
    with pytest.raises(SpecError, match=r"more\.json: it was not there when the first runs .* Take it away"):
        fingerprints.check(first, made)


def test_a_large_file_is_read_in_pieces_at_even_distances(tmp_path: Path) -> None:
    made = planned(tmp_path)
    docs, size_bytes = tmp_path / "docs.ndjson", 1 << 33
    docs.touch()
    os.truncate(docs, size_bytes)
    whole = fingerprints.of(made)[str(docs)]
    assert whole.startswith(f"{size_bytes} bytes, ")
    with docs.open("r+b") as file:
        file.seek(size_bytes - 1)
        file.write(b"x")
    assert fingerprints.of(made)[str(docs)] != whole


@pytest.mark.parametrize(
    ("name", "text"), [("docs.ndjson", LINE * 2), ("net.toml", 'description = "x"\nmedium = "veth"\nmtu = 9000\n')]
)
def test_no_run_is_resumed_with_other_documents_or_another_profile(tmp_path: Path, name: str, text: str) -> None:
    made = planned(tmp_path)
    results = layout.create(tmp_path, made, {**facts(), "files": fingerprints.of(made)})
    kept = json.loads((results.path / "facts.json").read_text())["files"]
    assert str(tmp_path / name) in kept
    (tmp_path / name).write_text(text)
    answer = CliRunner().invoke(app, ["run", "--resume", str(results.path)], standalone_mode=False)
    assert isinstance(answer.exception, SpecError)
    assert f"{name}: it has changed since the first runs of this folder" in str(answer.exception)
    shutil.rmtree(results.path)


def test_documents_without_a_folder_in_their_name_have_a_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(tmp_path)
    monkeypatch.chdir(tmp_path)
    made = order.order(spec.load("x.toml", fixed={"documents": "docs.ndjson"}))
    assert str(tmp_path / "docs.ndjson") in fingerprints.of(made)


def test_a_run_is_resumed_from_another_folder_with_the_files_that_it_named_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    shutil.copy(data.files("workloads")["nyc_taxis"], "mine.toml")
    shutil.copy(data.files("netem")["ethernet"], "net.toml")
    Path("rates.csv").write_text("0,100mbit\n1,50mbit\n")
    Path("gaps.txt").write_text("0.1\n0.2\n")
    Path("x.toml").write_text(
        '[target]\nname = "sink"\n[load]\nworkload = "mine.toml"\narrivals = "recorded gaps.txt"\n'
        '[[fault]]\nkind = "profile"\nprofile = "net.toml"\nat = "1s"\nfor = "1s"\n'
        '[[fault]]\nkind = "trace"\ntrace = "rates.csv"\nat = "2s"\nfor = "1s"\n'
    )
    made = order.order(spec.load("x.toml"))
    first = fingerprints.of(made)
    names = ["gaps.txt", "mine.toml", "net.toml", "rates.csv"]
    assert sorted(first) == [str(tmp_path / name) for name in names]
    assert summary.sent(made.runs[0].cell) == "mine.toml"
    monkeypatch.chdir("elsewhere")
    fingerprints.check(first, made)
