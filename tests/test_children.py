"""What a child of ours finds where it begins, and what it has of our environment."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from planted import user_site

import ingest_bench
from ingest_bench import system
from ingest_bench.cli import app
from ingest_bench.errors import RunFailed
from ingest_bench.ledger import sessions


def test_a_child_begins_in_the_root_folder_with_our_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ".")
    assert system.run(("sh", "-c", "pwd; echo $PATH")) == f"/\n{system.PATH}\n"


def test_a_child_begins_also_where_the_current_folder_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert system.run(("pwd",)) == "/\n"


def test_a_python_child_imports_nothing_from_here_whatever_pythonpath_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "__init__.py").write_text('raise SystemExit("planted")\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(("", ".", *sys.path)))
    assert system.run(system.python("json.tool", "--compact"), stdin="[1, 2]") == "[1,2]\n"
    # What is named by an absolute path is found.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "planted" in system.run(system.python("json.tool"), stdin="[1, 2]", check=False)
    asks = tmp_path / "asks.py"
    asks.write_text("import json; print(json.dumps(1))\n")
    assert system.run(system.script(asks)) == "1\n"


def test_pip_is_the_installed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip.py").write_text('raise SystemExit("planted")\n')
    monkeypatch.chdir(tmp_path)
    assert system.run(system.python("pip", "--version")).startswith("pip ")


def test_a_command_without_input_does_not_ask_on_our_terminal() -> None:
    mine, theirs = os.pipe()
    before = os.dup(0)
    os.dup2(mine, 0)
    try:
        assert system.run(("cat",), timeout_s=20) == ""
    finally:
        os.dup2(before, 0)
        for descriptor in (before, mine, theirs):
            os.close(descriptor)


def test_options_for_every_jvm_are_not_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
        monkeypatch.setenv(name, "-javaagent:agent.jar")
    assert "agent.jar" not in system.run(("env",))


def test_options_for_every_python_are_not_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setenv("PYTHONINSPECT", "1")
    said = system.run(system.python("ingest_bench.probes.proc"), check=False)
    # It is imported before it is run, of which Python warns.
    assert "RuntimeWarning" in said
    assert "list index out of range" in said
    assert ">>>" not in said


def shell(program: str, log: Path | None = None) -> system.Child:
    return system.Child(("sh", "-c", program), name="the shell", log=log)


def test_a_child_answers_line_by_line_and_says_the_rest_when_its_input_ends() -> None:
    with shell("printf 'a\\nb\\n'; cat") as child:
        assert [child.line(), child.line(), child.ask("c" * 100_000)] == ["a", "b", "c" * 100_000]
        child.tell("d")
        child.tell("e")
        assert child.line() == "d"
        assert child.rest(20) == "e\n"
        assert not child.runs()


@pytest.mark.parametrize("in_a_log", [True, False])
def test_a_child_that_died_is_told_with_its_last_words(tmp_path: Path, in_a_log: bool) -> None:
    log = tmp_path / "log" if in_a_log else None
    with shell("echo half | tr -d '\\n'; echo broken >&2; exit 3", log) as child:
        with pytest.raises(RunFailed, match=r"^the shell: it ended, it said: broken$"):
            child.ask("anybody?")
        child.tell("nobody hears this")
    assert log is None or log.read_text() == "broken\n"


def test_a_child_may_say_more_of_its_errors_than_a_pipe_holds() -> None:
    with shell("head -c 300000 /dev/zero | tr '\\0' x >&2; echo ready") as child:
        assert child.line() == "ready"
        assert child.said() == "x" * 2000


def test_half_a_line_is_no_answer_and_a_late_child_is_killed() -> None:
    with shell("printf half; exec sleep 60") as child:
        with pytest.raises(RunFailed, match=r"^the shell: no answer after 0\.05 s, it said: nothing$"):
            child.line(0.05)
        assert child.rest(20) == ""


def test_a_child_that_does_not_listen_stops_nobody() -> None:
    with shell("exec sleep 60") as child, pytest.raises(RunFailed, match=r"it did not listen for 0\.05 s"):
        child.ask("x" * 200_000, 0.05)
    with shell("exec sleep 60") as child, pytest.raises(RunFailed, match=r"no answer after 0\.05 s"):
        child.ask("x", 0.05)
    with shell("exec >&-; exec sleep 60") as child, pytest.raises(RunFailed, match=r"no end after 0\.05 s"):
        child.rest(0.05)


def test_a_child_is_heard_where_more_than_1024_files_are_open() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[1], 2000), before[1]))
    held: list[int] = []
    try:
        held += [os.dup(2) for _ in range(1100)]
        with shell("exec cat") as child:
            assert child.stdout.fileno() > 1024
            assert child.ask("here") == "here"
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_nothing_is_left_of_a_child_that_does_not_want_to_end() -> None:
    with shell("trap '' TERM; echo here; while :; do read line; done") as child:
        assert child.line() == "here"
    assert not Path(f"/proc/{child.pid}").exists()
    child.close()


@pytest.mark.processes
@pytest.mark.parametrize("name_and_text", ["MPLBACKEND=nonsense", "PYTHONWARNINGS=error"])
def test_what_the_environment_tells_libraries_does_not_end_the_command(name_and_text: str) -> None:
    name, _, text = name_and_text.partition("=")
    argv = (sys.executable, "-c", "from ingest_bench.cli import main; main()", "list")
    env = {**os.environ, name: text}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_state_folder_is_the_same_for_a_watchdog_which_begins_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INGEST_BENCH_STATE", "state")
    assert sessions.state_folder() == tmp_path / "state"


def test_a_current_folder_that_is_gone_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert app.run(["plan", "--track", "x"]) == 2
    assert "the current folder is gone" in capsys.readouterr().err


# A library that a child finds only where the command found it.
ASK = """
from ingest_bench import system
print(system.run(system.python("locust", "--version")), end="")
"""


def installed(base: Path, **environment: str) -> str:
    """What a command says whose Python is in no virtual environment, with that folder as its user's own."""
    # Where the tests of a user's own Python run, it is this one.
    python = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    env |= {"PYTHONUSERBASE": str(base), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    argv = [str(python), "-P", "-c", ASK]
    done = subprocess.run(argv, env=env, cwd=base, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


def places() -> list[str]:
    """Where we are, and what we import."""
    return [str(Path(ingest_bench.__file__).parent.parent), *(path for path in sys.path if path.endswith("-packages"))]


@pytest.mark.parametrize("how", ["a copy", "a way to a checkout"])
def test_installed_for_one_user_its_children_find_what_it_imports(tmp_path: Path, how: str) -> None:
    """As `pip install --user` and `pip install --user --editable` leave it."""
    folder = user_site(tmp_path)
    (folder / "ingest_bench-1.dist-info").mkdir(parents=True)
    checkout, *libraries = places()
    if how == "a copy":
        shutil.copytree(Path(checkout) / "ingest_bench", folder / "ingest_bench")
    (folder / "ways.pth").write_text("\n".join(libraries if how == "a copy" else [checkout, *libraries]))
    assert installed(tmp_path).startswith("locust ")


def test_installed_elsewhere_its_children_take_nothing_from_a_users_own_site(tmp_path: Path) -> None:
    folder = user_site(tmp_path)
    folder.mkdir(parents=True)
    (folder / "usercustomize.py").write_text(f'open("{tmp_path}/ran", "a").write("x")\n')
    (folder / "own.pth").write_text(f'import sys; open("{tmp_path}/ran", "a").write("y")\n')
    assert installed(tmp_path, PYTHONPATH=os.pathsep.join(places())).startswith("locust ")
    # The command itself is started by whoever types it, and reads them once.
    assert sorted((tmp_path / "ran").read_text()) == ["x", "y"]
