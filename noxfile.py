"""The project's checks: `nox` runs those of a change, `nox -s nightly` the long ones, `nox -s NAME` one session."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import nox

nox.options.sessions = ["lint", "unit", "integration", "netem", "newcomer", "ordinary"]
# CI keeps the environments where an ordinary user can read them, wherever its checkout is.
nox.options.envdir = os.environ.get("NOX_ENVDIR", ".nox")
# uv makes an environment in seconds; pip is used where uv is not installed.
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.error_on_missing_interpreters = True
nox.needs_version = ">=2024.10.9"

CI = bool(os.environ.get("CI"))
# Capabilities that a CI machine must have: a test skipped because one is missing fails.
PROMISED = "bpf,netns,netem,jvm,opensearch,elasticsearch"
PROMISED_TO_ORDINARY_USERS = "netns,jvm,opensearch,elasticsearch"
# The uid and gid of Debian's user "nobody": an ordinary user without a home.
NOBODY = "65534"
AS_NOBODY = ("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups")
# Test tools, and the packages that are optional for a user.
# With pytest 9.2 pytest-xdist 3.8 ignores its groups: the id of a test became an object, and it changes the text.
TESTS = ("hypothesis", "nox", "pyarrow", "pytest<9.2", "pytest-rerunfailures", "pytest-xdist")
LINT = ("ruff", "mypy", "types-psutil")
REPORT = ("-q", "--durations=20")
# Until each test on real parts is steady on a busy machine, a failure is retried once and printed.
RETRIED = ("--reruns", "1", "-rR", "--dist", "loadgroup")
# Servers and processes mostly wait for each other: 3 workers keep 2 cores busy.
PARALLEL = ("-n", "3", *RETRIED)
# A rate measurement uses a quarter of a core. Three at once disturbed each other.
IN_PAIRS = ("-n", "2", *RETRIED)
# `bin` folder of the environment with the tests, once it exists.
TEST_PROGRAMS: list[Path] = []


def install(session: nox.Session, *tools: str) -> None:
    """The project as a user installs it, with the versions that were tried, in the session's own environment."""
    # Python is started hundreds of times: what it has compiled once it keeps.
    session.env["PYTHONDONTWRITEBYTECODE"] = None
    session.install("-c", "constraints.txt", ".", *tools)


def with_tests(session: nox.Session) -> Path:
    """Return the `bin` folder of the environment with the tests, and put it first on PATH.

    The first session makes it, with the Python that runs nox. The other sessions share it.
    """
    session.env["PYTHONDONTWRITEBYTECODE"] = None
    if not TEST_PROGRAMS:
        folder = Path(nox.options.envdir).resolve() / "tests"
        shutil.rmtree(folder, ignore_errors=True)
        python = fresh_environment(session, folder, *TESTS, *LINT, python=sys.executable, uv=shutil.which("uv"))
        TEST_PROGRAMS.append(python.parent)
    session.env["PATH"] = f"{TEST_PROGRAMS[0]}{os.pathsep}{os.environ['PATH']}"
    return TEST_PROGRAMS[0]


def run_tests(session: nox.Session, selection: str, *options: str, promised: str = PROMISED) -> None:
    """Run the tests that the marker expression *selection* selects, or those named after `--`."""
    pytest = (str(with_tests(session) / "pytest"), *REPORT, *promise(promised))
    session.run(*pytest, *options, "-m", selection, *session.posargs)


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Check style and types."""
    programs = with_tests(session)
    session.run(str(programs / "ruff"), "check", ".")
    session.run(str(programs / "ruff"), "format", "--check", ".")
    session.run(str(programs / "mypy"))


@nox.session(venv_backend="none")
def unit(session: nox.Session) -> None:
    """Run the tests of pure functions: no root, no JVM, no network."""
    run_tests(session, "unit and not nightly", "-n", "auto", "--dist", "loadgroup")


@nox.session(venv_backend="none")
def integration(session: nox.Session) -> None:
    """Run the tests with real processes, namespaces, sockets and servers. Rate measurements run last, in pairs."""
    selection = "not unit and not netem and not nightly"
    run_tests(session, f"{selection} and not measures", *PARALLEL)
    if not session.posargs:
        run_tests(session, f"{selection} and measures", *IN_PAIRS)


@nox.session(venv_backend="none")
def netem(session: nox.Session) -> None:
    """Run the tests on real netem: in the kernel, or in User-Mode Linux where the kernel has none."""
    run_tests(session, "netem and not nightly", *IN_PAIRS)


@nox.session(venv_backend="none")
def nightly(session: nox.Session) -> None:
    """Run the long tests: every server version, fleets, long variants, 1,000 kills, mutants, an hour of soak."""
    run_tests(session, "nightly and not measures", *PARALLEL)
    run_tests(session, "nightly and measures", *IN_PAIRS)
    for name in ("kills", "mutants", "soak"):
        session.notify(name)


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
    """Type the README's first line in a new environment and an empty folder; only its runs are shorter."""
    if os.geteuid() == 0 and not CI:
        session.skip("session `ordinary` types it as an ordinary user; CI does both")
    with tempfile.TemporaryDirectory() as folder:
        python = fresh_environment(session, Path(folder))
        with session.chdir(folder):
            command = str(python.with_name("ingest-bench"))
            session.run(command, "run", "quickstart", "--warm-up", "1s", "--measure", "2s", external=True)
            session.run(command, "doctor", external=True)


@nox.session(venv_backend="none")
def ordinary(session: nox.Session) -> None:
    """Type the README's first line as an ordinary user, then run the tests that behave differently without root."""
    if os.geteuid() != 0:
        session.skip("this user is an ordinary user: the other sessions are this one")
    with tempfile.TemporaryDirectory(prefix="ordinary-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        python = readable_environment(session, folder)
        # Without the package, so that the tests try the installed one.
        left_out = shutil.ignore_patterns("ingest_bench", ".git", ".nox", "__pycache__", "results")
        checkout = shutil.copytree(".", folder / "checkout", ignore=left_out)
        home = folder / "home"
        home.mkdir()
        for path in (checkout, *checkout.rglob("*"), home):
            os.chown(path, int(NOBODY), int(NOBODY))
        as_nobody = (*AS_NOBODY, "env", f"HOME={home}")
        with session.chdir(checkout):
            command = str(python.with_name("ingest-bench"))
            short = ("--warm-up", "1s", "--measure", "2s")
            session.run(*as_nobody, command, "run", "quickstart", *short, external=True)
            pytest = (*as_nobody, str(python), "-m", "pytest", *REPORT, *promise(PROMISED_TO_ORDINARY_USERS))
            selection = "not bpf" if session.posargs else "ordinary and not unit and not bpf and not nightly"
            session.run(*pytest, *PARALLEL, "-m", selection, *session.posargs, external=True)


def readable_environment(session: nox.Session, folder: Path) -> Path:
    """The Python of the environment of tests, or of one in this folder where an ordinary user cannot read that one."""
    exists = bool(TEST_PROGRAMS)
    python = with_tests(session) / "python"
    # Without the folder that we are in: that is the checkout.
    can_read = ("sh", "-c", '"$0" -I -c "import ingest_bench" && echo yes || echo no', str(python))
    if str(session.run(*AS_NOBODY, *can_read, external=True, silent=True, log=False)).split()[-1:] != ["yes"]:
        return fresh_environment(session, folder, *TESTS)
    if not exists:
        # What nobody has imported yet, an ordinary user would compile at each start.
        session.run(str(python), "-m", "compileall", "-q", "-j", "0", str(python.parent.parent / "lib"), external=True)
    return python


@nox.session(venv_backend="none")
def kills(session: nox.Session) -> None:
    """SIGKILL at random moments, 1,000 of them or as many as asked for: `nox -s kills -- 200`. `nox` does 50.

    Beside them a fifth as many of the watchdog. At the end is a table of what was hit when.
    """
    pytest = (str(with_tests(session) / "pytest"), *REPORT)
    count, *_ = session.posargs or ("1000",)
    files = ("kills", "interface_kills", "servers_killed", "run_crash")
    paths = [f"tests/test_{name}.py" for name in files]
    session.run(*pytest, "-k", "kill", *paths, *promise(PROMISED), env={"INGEST_BENCH_KILLS": count})


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


def promise(markers: str) -> tuple[str, ...]:
    """Return the option that makes a skip of these markers a failure in CI."""
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
