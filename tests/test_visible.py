"""Text from other programs is escaped: it cannot move the cursor, hide characters or be markup."""

from __future__ import annotations

import io
import os
import re
import unicodedata
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import example_runs
import example_summaries as made
import pytest
from rich.console import Console

from ingest_bench.cli import app, screen
from ingest_bench.cli.options import OutputOptions
from ingest_bench.inputs import escaping
from ingest_bench.inputs.escaping import escape_line, escape_text
from ingest_bench.load.figures import EDGES_NS, LoadFigures, RequestFigures
from ingest_bench.load.supervisor import Progress
from ingest_bench.report.reports import REPORTS

# Terminal title, cleared screen (also by a C1 character), reversed line, bell, link, and markup.
NASTY = "\x1b]0;title\x07\x1b[2J\x9b31m\u202etxt.exe\u2066\x7f\r\x00\x1b]8;;http://x\x1b\\[bold]:smile:[/bold] $x^{$"
ESCAPED = r"\x1b]0;title\x07\x1b[2J\x9b31m\u202etxt.exe\u2066\x7f\r\x00\x1b]8;;http://x\x1b\[bold]:smile:[/bold] $x^{$"
TOML = "".join(f"\\u{ord(letter):04x}" for letter in NASTY)

Typed = Callable[..., tuple[int, str]]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """Run a command; return its exit code and its output, which must have no invisible characters."""

    def type_in(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = app.run(list(words))
        output = capsys.readouterr()
        assert invisible(output.out + output.err) == set()
        return code, output.out + output.err

    return type_in


def invisible(text: str) -> set[str]:
    return {letter for letter in text if letter != "\n" and unicodedata.category(letter) in ("Cc", "Cf", "Cs")}


def test_invisible_characters_are_escaped() -> None:
    assert escape_text(NASTY) == ESCAPED
    assert escape_line("a\nb\tc") == r"a\nb\tc"
    assert escape_text("a\r\nb\tc") == "a\nb\tc"
    assert escape_text("\udc80\u2028\u200f") == r"\udc80\u2028\u200f"
    # Invalid in XML, thus in the SVG of a picture.
    assert escape_text("\ufffe\uffff") == r"\ufffe\uffff"
    assert escape_text("Grüße, 東京, 12 µs …") == "Grüße, 東京, 12 µs …"
    # All blocks with control, format and surrogate characters.
    everything = "".join(map(chr, (*range(0x20000), *range(0xE0000, 0xE1000))))
    assert invisible(escape_text(everything)) == {"\t"}
    assert invisible(escape_line(everything)) == set()


def test_everything_that_the_screen_prints_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    screen.print_text(NASTY)
    screen.print_heading(NASTY)
    screen.print_to_stderr(NASTY)
    screen.print_error("error", NASTY)
    screen.print_capability(True, NASTY, NASTY)
    screen.print_names(NASTY, [(NASTY, NASTY)])
    screen.print_table(NASTY, [NASTY, NASTY], [[NASTY, NASTY]])
    screen.print_table(NASTY, [NASTY, NASTY], [[NASTY, NASTY * 9]])
    with (
        screen.RunProgress(1, None, OutputOptions(verbose=True)).show() as progress,
        screen.download_progress() as on_progress,
    ):
        progress.begin_run(1, NASTY, 1)
        progress.begin_phase(NASTY)
        progress.end_run(NASTY)
        on_progress(NASTY, 0, None)
    text = capsys.readouterr()
    assert invisible(text.out + text.err) == set()
    assert text.out.count(ESCAPED) == 25
    assert text.err.count(ESCAPED) == 2


def test_table_wider_than_the_terminal_is_printed_as_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    head = ["network", *(f"column {number} of many" for number in range(40))]
    screen.print_table("", head, [["ethernet", "", "7", *[""] * 38], ["jumbo", *[""] * 39, "8"]])
    lines = ["ethernet", "  column 1 of many: 7", "jumbo", "  column 39 of many: 8"]
    assert capsys.readouterr().out.splitlines() == lines


def replace_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> io.StringIO:
    """Make the screen a terminal with bars; return its output."""
    output = io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    terminal = Console(file=output, force_terminal=True, color_system="standard", width=width)
    monkeypatch.setattr(screen, "_STDOUT", terminal)
    return output


def test_terminal_gets_no_commands_from_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    output = replace_terminal(monkeypatch, 300)
    with screen.RunProgress(1, None, OutputOptions(verbose=True)).show() as progress:
        progress.begin_run(1, NASTY, 1)
        progress.begin_phase(NASTY)
        progress._live.refresh()
        progress.end_run(NASTY)
    with screen.download_progress() as on_progress:
        on_progress(NASTY, 1, 2)
    screen.print_table(NASTY, [NASTY], [[NASTY]])
    text = output.getvalue()
    assert "\x1b[1m" in text
    assert text.count(ESCAPED) >= 6
    assert not any(part in text for part in ("\x1b]", "\x1b[2J", "\x9b", "\u202e", "\u2066", "\x07"))


def test_long_cell_name_is_shortened_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    output = replace_terminal(monkeypatch, 80)
    with screen.RunProgress(4, 20, OutputOptions()).show() as progress:
        progress.begin_run(2, "network=ethernet-100m+receive_predictor=512KiB/1", 3)
        progress.update(Progress(phase="warm-up", documents=1_234_000, seconds_left=17.0))
    shown = re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", output.getvalue())
    assert "run 2/4: warm-up 17 s, about 60 s left  network=" in shown
    assert "1,234,000 documents" in shown
    assert max(map(len, re.split("[\r\n]", shown))) <= 80


def test_texts_of_experiments_and_profiles_are_escaped(typed: Typed, tmp_path: Path) -> None:
    experiment, profile = tmp_path / "x.toml", tmp_path / "net.toml"
    experiment.write_text(f'description = "{TOML}"\n[factors]\n"target.setting.a" = ["{TOML}", "2"]\n')
    profile.write_text(f'name = "{TOML}"\ndescription = "{TOML}"\n')
    for words in (("plan", str(experiment)), ("net", "exec", str(profile), "--dry-run", "--", "echo", NASTY)):
        typed(*words)
    for table in (f'"{TOML}" = 1\n', f'[target]\ngc = "{TOML}"\n', f'[network]\nprofile = "{TOML}"\n'):
        experiment.write_text(table)
        code, text = typed("plan", str(experiment))
        assert code == 2
        assert r"\x1b" in text or r"\u001b" in text
    code, text = typed("plan", f"{tmp_path}/\x1b[31m{os.fsdecode(bytes([0xFF]))}.toml")
    assert code == 2
    assert r"\x1b[31m\udcff.toml" in text


def test_report_escapes_the_reason_of_a_failed_run(typed: Typed, tmp_path: Path) -> None:
    levels = {NASTY: NASTY}
    results = example_runs.write_results(tmp_path, 'description = "x"\n', levels=levels, state="failed", reason=NASTY)
    with warnings.catch_warnings(action="error"):
        code, text = typed("report", str(results.path))
    assert code == 3
    assert ESCAPED in text
    for path in (results.path / "summary.csv", *(results.path / "report").rglob("*.*")):
        if path.suffix != ".png":
            assert invisible(path.read_text()) == set(), path
    assert "<b" not in (results.path / "report" / "index.html").read_text().partition("<body>")[2].replace("<body", "")


def test_stacks_that_are_equal_after_escaping_are_added() -> None:
    run = made.changed(made.summary({}), stacks={"a.Main.x\ny;byte[]": 3, "a.Main.x\\ny;byte[]": 4, "a b;</script>": 5})
    escaped = escaping.escape_summary(run)
    assert escaped.stacks == {"a.Main.x\\ny;byte[]": 7, "a b;</script>": 5}
    (lines,) = REPORTS["allocations"]([escaped]).values()
    assert lines.decode().splitlines() == ["a b;</script> 5", "a.Main.x\\ny;byte[] 7"]


def test_name_in_a_picture_is_not_a_formula() -> None:
    row = made.summary({"network": "ethernet", "x": "$x^{$東京"}, cell="$x^{$東京", run="$x^{$東京/1")
    with warnings.catch_warnings(action="error"):
        files = REPORTS["pictures"]([row])
    assert files["report/reads.png"].startswith(b"\x89PNG")


def test_only_screen_prints() -> None:
    module = Path(screen.__file__)
    for path in module.parents[1].rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert path == module or not re.search(r"^\s*(from|import) rich\b", text, re.MULTILINE), path
        assert not re.search(r"\.s?echo\(", text), path


@pytest.mark.parametrize("is_verbose", [False, True])
def test_without_a_terminal_each_run_or_phase_is_a_line_with_an_estimate(
    is_verbose: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(screen, "time", SimpleNamespace(monotonic=lambda: now_s))
    with screen.RunProgress(30, 20, OutputOptions(verbose=is_verbose)).show() as progress:
        for number, left in ((3, 20), (7, 2)):
            progress.begin_run(number, "one", left)
            progress.begin_phase("boot")
            now_s += 4
            for documents in (1000, 2000):
                progress.update(Progress(phase="warm-up", documents=documents, seconds_left=1.0))
            now_s += 60
            progress.end_run("outcome")
    phases = ["  0 s: boot", "  4 s: warm-up", "  outcome"]
    # The second estimate is from the duration of the first run.
    lines = ["run 3/30 one, about 7 min left", *phases, "run 7/30 one, about 2 min left", *phases]
    ended = ["run 3/30 one: outcome", "run 7/30 one: outcome"]
    assert capsys.readouterr().out.splitlines() == (lines if is_verbose else ended)


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        (60, ["what", "  x              one two three four five six seven eight", "  a-longer-name  nine ten"]),
        (34, ["what", "  x   one two three four five six", "      seven eight", "  a-longer-name", "      nine ten"]),
    ],
)
def test_description_wraps_next_to_its_name_or_below_it(
    columns: int, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(screen, "_STDOUT", Console(width=columns))
    screen.print_names("what", [("x", "one two three four five six seven eight"), ("a-longer-name", "nine ten")])
    assert capsys.readouterr().out.splitlines() == lines


def test_live_block_has_the_figures_of_the_present_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_terminal(monkeypatch, 80)
    now_s = 0.0
    monkeypatch.setattr(screen, "time", SimpleNamespace(monotonic=lambda: now_s))
    progress = screen.RunProgress(4, 20, OutputOptions())
    progress.begin_run(2, "ethernet", 3)
    # The warm-up was slow; it does not count.
    bulks = RequestFigures(outcomes={"ok": 10}, steps={60: 10})
    for phase, documents, more in (("warm-up", 100, {}), ("measure", 100, {}), ("measure", 80_100, {20: 98, 40: 2})):
        bulks += RequestFigures(outcomes={"ok": 97, "timeout": 3} if more else {}, steps=more)
        figures, heap_bytes = LoadFigures(bulks=bulks), documents << 14
        shown = Progress(phase=phase, documents=documents, seconds_left=7.0, figures=figures)
        progress.update(replace(shown, heap_bytes=heap_bytes, gc_pause_ns=documents * 10**4))
        now_s += 2
    now_s -= 2
    first, second = (str(line) for line in list(progress.__rich__().renderables)[:2])
    assert first == "run 2/4: measure 7 s, about 56 s left  ethernet"
    low, high = (f"{EDGES_NS[step - 1] / 1e6:,.1f} ms" for step in (20, 40))
    assert second == f"40,000 docs/s  p50 {low}  p99 {high}  3 errors  heap 1,252 MiB  GC 800 ms"
