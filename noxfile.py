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
# uid and gid of Debian's unprivileged user, which has no home.
NOBODY = "65534"
AS_NOBODY = ("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups")
# Test tools, and the packages that are optional for a user.
# With pytest 9.2 pytest-xdist 3.8 ignores its groups: the id of a test became an object, and it changes the text.
TESTS = ("hypothesis", "nox", "pyarrow", "pytest<9.2", "pytest-rerunfailures", "pytest-xdist")
LINT = ("ruff", "mypy", "types-psutil")
# With R the retries of rate measurements are printed.
REPORT = ("-q", "--durations=20", "-rR")
# Servers and processes mostly wait for each other: 3 workers keep 2 cores busy.
PARALLEL = ("-n", "3", "--dist", "loadgroup")
# A rate measurement uses a quarter of a core. Three at once disturbed each other.
IN_PAIRS = ("-n", "2", "--dist", "loadgroup")
# `bin` folder of the environment with the tests, once it exists.
TEST_PROGRAMS: list[Path] = []


def install(session: nox.Session, *tools: str) -> None:
    """Install the project and *tools* with the tested versions in the session's own environment."""
    # Python starts hundreds of times: keep its compiled files.
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
    """Run the long tests: every server version, fleets, long variants, the image, kills, mutants, an hour of soak."""
    run_tests(session, "nightly and not measures", *PARALLEL)
    run_tests(session, "nightly and measures", *IN_PAIRS)
    for name in ("image", "kills", "mutants", "soak"):
        session.notify(name)


@nox.session
def package(session: nox.Session) -> None:
    """Build wheel and sdist, check them, and install each into an empty environment. Not part of `nox`."""
    session.install("-c", "constraints.txt", "build", "twine")
    with tempfile.TemporaryDirectory() as folder:
        dist = Path(folder) / "dist"
        session.run("python", "-m", "build", "--outdir", str(dist), ".")
        files = sorted(dist.iterdir())
        session.run("twine", "check", "--strict", *map(str, files))
        for number, file in enumerate(files):
            empty = Path(folder) / f"empty-{number}"
            command = str(fresh_environment(session, empty, requirement=str(file)).with_name("ingest-bench"))
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
    """Return a Python with the tests that an ordinary user can read; make one in *folder* if the shared one is not."""
    exists = bool(TEST_PROGRAMS)
    python = with_tests(session) / "python"
    # Without the working directory on sys.path: it is the checkout.
    can_read = ("sh", "-c", '"$0" -I -c "import ingest_bench" && echo yes || echo no', str(python))
    if str(session.run(*AS_NOBODY, *can_read, external=True, silent=True, log=False)).split()[-1:] != ["yes"]:
        return fresh_environment(session, folder, *TESTS)
    if not exists:
        # An ordinary user cannot write compiled files here, and would compile modules at each start.
        session.run(str(python), "-m", "compileall", "-q", "-j", "0", str(python.parent.parent / "lib"), external=True)
    return python


@nox.session(venv_backend="none")
def kills(session: nox.Session) -> None:
    """Kill sessions with SIGKILL at random moments: 1,000 times, or `nox -s kills -- 200`. `nox` does 50.

    One fifth as many kills hit the watchdog. A table of the moments is printed at the end.
    """
    pytest = (str(with_tests(session) / "pytest"), *REPORT)
    count, *_ = session.posargs or ("1000",)
    session.run(*pytest, "tests/test_kills.py", *promise(PROMISED), env={"INGEST_BENCH_KILLS": count})


@nox.session(venv_backend="none")
def soak(session: nox.Session) -> None:
    """Detect growth and leftovers: `nox -s soak` takes an hour, `nox -s soak -- --minutes 12` less."""
    session.run(str(with_tests(session) / "python"), "benchmarks/soak.py", *session.posargs)


@nox.session(venv_backend="none")
def image(session: nox.Session) -> None:
    """Build the container image without a registry, and run the program in it."""
    if os.geteuid() != 0 or not shutil.which("buildah") or not shutil.which("debootstrap"):
        session.skip("it needs root, buildah and debootstrap")
    session.run(".ci/image", external=True)


@nox.session
def mutants(session: nox.Session) -> None:
    """Count random changes of the code that unit tests detect: `nox -s mutants -- 60 --seed 7`. Not part of `nox`."""
    install(session, "cosmic-ray", "pytest-cov", *TESTS)
    session.run("python", "tests/mutants.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure what the tool costs, e.g. `nox -s bench -- probes --rounds 12`. Not part of `nox`: it needs idleness."""
    # `lab` is their common code; `soak` is a session of its own.
    names = sorted({path.stem for path in Path("benchmarks").glob("*.py")} - {"lab", "soak"})
    options = session.posargs
    if session.posargs:
        name, *options = session.posargs
        if name not in names:
            session.error(f"{name}: no such benchmark; there are {', '.join(names)}")
        names = [name]
    install(session)
    for name in names:
        # 3: no verdict, because the machine was not idle enough for it.
        session.run("python", f"benchmarks/{name}.py", *options, success_codes=(0, 3))


def promise(markers: str) -> tuple[str, ...]:
    """Return the option that makes a skip of these markers a failure in CI."""
    return (f"--promised={markers}",) if CI else ()


def fresh_environment(
    session: nox.Session,
    folder: Path,
    *tools: str,
    requirement: str = ".",
    python: str = "/usr/bin/python3",
    uv: str | None = None,
) -> Path:
    """Make a virtual environment with the project and *tools*, and return its Python.

    *requirement* is the checkout, a wheel or an sdist. *uv* is the path of uv, None for pip. pip compiles the
    files that it installs, so an ordinary user need not compile them at each start.
    """
    session.env["PYTHONDONTWRITEBYTECODE"] = None
    environment_python = folder / "venv" / "bin" / "python"
    venv, pip = [python, "-m", "venv"], [str(environment_python), "-m", "pip", "install"]
    if uv is not None:
        venv, pip = [uv, "venv", "-q", "--python", python], [uv, "pip", "install", "--python", str(environment_python)]
    session.run(*venv, str(folder / "venv"), external=True)
    session.run(*pip, "-q", "-c", "constraints.txt", requirement, *tools, external=True)
    return environment_python
