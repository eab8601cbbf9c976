"""Checksums of the files of a plan, and resuming with changed files."""

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
from ingest_bench.experiment import catalog, spec
from ingest_bench.inputs import files
from ingest_bench.model.experiment import Plan
from ingest_bench.results import layout
from ingest_bench.results.facts import collect_facts

LINE = '{"a": 1}\n'


def planned(folder: Path) -> Plan:
    (folder / "docs.ndjson").write_text(LINE * 100)
    (folder / "net.toml").write_text('description = "x"\nmedium = "veth"\n')
    (folder / "x.toml").write_text(
        '[target]\nname = "sink"\n[load]\nworkload = "nyc_taxis"\n'
        f'[network]\nprofile = "{folder}/net.toml"\n'
        f'[[fault]]\nkind = "profile"\nprofile = "{folder}/net.toml"\nat = "1s"\nfor = "1s"\n'
    )
    return spec.build_plan(
        spec.load_experiment(str(folder / "x.toml"), fixed={"documents": str(folder / "docs.ndjson")})
    )


def test_fingerprint_changes_with_any_part_of_a_file(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    first = catalog.compute_fingerprints(plan)
    assert sorted(Path(path).name for path in first) == ["docs.ndjson", "net.toml"]
    catalog.check_fingerprints(first, plan)
    docs = tmp_path / "docs.ndjson"
    for text in (LINE * 99 + '{"a": 2}\n', '{"b": 1}\n' + LINE * 99, LINE * 101):
        docs.write_text(text)
        with pytest.raises(SpecError, match=r"docs\.ndjson: has changed .* Restore it \(900 bytes, "):
            catalog.check_fingerprints(first, plan)
    docs.unlink()
    with pytest.raises(SpecError, match=r"docs\.ndjson: is missing"):
        catalog.check_fingerprints(first, plan)


def test_files_of_a_track_folder_are_included_but_not_server_paths(tmp_path: Path) -> None:
    track = tmp_path / "track"
    (track / "ops").mkdir(parents=True)
    (track / "track.json").write_text("{}")
    (track / "ops" / "a.json").write_text("{}")
    names = [
        str(path.relative_to(tmp_path))
        for root in catalog._iter_paths(
            {"load": {"track": {"path": str(track)}}, "ready": {"path": "/"}, "folder": "/"}
        )
        for path in catalog._iter_files(root)
    ]
    assert names == ["track/ops/a.json", "track/track.json"]


def test_single_file_track_includes_only_readable_files_next_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("track.json", "docs.json.gz", "ops/a.json", ".other/token.json", ".state.json", "theirs/a.json")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    # Root can read all files.
    monkeypatch.setattr(os, "access", lambda path, _mode: path.parent.name != "theirs")
    for path, expected in ((tmp_path / "track.json", names[:3]), (tmp_path, names[:5])):
        paths = catalog._iter_paths({"load": {"track": {"path": str(path)}}})
        files = {str(file.relative_to(tmp_path)) for path in paths for file in catalog._iter_files(path)}
        assert files == set(expected)


def test_new_file_in_a_track_folder_is_noticed(tmp_path: Path) -> None:
    track = tmp_path / "track"
    track.mkdir()
    (track / "track.json").write_text("{}")
    planned(tmp_path)
    plan = spec.build_plan(spec.load_experiment(str(tmp_path / "x.toml"), fixed={"track": {"path": str(track)}}))
    first = catalog.compute_fingerprints(plan)
    catalog.check_fingerprints(first, plan)
    (track / "more.json").write_text("{}")
    with pytest.raises(SpecError, match=r"more\.json: did not exist during the first runs .* Remove it"):
        catalog.check_fingerprints(first, plan)


def test_large_file_is_sampled_at_even_distances(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    docs, size_bytes = tmp_path / "docs.ndjson", 1 << 33
    docs.touch()
    os.truncate(docs, size_bytes)
    complete = catalog.compute_fingerprints(plan)[str(docs)]
    assert complete.startswith(f"{size_bytes} bytes, ")
    with docs.open("r+b") as file:
        file.seek(size_bytes - 1)
        file.write(b"x")
    assert catalog.compute_fingerprints(plan)[str(docs)] != complete


@pytest.mark.parametrize(
    ("name", "text"), [("docs.ndjson", LINE * 2), ("net.toml", 'description = "x"\nmedium = "veth"\nmtu = 9000\n')]
)
def test_run_is_not_resumed_with_changed_documents_or_profile(tmp_path: Path, name: str, text: str) -> None:
    plan = planned(tmp_path)
    results = layout.create_results(tmp_path, plan, {**collect_facts(), "files": catalog.compute_fingerprints(plan)})
    kept = json.loads((results.path / "facts.json").read_text())["files"]
    assert str(tmp_path / name) in kept
    (tmp_path / name).write_text(text)
    answer = CliRunner().invoke(app, ["run", "--resume", str(results.path)], standalone_mode=False)
    assert isinstance(answer.exception, SpecError)
    assert f"{name}: has changed since the first runs of this folder" in str(answer.exception)
    shutil.rmtree(results.path)


def test_relative_files_are_found_when_resuming_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    shutil.copy(files.data_files("workloads")["nyc_taxis"], "mine.toml")
    shutil.copy(files.data_files("netem")["ethernet"], "net.toml")
    Path("rates.csv").write_text("0,100mbit\n1,50mbit\n")
    Path("gaps.txt").write_text("0.1\n0.2\n")
    Path("x.toml").write_text(
        '[target]\nname = "sink"\n[load]\nworkload = "mine.toml"\narrivals = "recorded gaps.txt"\n'
        '[[fault]]\nkind = "profile"\nprofile = "net.toml"\nat = "1s"\nfor = "1s"\n'
        '[[fault]]\nkind = "trace"\ntrace = "rates.csv"\nat = "2s"\nfor = "1s"\n'
    )
    plan = spec.build_plan(spec.load_experiment("x.toml"))
    first = catalog.compute_fingerprints(plan)
    names = ["gaps.txt", "mine.toml", "net.toml", "rates.csv"]
    assert sorted(first) == [str(tmp_path / name) for name in names]
    assert summary.workload_name(plan.runs[0].cell) == "mine.toml"
    monkeypatch.chdir("elsewhere")
    catalog.check_fingerprints(first, plan)
