"""What somebody else wrote is shown as text: it moves no cursor, hides nothing and is no markup."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import threading
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import made_runs
import made_summaries as made
import pytest
from rich.console import Console

from ingest_bench.cli import app, screen
from ingest_bench.experiment import order, spec
from ingest_bench.inputs import data
from ingest_bench.inputs import visible as visible_texts
from ingest_bench.inputs.visible import one_line, visible
from ingest_bench.load.supervisor import Progress
from ingest_bench.report import REPORTS
from ingest_bench.report.tables import text_tables
from ingest_bench.results import layout

# A title of the terminal, a cleared screen (also by one C1 character), a turned line, a bell, a link, and markup.
NASTY = "\x1b]0;title\x07\x1b[2J\x9b31m\u202etxt.exe\u2066\x7f\r\x00\x1b]8;;http://x\x1b\\[bold]:smile:[/bold] $x^{$"
SHOWN = r"\x1b]0;title\x07\x1b[2J\x9b31m\u202etxt.exe\u2066\x7f\r\x00\x1b]8;;http://x\x1b\[bold]:smile:[/bold] $x^{$"
TOML = "".join(f"\\u{ord(letter):04x}" for letter in NASTY)

Typed = Callable[..., tuple[int, str]]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """Exit code and output of a command, in which nothing is but text."""

    def type_in(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = app.run(list(words))
        said = capsys.readouterr()
        assert unseen(said.out + said.err) == set()
        return code, said.out + said.err

    return type_in


def unseen(text: str) -> set[str]:
    return {letter for letter in text if letter != "\n" and unicodedata.category(letter) in ("Cc", "Cf", "Cs")}


def test_each_character_that_nobody_sees_is_written_out() -> None:
    assert visible(NASTY) == SHOWN
    assert one_line("a\nb\tc") == r"a\nb\tc"
    assert visible("a\r\nb\tc") == "a\nb\tc"
    assert visible("\udc80\u2028\u200f") == r"\udc80\u2028\u200f"
    # They are in no XML, so in no SVG of a picture either.
    assert visible("\ufffe\uffff") == r"\ufffe\uffff"
    assert visible("Grüße, 東京, 12 µs …") == "Grüße, 東京, 12 µs …"
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    assert unseen(visible(everything)) == {"\t"}
    assert unseen(one_line(everything)) == set()


def test_nothing_that_the_screen_prints_is_more_than_text(capsys: pytest.CaptureFixture[str]) -> None:
    screen.say(NASTY)
    screen.heading(NASTY)
    screen.note(NASTY)
    screen.complain("error", NASTY)
    screen.mark(True, NASTY, NASTY)
    screen.names(NASTY, [(NASTY, NASTY)])
    screen.table(NASTY, [NASTY, NASTY], [[NASTY, NASTY]])
    screen.table(NASTY, [NASTY, NASTY], [[NASTY, NASTY * 9]])
    with screen.run_progress(1) as progress, screen.downloads() as tell:
        progress.begin(1, NASTY, 1)
        progress.stage(NASTY)
        progress.end(NASTY)
        tell(NASTY, 0, None)
    said = capsys.readouterr()
    assert unseen(said.out + said.err) == set()
    assert said.out.count(SHOWN) == 25
    assert said.err.count(SHOWN) == 2


def test_a_table_too_wide_is_a_line_for_each_value_and_none_for_what_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    head = ["network", *(f"column {number} of many" for number in range(40))]
    screen.table("", head, [["ethernet", "", "7", *[""] * 38], ["jumbo", *[""] * 39, "8"]])
    lines = ["ethernet", "  column 1 of many: 7", "jumbo", "  column 39 of many: 8"]
    assert capsys.readouterr().out.splitlines() == lines


def test_on_a_terminal_its_commands_are_ours_alone() -> None:
    program = (
        "import sys, time; from ingest_bench.cli import screen\n"
        "with screen.run_progress(1) as progress: [progress.begin(1, sys.argv[1], 1), progress.stage(sys.argv[1]),"
        " progress._progress.refresh(), progress.end(sys.argv[1])]\n"
        "with screen.downloads() as tell: tell(sys.argv[1], 1, 2)\n"
        "screen.table(sys.argv[1], [sys.argv[1]], [[sys.argv[1]]])\n"
    )
    nasty, shown = NASTY.replace("\0", ""), SHOWN.replace("\\x00", "")
    said = subprocess.run(
        [sys.executable, "-c", program, nasty],
        env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": "300", "TERM": "xterm"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "\x1b[1m" in said
    assert said.count(shown) >= 6
    assert not any(part in said for part in ("\x1b]", "\x1b[2J", "\x9b", "\u202e", "\u2066", "\x07"))


def test_long_cell_name_is_shortened_on_a_narrow_terminal() -> None:
    program = (
        "from ingest_bench.cli import screen\n"
        "from ingest_bench.load.supervisor import Progress\n"
        "screen._OUT.width = 80\n"
        "with screen.run_progress(4, 20) as progress:\n"
        "    progress.begin(2, 'network=ethernet-100m+receive_predictor=512KiB/1', 3)\n"
        "    progress.load(Progress(phase='warm-up', documents=1_234_000, seconds_left=17.0))\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "FORCE_COLOR": "1", "TERM": "xterm"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    shown = re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", said)
    assert "0:00:00 run 2/4: warm-up, 1,234,000 documents, 17 s left (" in shown
    assert max(map(len, re.split("[\r\n]", shown))) <= 80


@contextmanager
def server(body: str, status: int = 200) -> Iterator[str]:
    """The URL of a server that gives this answer to every question."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = body.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            """Tests are quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()
            thread.join()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("body", "status", "shown"),
    [
        (f"<html>{NASTY}</html>", 200, r"\x1b["),
        (NASTY, 500, r"\x1b["),
        # Escaped by the server itself, whose words are shown as they came.
        ('{"version": {"number": "9\\u001b[31m.0\\u202e"}}', 200, r"\u001b["),
    ],
)
def test_a_servers_answer_is_shown_as_text(typed: Typed, tmp_path: Path, body: str, status: int, shown: str) -> None:
    with server(body, status) as url:
        code, said = typed("run", "--url", url, "--out", str(tmp_path / "out"))
    assert code == 2, said
    assert shown in said


def test_what_an_experiment_or_a_profile_says_is_shown_as_text(typed: Typed, tmp_path: Path) -> None:
    experiment, profile = tmp_path / "x.toml", tmp_path / "net.toml"
    experiment.write_text(f'description = "{TOML}"\n[factors]\n"target.setting.a" = ["{TOML}", "2"]\n')
    profile.write_text(f'name = "{TOML}"\ndescription = "{TOML}"\n')
    for words in (("plan", str(experiment)), ("net", "exec", str(profile), "--dry-run", "--", "echo", NASTY)):
        typed(*words)
    for text in (f'"{TOML}" = 1\n', f'[target]\ngc = "{TOML}"\n', f'[network]\nprofile = "{TOML}"\n'):
        experiment.write_text(text)
        code, said = typed("plan", str(experiment))
        assert code == 2
        assert r"\x1b" in said or r"\u001b" in said
    code, said = typed("plan", f"{tmp_path}/\x1b[31m{os.fsdecode(bytes([0xFF]))}.toml")
    assert code == 2
    assert r"\x1b[31m\udcff.toml" in said


def test_list_shows_descriptions_as_text(typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("netem", "workloads/experiments"):
        shutil.copytree(data.folder(name), tmp_path / "data" / name)
    (tmp_path / "data" / "netem" / "\x1b[31m.toml").write_text(f'description = "{TOML}"\n')
    monkeypatch.setattr(data, "_PACKAGE", tmp_path)
    code, said = typed("list")
    assert code == 0
    assert r"  \x1b[31m " in said


def test_a_run_that_failed_with_a_servers_words_is_reported_as_text(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("")
    results = layout.create(tmp_path / "results", order.order(spec.load(str(tmp_path / "x.toml"))), {})
    (run,) = results.plan.runs
    folder = results.run(run)
    folder.create()
    levels = {NASTY: NASTY}
    folder.write(made_runs.record(run=run.id, cell=run.cell.name, levels=levels, state="failed", reason=NASTY))
    with warnings.catch_warnings(action="error"):
        code, said = typed("report", str(results.path))
    assert code == 3
    assert SHOWN in said
    for path in (results.path / "summary.csv", *(results.path / "report").rglob("*.*")):
        if path.suffix != ".png":
            assert unseen(path.read_text()) == set(), path
    assert "<b" not in (results.path / "report" / "index.html").read_text().partition("<body>")[2].replace("<body", "")


def test_gate_shows_the_names_of_runs_as_text(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "gate.toml").write_text('[[threshold]]\ncolumn = "gc_pauses"\nat_most = 1\ncells = "*"\n')
    name = NASTY.replace("\r", "")
    row = made.summary({"network": "ethernet"}, run=f"{name}/1", cell=name, state="failed", reason=name)
    (tmp_path / "runs.csv").write_text(text_tables.summary_csv([row]), newline="")
    code, said = typed("gate", str(tmp_path / "runs.csv"), "--thresholds", str(tmp_path / "gate.toml"))
    assert code == 3, said
    assert SHOWN.replace(r"\r", "") in said


def test_no_byte_of_a_stack_is_lost_where_two_look_alike_on_one_line() -> None:
    run = made.changed(made.summary({}), stacks={"a.Main.x\ny;byte[]": 3, "a.Main.x\\ny;byte[]": 4, "a b;</script>": 5})
    found = visible_texts.summary(run)
    assert found.stacks == {"a.Main.x\\ny;byte[]": 7, "a b;</script>": 5}
    (lines,) = REPORTS["allocations"]([found]).values()
    assert lines.decode().splitlines() == ["a b;</script> 5", "a.Main.x\\ny;byte[] 7"]


def test_a_picture_takes_every_name_for_text() -> None:
    row = made.summary({"network": "ethernet", "x": "$x^{$"}, cell="$x^{$", run="$x^{$/1")
    with warnings.catch_warnings(action="error"):
        files = REPORTS["pictures"]([row])
    assert files["report/reads.png"].startswith(b"\x89PNG")


def test_only_the_screen_prints() -> None:
    own = Path(screen.__file__)
    for path in own.parents[1].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom) and path != own:
                imported = [getattr(node, "module", None) or "", *(one.name for one in node.names)]
                assert not any(name.partition(".")[0] == "rich" for name in imported), path
            if isinstance(node, ast.Call):
                assert getattr(node.func, "id", "") != "print", path
                assert getattr(node.func, "attr", "") not in ("echo", "secho"), path


def test_away_from_a_terminal_each_stage_is_a_line_and_each_run_says_how_long_the_rest_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(screen, "time", SimpleNamespace(monotonic=lambda: now_s))
    with screen.run_progress(30, 20) as progress:
        for number, left in ((3, 20), (7, 2)):
            progress.begin(number, "one", left)
            progress.stage("boot")
            now_s += 4
            for documents in (1000, 2000):
                progress.load(Progress(phase="warm-up", documents=documents, seconds_left=1.0))
            now_s += 60
            progress.end("told")
    one = ["  0 s: boot", "  4 s: warm-up", "  told"]
    # The second one knows how long the first one took.
    lines = ["run 3/30 one (all: about 7 min)", *one, "run 7/30 one (all: about 2 min)", *one]
    assert capsys.readouterr().out.splitlines() == lines


def test_where_nobody_knows_how_long_it_takes_nothing_is_said_of_that(capsys: pytest.CaptureFixture[str]) -> None:
    with screen.run_progress(2) as progress:
        progress.begin(1, "one", 2)
        progress.end("told")
        progress.begin(2, "one", 1)
    assert capsys.readouterr().out.splitlines() == ["run 1/2 one", "  told", "run 2/2 one"]


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        (60, ["what", "  x              one two three four five six seven eight", "  a-longer-name  nine ten"]),
        (34, ["what", "  x   one two three four five six", "      seven eight", "  a-longer-name", "      nine ten"]),
    ],
)
def test_what_is_beside_a_name_stands_below_it_where_there_is_no_room(
    columns: int, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(screen, "_OUT", Console(width=columns))
    screen.names("what", [("x", "one two three four five six seven eight"), ("a-longer-name", "nine ten")])
    assert capsys.readouterr().out.splitlines() == lines
