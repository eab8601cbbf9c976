"""Child processes: working directory, environment, and line-based communication."""

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


@pytest.fixture
def deleted_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a deleted folder the current one."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()


@pytest.mark.usefixtures("deleted_folder")
def test_child_starts_in_the_root_folder_with_our_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", ".")
    assert system.run(("sh", "-c", "pwd; echo $PATH")) == f"/\n{system.PATH}\n"


def test_python_child_imports_nothing_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "__init__.py").write_text('raise SystemExit("planted")\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(("", ".", *sys.path)))
    assert system.run(system.build_module_argv("json.tool", "--compact"), stdin="[1, 2]") == "[1,2]\n"
    # What is named by an absolute path is found.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "planted" in system.run(system.build_module_argv("json.tool"), stdin="[1, 2]", check=False)
    asks = tmp_path / "asks.py"
    asks.write_text("import json; print(json.dumps(1))\n")
    assert system.run(system.build_script_argv(asks)) == "1\n"


def test_command_without_input_does_not_read_our_stdin() -> None:
    mine, theirs = os.pipe()
    before = os.dup(0)
    os.dup2(mine, 0)
    try:
        assert system.run(("cat",), timeout_s=20) == ""
    finally:
        os.dup2(before, 0)
        for descriptor in (before, mine, theirs):
            os.close(descriptor)


def test_java_option_variables_are_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
        monkeypatch.setenv(name, "-javaagent:agent.jar")
    assert "agent.jar" not in system.run(("env",))


def test_python_variables_are_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setenv("PYTHONINSPECT", "1")
    output = system.run(system.build_module_argv("ingest_bench.probes.kernel_tap"), check=False)
    # It is imported before it is run, of which Python warns.
    assert "RuntimeWarning" in output
    assert "list index out of range" in output
    assert ">>>" not in output


def shell(program: str, log: Path | None = None) -> system.Child:
    return system.Child(("sh", "-c", program), name="the shell", log=log)


def test_child_answers_line_by_line_until_its_input_ends() -> None:
    with shell("printf 'a\\nb\\n'; cat") as child:
        assert [child.read_line(), child.read_line(), child.request("c" * 100_000)] == ["a", "b", "c" * 100_000]
        child.write_line("d")
        child.write_line("e")
        assert child.read_line() == "d"
        assert child.read_until_exit(20) == "e\n"
        assert not child.is_running()


@pytest.mark.parametrize("in_a_log", [True, False])
def test_child_that_died_is_reported_with_its_stderr(tmp_path: Path, in_a_log: bool) -> None:
    log = tmp_path / "log" if in_a_log else None
    with shell("echo half | tr -d '\\n'; echo broken >&2; exit 3", log) as child:
        with pytest.raises(RunFailed, match=r"^the shell: exited\. Its error output: broken$"):
            child.request("hello")
        child.write_line("ignored")
    assert log is None or log.read_text() == "broken\n"


def test_stderr_may_exceed_the_pipe_buffer() -> None:
    with shell("head -c 300000 /dev/zero | tr '\\0' x >&2; echo ready") as child:
        assert child.read_line() == "ready"
        assert child.read_stderr_tail() == "x" * 2000


def test_partial_line_times_out() -> None:
    with shell("printf half; exec sleep 60") as child:
        with pytest.raises(RunFailed, match=r"^the shell: no reply within 0\.05 s\. Its error output: \(empty\)$"):
            child.read_line(0.05)
        assert child.read_until_exit(20) == ""


def test_child_that_does_not_read_times_out() -> None:
    with shell("exec sleep 60") as child, pytest.raises(RunFailed, match=r"did not read its input for 0\.05 s"):
        child.request("x" * 200_000, 0.05)
    with shell("exec sleep 60") as child, pytest.raises(RunFailed, match=r"no reply within 0\.05 s"):
        child.request("x", 0.05)
    with shell("exec >&-; exec sleep 60") as child, pytest.raises(RunFailed, match=r"did not exit within 0\.05 s"):
        child.read_until_exit(0.05)


def test_child_is_read_with_more_than_1024_open_files() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[1], 2000), before[1]))
    held: list[int] = []
    try:
        held += [os.dup(2) for _ in range(1100)]
        with shell("exec cat") as child:
            assert child.stdout.fileno() > 1024
            assert child.request("here") == "here"
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_child_that_ignores_sigterm_is_killed() -> None:
    with shell("trap '' TERM; echo here; while :; do read line; done") as child:
        assert child.read_line() == "here"
    assert not Path(f"/proc/{child.pid}").exists()
    child.close()


@pytest.mark.processes
@pytest.mark.parametrize("name_and_text", ["MPLBACKEND=nonsense", "PYTHONWARNINGS=error"])
def test_library_settings_in_the_environment_do_not_break_the_command(name_and_text: str) -> None:
    name, _, text = name_and_text.partition("=")
    argv = (sys.executable, "-c", "from ingest_bench.cli import main; main()", "list")
    env = {**os.environ, name: text}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_relative_state_folder_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INGEST_BENCH_STATE", "state")
    assert sessions.ensure_state_folder() == tmp_path / "state"


@pytest.mark.usefixtures("deleted_folder")
def test_deleted_current_folder_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["plan", "--track", "x"]) == 2
    assert "the current folder was deleted" in capsys.readouterr().err


# Runs a library that a child finds only where the command found it.
ASK = """
from ingest_bench import system
print(system.run(system.build_module_argv("locust", "--version")), end="")
"""


def installed(base: Path, **environment: str) -> str:
    """Return the output of a command whose Python is in no virtual environment, with that user base."""
    python = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    env |= {"PYTHONUSERBASE": str(base), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    argv = [str(python), "-P", "-c", ASK]
    done = subprocess.run(argv, env=env, cwd=base, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


def places() -> list[str]:
    """Where we are, and what we import."""
    return [str(Path(ingest_bench.__file__).parent.parent), *(path for path in sys.path if path.endswith("-packages"))]


@pytest.mark.processes
@pytest.mark.parametrize("how", ["a copy", "a way to a checkout"])
def test_children_of_a_user_installation_find_its_imports(tmp_path: Path, how: str) -> None:
    """As `pip install --user` and `pip install --user --editable` leave it."""
    folder = user_site(tmp_path)
    (folder / "ingest_bench-1.dist-info").mkdir(parents=True)
    checkout, *libraries = places()
    if how == "a copy":
        shutil.copytree(Path(checkout) / "ingest_bench", folder / "ingest_bench")
    (folder / "ways.pth").write_text("\n".join(libraries if how == "a copy" else [checkout, *libraries]))
    assert installed(tmp_path).startswith("locust ")


@pytest.mark.processes
def test_children_ignore_the_user_site(tmp_path: Path) -> None:
    folder = user_site(tmp_path)
    folder.mkdir(parents=True)
    (folder / "usercustomize.py").write_text(f'open("{tmp_path}/ran", "a").write("x")\n')
    (folder / "own.pth").write_text(f'import sys; open("{tmp_path}/ran", "a").write("y")\n')
    assert installed(tmp_path, PYTHONPATH=os.pathsep.join(places())).startswith("locust ")
    # The command itself reads them once.
    assert sorted((tmp_path / "ran").read_text()) == ["x", "y"]
