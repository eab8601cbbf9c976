"""The import rule of `ingest_bench/__init__.py`, the fences around third-party packages, and who starts processes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ingest_bench

PACKAGE = Path(ingest_bench.__file__).parent
GROUND = {"model", "units", "errors"}
# Each part and what it may import of ours. A part that is not here may import everything: only `cli` may.
MAY_IMPORT: dict[str, set[str]] = {
    "model": set(),
    "units": set(),
    "errors": set(),
    "nearest_rank": set(),
    "idl": set(),
    "system": {"errors"},
    "trials": {"system", *GROUND},
    "inputs": GROUND,
    "results": {"inputs", "system", *GROUND},
    "experiment": {"inputs", *GROUND},
    "ledger": {"inputs", "system", *GROUND},
    "jvm": {"inputs", "ledger", "system", *GROUND},
    "documents": {"experiment", "inputs", *GROUND},
    "protocols": {"documents", "idl", "inputs", *GROUND},
    "load": {"documents", "experiment", "inputs", "protocols", "system", *GROUND},
    "targets": {"idl", "inputs", "jvm", "system", "trials", *GROUND},
    "network": {"inputs", "ledger", "nearest_rank", "system", "trials", *GROUND},
    "host": {"inputs", "ledger", "system", "trials", *GROUND},
    "probes": {"inputs", "jvm", "nearest_rank", "system", "trials", *GROUND},
    # A layer of a link is made of the link's own verbs, and one of a node of its share of the machine.
    "faults": {"experiment", "host", "inputs", "network", "system", *GROUND},
    "analysis": {"inputs", "nearest_rank", *GROUND},
    "report": {"analysis", "inputs", "nearest_rank", *GROUND},
    "lab": {
        *("analysis", "documents", "experiment", "faults", "host", "inputs", "jvm", "load", "network"),
        *("probes", "report", "results", "system", "targets"),
        *GROUND,
    },
}
FENCES = {
    "locust": ("load", "protocols"),
    "gevent": ("load", "protocols"),
    "zmq": ("load",),
    "confluent_kafka": ("protocols", "targets"),
    "prometheus_client": ("load", "targets"),
    "scapy": ("network", "faults"),
    "pyroute2": ("network",),
    "matplotlib": ("report",),
    "pyarrow": ("report",),
    "scipy": ("analysis",),
    # Not `network`, `host` and `ledger`: tests of these run in User-Mode Linux too, which cannot compute with it.
    "numpy": (
        "analysis",
        "documents",
        "inputs",
        "lab",
        "load",
        "model",
        "probes",
        "protocols",
        "report",
        "results",
        "targets",
    ),
    "typer": ("cli",),
    "rich": ("cli",),
    "psutil": ("jvm", "host", "results"),
    "thriftpy2": ("idl",),
}
MODULES = sorted(PACKAGE.rglob("*.py"))
# What starts a process, by the beginning of its full name: only `system` may name it.
STARTERS = (
    "subprocess.",
    "os.system",
    "os.popen",
    "os.exec",
    "os.spawn",
    "os.posix_spawn",
    "os.fork",
    "pty.",
    "sys.executable",
    "multiprocessing.",
    "concurrent.futures.ProcessPoolExecutor",
    "concurrent.futures.process",
    "asyncio.create_subprocess",
    "asyncio.subprocess",
    "gevent.subprocess",
    "gevent.os",
    "psutil.Popen",
    "locust.main",
    "jgo.exec",
    "pyroute2.NSPopen",
    "pyroute2.NetNS",
    "pyroute2.netns",
    "importlib.import_module",
    "__import__",
    # Of the standard library: they ask uname, file, ldconfig, gcc and ip.
    "platform.processor",
    "platform.architecture",
    "ctypes.util",
    "uuid.getnode",
    "uuid.uuid1",
    "webbrowser.",
)
# What others need to speak with a child. The class itself is for types only: `subprocess.Popen[bytes]`.
OF_SUBPROCESS = {f"subprocess.{name}" for name in ("PIPE", "DEVNULL", "STDOUT", "TimeoutExpired")}
ALLOWED = {
    # Modules of ours, out of tables of their own.
    "cli/app.py": {"importlib.import_module"},
    # A child that becomes User-Mode Linux: `system` chose its environment and its folder when it started it.
    "network/act/guest_process.py": {"os.execvp"},
    # A child that becomes the server, once it has handed over whom its syncs ask.
    "host/supervised.py": {"os.execvp"},
    # Typed on the console of User-Mode Linux, and made of constants alone.
    "network/plan/guest.py": {'"-c"  && \'.join(lines)'},
}
# A program by its place, and a Python by its name.
PROGRAM = re.compile(r"/(usr/)?(local/)?s?bin/|(.*/)?python[0-9.]+$")


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Dotted names that a module imports, wherever in it; `from a import b` gives a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where a name comes from"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_imports_run_downward_and_stay_inside_the_fences() -> None:
    for path in MODULES:
        part = part_of(path)
        for name in imports(path):
            first, *rest = name.split(".")
            if first == "ingest_bench" and rest and part in MAY_IMPORT:
                assert rest[0] in {part, *MAY_IMPORT[part]}, f"{path}: {part} may not import {name}"
            assert part in FENCES.get(first, (part,)), f"{path}: {first} stays in {FENCES[first]}"


# What each floor of `network` may import of the others: a plan is pure, and who acts does not measure.
FLOORS = {"plan": {"plan"}, "act": {"plan", "act"}, "measure": {"plan", "act", "measure"}}


@pytest.mark.parametrize("floor", FLOORS)
def test_the_floors_of_network_are_used_downward_only(floor: str) -> None:
    paths = sorted((PACKAGE / "network" / floor).glob("*.py"))
    assert 3 <= len(paths) - 1 <= 13
    names = {name for path in paths for name in imports(path) if name.startswith("ingest_bench.network.")}
    assert {name.split(".")[2] for name in names} <= FLOORS[floor]


def test_every_part_has_its_line_in_the_map() -> None:
    parts = {part_of(path) for path in MODULES} - {"__init__", "__main__", "cli"}
    assert parts <= set(MAY_IMPORT)


def starts(tree: ast.Module) -> Iterator[str]:
    """What in a module starts a process by itself, or runs a text as a program."""
    known = dict(_imported(tree))
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            yield from (name for _, name in _imported(node) if _starts(name, None, None))
        elif isinstance(node, ast.Name | ast.Attribute) and not isinstance(parents[node], ast.Attribute):
            parent = parents[node]
            name = _full_name(node, known)
            if name in ("os", "subprocess") or _starts(name, parent, parents.get(parent)):
                yield name
        elif isinstance(node, ast.keyword) and node.arg == "shell":
            yield "shell="
        elif isinstance(node, ast.Tuple | ast.List):
            yield from _texts(node, tree)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PROGRAM.match(node.value):
            yield repr(node.value)


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each name that imports bind, with its full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _full_name(node: ast.expr, known: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_full_name(node.value, known)}.{node.attr}"
    return known.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def _starts(name: str, parent: ast.AST | None, above: ast.AST | None) -> bool:
    """Whether the full name starts processes as it is used there: `above(parent(name))`; None: it is imported."""
    if name == "subprocess.Popen":
        is_type = isinstance(parent, ast.Subscript) and not isinstance(above, ast.Call)
        return not is_type
    return name not in OF_SUBPROCESS and f"{name}.".startswith(STARTERS) and name not in ("subprocess", "pty")


def _texts(argv: ast.Tuple | ast.List, tree: ast.Module) -> Iterator[str]:
    """Programs as text in an argv: only `sh -c` with a constant is fine, whose values come as arguments."""
    words = [ast.unparse(word).strip("'") for word in argv.elts]
    texts = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for before, word, following, element in zip(
        ["", *words], words, [*words[1:], ""], [*argv.elts[1:], None], strict=False
    ):
        if word == "-c" and not (before == "sh" and (isinstance(element, ast.Constant) or following in texts)):
            yield f'"-c" {following}'
        if word == "python" or (word == "-m" and before != "mkdir"):
            yield f'"{word}" {following}'


def test_only_system_starts_processes() -> None:
    parsed = {str(path.relative_to(PACKAGE)): ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}
    found = {name: there for name, tree in parsed.items() if name != "system.py" and (there := set(starts(tree)))}
    assert found == ALLOWED


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess\nsubprocess.run(['ip'])",
        "import subprocess as sp\nsp.check_output(['ip'])",
        "import subprocess\nsubprocess.Popen(['ip'])",
        "import subprocess\nsubprocess.Popen[bytes](['ip'])",
        "import subprocess\nstart = subprocess.call",
        "import subprocess\ngetattr(subprocess, 'run')(['ip'])",
        "from subprocess import getoutput",
        "from subprocess import Popen",
        "import os\nos.system('ip')",
        "import os\nos.execvp('ip', ['ip'])",
        "import os\nos.posix_spawnp('ip', ['ip'], {})",
        "import os\nif not os.fork(): pass",
        "import os\ngetattr(os, 'popen')('ip')",
        "from os import spawnlp as go",
        "import pty\npty.spawn('ip')",
        "import multiprocessing\nmultiprocessing.Process(target=print)",
        "from multiprocessing import Pool",
        "from concurrent.futures import ProcessPoolExecutor",
        "import asyncio\nasyncio.create_subprocess_exec('ip')",
        "from gevent import subprocess",
        "import gevent.subprocess\ngevent.subprocess.run(['ip'])",
        "import psutil\npsutil.Popen(['ip'])",
        "from locust import main",
        "from locust.main import main",
        "import sys\nargv = (sys.executable, 'x.py')",
        "import platform\nplatform.processor()",
        "import importlib\nimportlib.import_module('subprocess')",
        "argv = ('python', 'x.py')",
        "PYTHON = 'python3'",
        "argv = ('/usr/sbin/ip', 'link')",
        "argv = (python, '-m', 'pip')",
        "argv = (python, '-c', 'pass')",
        "argv = ('bash', '-c', 'ip link')",
        "argv = ('sh', '-c', f'ip link show {name}')",
        "argv = ('sh', '-c', text)",
        "TEXT = f'ip link show {name}'\nargv = ('sh', '-c', TEXT)",
        "run(argv, shell=True)",
    ],
)
def test_a_start_is_found_however_it_is_written(source: str) -> None:
    assert list(starts(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess\ndef f(child: subprocess.Popen[bytes]) -> int: return subprocess.PIPE",
        "import os\nos.environ.get('PATH')",
        "argv = ('mkdir', '-m', '700', folder)",
        "TEXT = 'exec \"$@\"'\nargv = ('sh', '-c', TEXT, *words)",
        "argv = ('sh', '-c', 'exec \"$@\"', *words)",
    ],
)
def test_what_starts_nothing_is_no_start(source: str) -> None:
    assert not list(starts(ast.parse(source)))


def test_a_file_that_a_module_names_beside_itself_is_there() -> None:
    beside = re.compile(r'Path\(__file__\)\.(?:with_name\(|parent / )"([^"]+)"')
    named = [(path, name) for path in MODULES for name in beside.findall(path.read_text(encoding="utf-8"))]
    assert len(named) >= 5
    assert not [(path, name) for path, name in named if not (path.parent / name).exists()]


def test_a_module_that_is_started_by_its_name_is_there() -> None:
    started = re.compile(r'"(ingest_bench(?:\.\w+)+)"')
    names = {name for path in MODULES for name in started.findall(path.read_text(encoding="utf-8"))}
    assert len(names) >= 8
    missing = [name for name in names if not (PACKAGE.parent / name.replace(".", "/")).with_suffix(".py").exists()]
    assert not [name for name in missing if not (PACKAGE.parent / name.replace(".", "/")).is_dir()]
