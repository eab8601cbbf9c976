"""Each command that new users mistype ends in one sentence with the right remedy, before anything starts."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from ingest_bench import targets
from ingest_bench.cli import app
from ingest_bench.jvm import java
from ingest_bench.lab import campaign

FILES = {
    "docs.ndjson": '{"a": 1}\n',
    "bad.ndjson": '{"a": 1}\nnot json\n',
    "empty.ndjson": "",
    "empty.toml": "",
    "badkey.toml": '[target]\nheep = "1g"\n',
    "badval.toml": '[target]\nheap = "1x"\n',
    "syn.toml": "[target\nname = 1\n",
    "gate.toml": '[[threshold]]\ncolumn = "docs_per_s"\nat_least = 1\n',
    "fine.toml": '[[threshold]]\ncolumn = "gc_pauses"\nat_most = 1\n',
    "fault.toml": '[[fault]]\nkind = "kil"\nat = "1s"\n',
    "top.toml": 'heap = "1g"\n',
    "quoted.toml": '"target.heap" = "1g"\n',
    "table.toml": '[load]\nheap = "1g"\n',
    "probe.toml": 'probes = ["gcc"]\n',
    "shards.json": '{"number_of_shards": 0}',
    "factor.toml": '[factors]\ndelay = ["1ms", "2ms"]\n',
}


class Started(BaseException):
    """The first run would begin."""


def read_slips() -> Iterator[tuple[str, str]]:
    for line in (Path(__file__).parent / "data" / "slips.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            command, _, expected = line.partition(" => ")
            yield command.removeprefix("ingest-bench").strip(), expected


SLIPS = dict(read_slips())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a folder with the files of the slips; nothing is fetched, and the first run raises Started."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    for name in ("results", "emptyres"):
        (tmp_path / name).mkdir()
    shutil.copytree(Path(__file__).parent / "data" / "track", tmp_path / "track")

    def start(*_: object) -> NoReturn:
        raise Started

    def fetch(requirements: SimpleNamespace, home: Path | None, _show: object) -> SimpleNamespace:
        if home is not None:
            java.find_java(requirements.java_version, home)
        return SimpleNamespace(home=tmp_path)

    # Slips, not the capabilities of this machine.
    for name in (
        "network.act.link.require_links",
        "host.node_resources.require_resources",
        "host.settings.require_settings",
        "probes.require_probes",
        "probes.recording.reader_command",
    ):
        monkeypatch.setattr(f"ingest_bench.{name}", lambda *_: None)
    monkeypatch.setattr(targets, "fetch", fetch)
    monkeypatch.setattr(campaign, "run_missing", start)
    return tmp_path


@pytest.mark.parametrize("command", SLIPS)
def test_slip_ends_in_one_sentence_with_the_remedy(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = SLIPS[command]
    if expected == "starts":
        with pytest.raises(Started):
            app.run(shlex.split(command))
        return
    codes, _, text = expected.partition(" ") if expected[0].isdigit() else ("2", "", expected)
    code = app.run(shlex.split(command))
    output, message = capsys.readouterr()
    assert text in output + message
    assert str(code) in codes.split("|")
    if code == 0:
        return
    assert message.startswith("error: ")
    assert message.count("\n") == 1, "one line"
    assert not list((folder / "results").iterdir()), "nothing was started"
