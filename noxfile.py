"""The project's checks: `nox` runs those that take minutes, `nox -s NAME` one."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nox
from nox.command import CommandFailed

# What a change is tried with before it is sent. CI runs the long tests as well: `real`, `netem`, `ordinary`.
nox.options.sessions = ["plain", "real-brief", "netem-brief", "newcomer", "ordinary-brief"]
# CI keeps the environments where an ordinary user can read them, wherever its checkout is.
nox.options.envdir = os.environ.get("NOX_ENVDIR", ".nox")
# An environment is made in seconds where uv is there.
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.error_on_missing_interpreters = True
nox.needs_version = ">=2024.10.9"

CI = bool(os.environ.get("CI"))
REAL = "netns or bpf or device_mapper or jvm or opensearch or elasticsearch or processes or data_prepper"
# What a CI machine promises: there, a skip for want of it is a failure.
PROMISED = "bpf,netns,netem,jvm,opensearch,elasticsearch"
PROMISED_TO_ANYBODY = "netns,jvm,opensearch,elasticsearch"
# The uid and gid "nobody" of Debian: an ordinary user without a home.
NOBODY = "65534"
AS_NOBODY = ("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups")
# With what is optional for a user, and what runs this file.
TESTS = ("hypothesis", "nox", "pyarrow", "pytest", "pytest-xdist")
LINT = ("ruff", "mypy", "types-psutil")
HOW = ("-q", "--durations=20")
# The programs of the environment of the tests, once it is made.
MADE: list[Path] = []
# Servers and processes mostly wait for each other; tests/shared_out.py says which tests go together all the same.
BESIDE = ("-n", "3", "--dist", "loadfile")
# What measures rates takes a quarter of a processor, and mostly waits. Three at once would disturb each other.
IN_PAIRS = ("-n", "2", "--dist", "loadfile")
# What a session whose name ends with "-brief" leaves out.
BRIEF = " and not long"


def install(session: nox.Session, *tools: str) -> None:
    """The project as a user installs it, with the versions that were tried, in the session's own environment."""
    # Python is started hundreds of times: what it has compiled once it keeps.
    session.env["PYTHONDONTWRITEBYTECODE"] = None
    session.install("-c", "constraints.txt", ".", *tools)


def with_tests(session: nox.Session) -> Path:
    """The programs of the environment of tests, which are the first on PATH.

    The first session makes it, with the Python that runs nox, and all others use it.
    """
    session.env["PYTHONDONTWRITEBYTECODE"] = None
    if not MADE:
        folder = Path(nox.options.envdir).resolve() / "tests"
        shutil.rmtree(folder, ignore_errors=True)
        python = fresh_environment(session, folder, *TESTS, *LINT, python=sys.executable, uv=shutil.which("uv"))
        MADE.append(python.parent)
    session.env["PATH"] = f"{MADE[0]}{os.pathsep}{os.environ['PATH']}"
    return MADE[0]


def pytest_in(programs: Path) -> tuple[str, ...]:
    """How pytest is called there."""
    return str(programs / "pytest"), *HOW


@nox.session(venv_backend="none")
def plain(session: nox.Session) -> None:
    """Sessions `lint`, `quick` and `slow` at once: the types are checked beside the tests."""
    style(session)
    in_parts(session, "--mypy", "--each", "3")


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Style and types."""
    style(session)
    session.run(str(with_tests(session) / "mypy"))


def style(session: nox.Session) -> None:
    """What ruff finds, in the environment of tests."""
    ruff = str(with_tests(session) / "ruff")
    session.run(ruff, "check", ".")
    session.run(ruff, "format", "--check", ".")


@nox.session(venv_backend="none")
def quick(session: nox.Session) -> None:
    """The plain tests, which need no root, no server and no network, without those that take their time."""
    in_parts(session, chosen="not slow")


@nox.session(venv_backend="none")
def slow(session: nox.Session) -> None:
    """The other plain tests: each takes more than a twentieth of a second."""
    in_parts(session, "--each", "3", chosen="slow", files=with_mark("slow"))


def in_parts(session: nox.Session, *options: str, chosen: str = "", files: Sequence[str] = ()) -> None:
    """The tests that need nothing but a processor, of these files or of all, on all processors."""
    programs = with_tests(session)
    how = ("--plain", *(("-m", chosen) if chosen else ()))
    if session.posargs:
        session.run(*pytest_in(programs), *how, *session.posargs)
    else:
        session.run(str(programs / "python"), "tests/in_parts.py", *options, *HOW, *how, *files)


@nox.session(venv_backend="none")
def real(session: nox.Session) -> None:
    """The tests with real processes, namespaces, sockets and servers. Beside what measures rates is nothing else."""
    on_real_parts(session)


@nox.session(name="real-brief", venv_backend="none")
def real_brief(session: nox.Session) -> None:
    """The same without the long ones."""
    on_real_parts(session, BRIEF)


def on_real_parts(session: nox.Session, length: str = "") -> None:
    """Session `real`, or what `length` leaves of it."""
    pytest = pytest_in(with_tests(session))
    promise, real = promised(PROMISED), f"({REAL}) and not netem{length}"
    if session.posargs:
        session.run(*pytest, *promise, "-m", real, *session.posargs)
        return
    twice_at_most(session, pytest, *promise, "-m", f"{real} and measures", *with_mark("measures"), first=IN_PAIRS)
    twice_at_most(session, pytest, *promise, "-m", f"{real} and not measures", first=BESIDE)


@nox.session(venv_backend="none")
def netem(session: nox.Session) -> None:
    """The tests on real netem: the kernel's, or User-Mode Linux where it has none."""
    on_netem(session)


@nox.session(name="netem-brief", venv_backend="none")
def netem_brief(session: nox.Session) -> None:
    """The same without the long ones."""
    on_netem(session, BRIEF)


def on_netem(session: nox.Session, length: str = "") -> None:
    """Session `netem`, or what `length` leaves of it."""
    pytest = pytest_in(with_tests(session))
    promise, files, netem = promised(PROMISED), with_mark("netem"), f"netem{length}"
    if session.posargs:
        twice_at_most(session, pytest, *promise, "-m", netem, *session.posargs)
        return
    twice_at_most(session, pytest, *promise, "-m", f"{netem} and measures", *files, first=IN_PAIRS)
    twice_at_most(session, pytest, *promise, "-m", f"{netem} and not measures", *files, first=BESIDE)


@nox.session
def package(session: nox.Session) -> None:
    """Wheel and sdist: built, checked, and each installed into an empty environment. Not part of `nox`."""
    session.install("-c", "constraints.txt", "build", "twine")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "dist"
        session.run("python", "-m", "build", "--outdir", str(out), ".")
        files = sorted(out.iterdir())
        session.run("twine", "check", "--strict", *map(str, files))
        for number, file in enumerate(files):
            empty = Path(folder) / f"empty-{number}"
            command = str(fresh_environment(session, empty, what=str(file)).with_name("ingest-bench"))
            with session.chdir(empty):
                session.run(command, "--version", external=True)
                session.run(command, "plan", "quickstart", external=True)


@nox.session(venv_backend="none")
def newcomer(session: nox.Session) -> None:
    """The README's first line, in a new environment and an empty folder; only its runs are shorter."""
    if os.geteuid() == 0 and not CI:
        session.skip("sessions `ordinary` and `ordinary-brief` type it as an ordinary user; CI does both")
    with tempfile.TemporaryDirectory() as folder:
        python = fresh_environment(session, Path(folder))
        with session.chdir(folder):
            command = str(python.with_name("ingest-bench"))
            session.run(command, "run", "quickstart", "--warm-up", "1s", "--measure", "2s", external=True)
            session.run(command, "doctor", external=True)


@nox.session(venv_backend="none")
def ordinary(session: nox.Session) -> None:
    """As an ordinary user: the first line of the README, then the tests that go another way for who is not root."""
    as_ordinary_user(session)


@nox.session(name="ordinary-brief", venv_backend="none")
def ordinary_brief(session: nox.Session) -> None:
    """The same without the long ones."""
    as_ordinary_user(session, BRIEF)


def as_ordinary_user(session: nox.Session, length: str = "") -> None:
    """Session `ordinary`, or what `length` leaves of it."""
    if os.geteuid() != 0:
        session.skip("we are an ordinary user already: the other sessions are this one")
    with tempfile.TemporaryDirectory(prefix="ordinary-", dir="/var/tmp") as made:
        folder = Path(made)
        folder.chmod(0o755)
        python = readable_environment(session, folder)
        # Everything but the package: the tests then try what is installed.
        left_out = shutil.ignore_patterns("ingest_bench", ".git", ".nox", "__pycache__", "results")
        checkout = shutil.copytree(".", folder / "checkout", ignore=left_out)
        home = folder / "home"
        home.mkdir()
        for path in (checkout, *checkout.rglob("*"), home):
            os.chown(path, int(NOBODY), int(NOBODY))
        as_nobody = (*AS_NOBODY, "env", f"HOME={home}")
        with session.chdir(checkout):
            command = str(python.with_name("ingest-bench"))
            # The brief one has a server for each link, and the usual buffers.
            short = ("--warm-up", "1s", "--measure", "2s", *(("--set", "receive_predictor=512KiB") if length else ()))
            session.run(*as_nobody, command, "run", "quickstart", *short, external=True)
            # The tests of networks repeat themselves as an ordinary user, in `real` and `netem`.
            files, chosen = session.posargs, "not bpf"
            if not files:
                files, chosen = with_mark("ordinary"), "ordinary"
            options = ("-m", f"({REAL}) and {chosen}{length}", *promised(PROMISED_TO_ANYBODY), *files)
            twice_at_most(session, (*as_nobody, str(python), "-m", "pytest", *HOW), *options, first=BESIDE)


def readable_environment(session: nox.Session, folder: Path) -> Path:
    """The Python of the environment of tests, or of one in this folder where an ordinary user cannot read that one."""
    is_made = bool(MADE)
    python = with_tests(session) / "python"
    # Without the folder that we are in: that is the checkout.
    can_read = ("sh", "-c", '"$0" -I -c "import ingest_bench" && echo yes || echo no', str(python))
    if str(session.run(*AS_NOBODY, *can_read, external=True, silent=True, log=False)).split()[-1:] != ["yes"]:
        return fresh_environment(session, folder, *TESTS)
    if not is_made:
        # What nobody has imported yet, an ordinary user would compile at each start.
        session.run(str(python), "-m", "compileall", "-q", "-j", "0", str(python.parent.parent / "lib"), external=True)
    return python


@nox.session(venv_backend="none")
def kills(session: nox.Session) -> None:
    """SIGKILL at random moments, 1,000 of them or as many as asked for: `nox -s kills -- 200`. `nox` does 50.

    Beside them a fifth as many of the watchdog. At the end is a table of what was hit when.
    """
    pytest = pytest_in(with_tests(session))
    count, *_ = session.posargs or ("1000",)
    files = ("kills", "interface_kills", "servers_killed", "run_crash")
    paths = [f"tests/test_{name}.py" for name in files]
    session.run(*pytest, "-k", "kill", *paths, *promised(PROMISED), env={"INGEST_BENCH_KILLS": count})


@nox.session(venv_backend="none")
def soak(session: nox.Session) -> None:
    """Whether anything grows or stays behind: `nox -s soak` takes an hour, `nox -s soak -- --minutes 12` less."""
    session.run(str(with_tests(session) / "python"), "benchmarks/soak.py", *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """Which random changes of the code the plain tests notice: `nox -s mutants -- 60 --seed 7`. Not part of `nox`."""
    install(session, "cosmic-ray", "pytest-cov", *TESTS)
    session.run("python", "tests/mutants.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """What the tool costs, all or one: `nox -s bench -- probes --rounds 12`. Not part of `nox`: it wants quiet."""
    # `lab` is what they have in common.
    known = sorted({path.stem for path in Path("benchmarks").glob("*.py")} - {"lab"})
    # Without those that judge or make what they are given.
    chosen, options = [name for name in known if name not in ("against_itself", "nights", "soak")], session.posargs
    if session.posargs:
        name, *options = session.posargs
        if name not in known:
            session.error(f"{name}: no such benchmark; there are {', '.join(known)}")
        chosen = [name]
    install(session)
    for name in chosen:
        # 3: no verdict, because the machine was not idle enough for it.
        session.run("python", f"benchmarks/{name}.py", *options, success_codes=(0, 3))


def twice_at_most(session: nox.Session, pytest: tuple[str, ...], *options: str, first: tuple[str, ...] = ()) -> None:
    """What fails is tried once more, alone: what measures times and rates is disturbed by whatever runs beside it.

    Both are told. A test that fails twice fails the session.
    """
    kept = Path(".pytest_cache", session.name)
    cache = ("-o", f"cache_dir={kept}")
    try:
        session.run(*pytest, *cache, "--cache-clear", *first, *options, external=True)
    except CommandFailed as failed:
        # What was no test's failure, or could not be kept, is not tried again.
        if str(failed) != "Returned code 1" or not (kept / "v" / "cache" / "lastfailed").exists():
            raise
        session.run(*pytest, *cache, "--last-failed", *options, external=True)


def with_mark(name: str) -> list[str]:
    """The test files that have this mark somewhere. To import all others takes longer than many a test."""
    return sorted(map(str, (path for path in Path("tests").glob("test_*.py") if f"mark.{name}" in path.read_text())))


def promised(markers: str) -> tuple[str, ...]:
    """The option that makes a skip a failure, where this is CI."""
    return (f"--promised={markers}",) if CI else ()


def fresh_environment(
    session: nox.Session,
    folder: Path,
    *tools: str,
    what: str = ".",
    python: str = "/usr/bin/python3",
    uv: str | None = None,
) -> Path:
    """The Python of a new environment, with the project installed from this checkout: by pip, or that uv.

    `what` is a wheel or an sdist in place of the checkout. pip compiles all that it installs, so that an ordinary user
    need not do it at each start.
    """
    session.env["PYTHONDONTWRITEBYTECODE"] = None
    made = folder / "venv" / "bin" / "python"
    venv, pip = [python, "-m", "venv"], [str(made), "-m", "pip", "install"]
    if uv is not None:
        venv, pip = [uv, "venv", "-q", "--python", python], [uv, "pip", "install", "--python", str(made)]
    session.run(*venv, str(folder / "venv"), external=True)
    session.run(*pip, "-q", "-c", "constraints.txt", what, *tools, external=True)
    return made
