"""The import rule of `ingest_bench/__init__.py`, and the fences around third-party packages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ingest_bench

PACKAGE = Path(ingest_bench.__file__).parent
BASE = {"model", "units", "errors"}
PARTS = {"records", "rates", "rules", "urls", "credentials", "coherence", "catalog", "data", "system", "ledger", *BASE}
REACHED = {"targets", "network", "probes", "load", "jvm", "store", "facts", "analysis"}
# Each part and what it may import of ours. A part that is not here may import everything: only `cli` may.
MAY_IMPORT: dict[str, set[str]] = {
    "model": set(),
    "units": set(),
    "errors": set(),
    "data": set(),
    "rates": BASE,
    "urls": BASE,
    "credentials": BASE,
    "rules": BASE,
    "records": {"rates", "rules", "urls", *BASE},
    "coherence": {"records", *BASE},
    "catalog": {"coherence", "data", "records", *BASE},
    "spec": {"catalog", "coherence", "records", *BASE},
    "plan": {"spec", *BASE},
    "store": {"records", *BASE},
    "system": {"errors"},
    "ledger": {"system", "records", *BASE},
    "facts": {"system", *BASE},
    "jvm": PARTS,
    "targets": {"jvm", *PARTS},
    "network": PARTS,
    "probes": {"jvm", *PARTS},
    "load": PARTS,
    "analysis": {"model", "units"},
    "report": {"analysis", "model", "units", "data"},
    "gate": {"analysis", "report", "records", "model", "units", "errors"},
    "faults": {"network", *PARTS},
    "procedure": {"targets", "load", *PARTS},
    "footprint": {"procedure", "serving", "targets", *PARTS},
    "attaching": {"jvm", "targets", *PARTS},
    "serving": {"attaching", "faults", "targets", "network", "jvm", "store", *PARTS},
    "runner": {"faults", "footprint", "procedure", "serving", *PARTS, *REACHED},
    "advise": {"analysis", "store", "model"},
    "analyse": {"advise", "report", *PARTS, *REACHED},
    "conduct": {
        "attaching",
        "faults",
        "footprint",
        "procedure",
        "serving",
        "analysis",
        "analyse",
        "runner",
        "targets",
        "network",
        "probes",
        "load",
        "jvm",
        "store",
        "facts",
        *PARTS,
    },
    "calibration": {"jvm", "store", *PARTS},
    "seek": {"conduct", "analyse", "analysis", "runner", "spec", "store", *BASE},
}
FENCES = {
    "locust": ("load",),
    "gevent": ("load",),
    "scapy": ("network", "probes"),
    "pyroute2": ("network", "probes"),
    "matplotlib": ("report",),
    "typer": ("cli",),
    "rich": ("cli",),
    "psutil": ("jvm", "probes", "facts", "load"),
}
MODULES = sorted(PACKAGE.rglob("*.py"))


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


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_downward_and_stay_inside_the_fences(path: Path) -> None:
    part = part_of(path)
    for name in imports(path):
        first, *rest = name.split(".")
        if first == "ingest_bench" and rest and part in MAY_IMPORT:
            assert rest[0] in {part, *MAY_IMPORT[part]}, f"{part} may not import {name}"
        assert part in FENCES.get(first, (part,)), f"{first} stays in {FENCES[first]}"


def test_every_part_has_its_line_in_the_map() -> None:
    parts = {part_of(path) for path in MODULES} - {"__init__", "__main__", "cli"}
    assert parts <= set(MAY_IMPORT)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_is_short_enough_to_read_at_once(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= 320, f"{lines} lines: cut it by subject"
