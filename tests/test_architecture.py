"""Check import directions, third-party fences, the one module that starts processes, names and words."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from style_check import BANNED, violations

import ingest_bench

PACKAGE = Path(ingest_bench.__file__).parent
GROUND = {"model", "units", "errors"}
# Each part and the parts that it may import. `cli` may import everything.
MAY_IMPORT: dict[str, set[str]] = {
    "model": set(),
    "units": set(),
    "errors": set(),
    "system": {"errors"},
    "inputs": GROUND,
    "results": {"inputs", "system", *GROUND},
    "experiment": {"inputs", *GROUND},
    "ledger": {"inputs", "system", *GROUND},
    "jvm": {"inputs", "ledger", "system", *GROUND},
    "documents": {"experiment", "inputs", "jvm", *GROUND},
    "protocols": {"documents", "inputs", *GROUND},
    "load": {"documents", "experiment", "inputs", "protocols", "system", *GROUND},
    "targets": {"host", "inputs", "jvm", "protocols", "system", *GROUND},
    "network": {"host", "inputs", "ledger", "system", *GROUND},
    "host": {"inputs", "ledger", "system", *GROUND},
    "probes": {"host", "inputs", "jvm", "system", *GROUND},
    # Faults change links and node resources.
    "faults": {"experiment", "host", "inputs", "network", "system", *GROUND},
    "analysis": {"inputs", *GROUND},
    "report": {"analysis", "inputs", *GROUND},
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
    "scapy": ("network",),
    "pyroute2": ("network",),
    "matplotlib": ("report",),
    "pyarrow": ("report",),
    "scipy": ("analysis",),
    # Not `network`, `host` and `ledger`: their tests also run in User-Mode Linux, where numpy fails.
    "numpy": (
        *("analysis", "documents", "inputs", "lab", "load", "model"),
        *("probes", "protocols", "report", "results", "targets"),
    ),
    "typer": ("cli",),
    "rich": ("cli",),
    "psutil": ("jvm", "host", "results"),
    "thriftpy2": ("protocols",),
    "h2": ("protocols",),
    "hpack": ("protocols",),
    "google": ("protocols",),
    "opensearch": ("protocols",),
}
MODULES = sorted(PACKAGE.rglob("*.py"))
# Prefixes of names that start a process: only `system` may use them.
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
    # These functions of the standard library start uname, file, ldconfig, gcc and ip.
    "platform.processor",
    "platform.architecture",
    "ctypes.util",
    "uuid.getnode",
    "uuid.uuid1",
    "webbrowser.",
)
# Constants for communication with a child. The class itself is for types only: `subprocess.Popen[bytes]`.
OF_SUBPROCESS = {f"subprocess.{name}" for name in ("PIPE", "DEVNULL", "STDOUT", "TimeoutExpired")}
ALLOWED = {
    # Modules of the package, from a table.
    "cli/app.py": {"importlib.import_module"},
    # A child that becomes User-Mode Linux, in the environment and folder that `system` chose.
    "network/act/uml_process.py": {"os.execvp"},
    # A child that becomes the server after it has sent its seccomp listener.
    "host/supervised.py": {"os.execvp"},
    # Typed on the console of User-Mode Linux; made of constants.
    "network/plan/link_plan.py": {"\"-c\" ' && '.join(lines)"},
}
# Absolute path of a program, or name of a Python.
PROGRAM = re.compile(r"/(usr/)?(local/)?s?bin/|(.*/)?python[0-9.]+$")


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """Yield the dotted names that a module imports; `from a import b` gives a.b."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where a name comes from"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_imports_run_downward_and_stay_inside_the_fences() -> None:
    for path in MODULES:
        part = part_of(path)
        for name in imports(path):
            first, *parts = name.split(".")
            if first == "ingest_bench" and parts and part in MAY_IMPORT:
                assert parts[0] in {part, *MAY_IMPORT[part]}, f"{path}: {part} may not import {name}"
            assert part in FENCES.get(first, (part,)), f"{path}: {first} stays in {FENCES[first]}"


# Import direction inside `network`: a plan is pure, and acting does not measure.
LAYERS = {"plan": {"plan"}, "act": {"plan", "act"}, "measure": {"plan", "act", "measure", "classic_bpf"}}


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_of_network_import_downward(layer: str) -> None:
    paths = sorted((PACKAGE / "network" / layer).glob("*.py"))
    names = {name for path in paths for name in imports(path) if name.startswith("ingest_bench.network.")}
    assert {name.split(".")[2] for name in names} <= LAYERS[layer]


def test_every_part_has_an_import_rule() -> None:
    parts = {part_of(path) for path in MODULES} - {"__init__", "__main__", "cli"}
    assert parts <= set(MAY_IMPORT)


def starts(tree: ast.Module) -> Iterator[str]:
    """Yield the names in a module that start a process or run text as a program."""
    imported = dict(_imported(tree))
    nodes = list(ast.walk(tree))
    parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    constants = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in nodes:
        if isinstance(node, ast.ImportFrom | ast.Import):
            yield from (name for _, name in _imported(node) if _starts(name, None, None))
        elif isinstance(node, ast.Name | ast.Attribute) and not isinstance(parents[node], ast.Attribute):
            parent = parents[node]
            name = _full_name(node, imported)
            if name in ("os", "subprocess") or _starts(name, parent, parents.get(parent)):
                yield name
        elif isinstance(node, ast.keyword) and node.arg == "shell":
            yield "shell="
        elif isinstance(node, ast.Tuple | ast.List):
            yield from _texts(node, constants)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PROGRAM.match(node.value):
            yield repr(node.value)


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each name that imports bind, with its full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _full_name(node: ast.expr, imported: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_full_name(node.value, imported)}.{node.attr}"
    return imported.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def _starts(name: str, parent: ast.AST | None, above: ast.AST | None) -> bool:
    """Return True if a name used as `above(parent(name))` starts processes; None: it is imported."""
    if name == "subprocess.Popen":
        is_type = isinstance(parent, ast.Subscript) and not isinstance(above, ast.Call)
        return not is_type
    return name not in OF_SUBPROCESS and f"{name}.".startswith(STARTERS) and name not in ("subprocess", "pty")


def _texts(argv: ast.Tuple | ast.List, constants: set[str]) -> Iterator[str]:
    """Yield programs given as text in an argv. Only `sh -c` with a constant is allowed; its values are arguments."""
    words = [_text(word) for word in argv.elts]
    for before, word, following, element in zip(
        ["", *words], words, [*words[1:], ""], [*argv.elts[1:], None], strict=False
    ):
        allowed = before == "sh" and (isinstance(element, ast.Constant) or following in constants)
        if word == "python" or (word == "-m" and before != "mkdir") or (word == "-c" and not allowed):
            yield f'"{word}" {ast.unparse(element) if element else ""}'


def _text(word: ast.expr) -> str:
    return str(word.value) if isinstance(word, ast.Constant) else word.id if isinstance(word, ast.Name) else ""


def test_only_system_starts_processes() -> None:
    names_by_module = {str(path.relative_to(PACKAGE)): set(starts(parse(path))) for path in MODULES}
    users = {module: names for module, names in names_by_module.items() if names and module != "system.py"}
    assert users == ALLOWED


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
def test_every_way_to_start_a_process_is_detected(source: str) -> None:
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
def test_uses_without_a_start_are_allowed(source: str) -> None:
    assert not list(starts(ast.parse(source)))


ROOT = Path(__file__).parent.parent
# Parts whose names and words follow tests/data/banned.toml.
PARTS = [
    *sorted(path for path in PACKAGE.iterdir() if path.name != "__pycache__"),
    *(ROOT / name for name in ("tests", "benchmarks", "docs")),
    *(ROOT / name for name in ("noxfile.py", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_names_and_words_are_those_of_the_field(part: Path) -> None:
    files = sorted(part.rglob("*")) if part.is_dir() else [part]
    assert not [f"{file}:{line}" for file in files if file.suffix in {".py", ".md"} for line in violations(file)]


NAME, START = BANNED["names"][0], BANNED["docstring_starts"][0]
WORD = next(word for word in BANNED["words"] if " " in word)


@pytest.mark.parametrize(
    ("source", "violation"),
    [
        (f"def {NAME}(): ...", f"1: name {NAME}"),
        (f"def f({NAME}): ...", f"1: name {NAME}"),
        (f"for {NAME} in (): ...", f"1: name {NAME}"),
        (f'def f():\n    """{START} x."""', f"2: docstring starts with {START}"),
        (f"x = 1  # {WORD.upper()}", f"1: word {WORD.upper()}"),
        (f'x = """\n{WORD.replace(" ", "  ")}"""', f"2: word {WORD}"),
        (f"def test_{'a' * 76}(): ...", "1: test name of 81 characters"),
    ],
)
def test_each_kind_of_violation_is_reported(source: str, violation: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(source, encoding="utf-8")
    assert violation in list(violations(path))
