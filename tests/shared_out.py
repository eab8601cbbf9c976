"""Which tests a process of pytest-xdist takes together, one after the other; all others go to whoever is free.

They are those of what the whole machine has in common (the mark `machine` of their module), and those of a file whose
fixtures last as long as it does: a server that it starts is started once.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_MARKS_OF_A_MODULE = re.compile(r"^pytestmark = .*?$(?:\n(?:    .*|\]))*", re.MULTILINE)


def marks_of(path: Path) -> set[str]:
    """The words of the marks that all tests of a file have, without importing it."""
    found = _MARKS_OF_A_MODULE.search(_text(path))
    return set(re.findall(r"\w+", found[0])) if found else set()


def together(root: Path, test: str) -> str:
    """What a test has in common with those that one process takes together with it; its own name: nothing."""
    file = test.partition("::")[0]
    if "machine" in marks_of(root / file):
        return "machine"
    return file if 'scope="module"' in _text(root / file) else test


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
