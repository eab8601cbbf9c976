"""Checks of names and words against `data/banned.toml`. As a program: print the violations in files and folders."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

BANNED = tomllib.loads((Path(__file__).parent / "data" / "banned.toml").read_text(encoding="utf-8"))
_NAMES = frozenset(BANNED["names"])
_STARTS = frozenset(BANNED["docstring_starts"])
_WORDS = re.compile(rf"\b(?:{'|'.join(map(re.escape, BANNED['words']))})\b".replace(r"\ ", r"\s+"), re.IGNORECASE)
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def violations(path: Path) -> Iterator[str]:
    """Yield `line: violation` for one Python or Markdown file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from _banned_words(text, 1)
        return
    tree = ast.parse(text)
    if path.stem in _NAMES:
        yield f"1: module named {path.stem}"
    nodes = list(ast.walk(tree))
    yield from _banned_names(nodes)
    yield from _docstring_starts(nodes)
    yield from _long_test_names(nodes)
    # The tokenizer is slow, and hardly any file has such a word anywhere.
    for token in tokenize.generate_tokens(io.StringIO(text).readline) if _WORDS.search(text) else ():
        if token.type in {tokenize.COMMENT, tokenize.STRING}:
            yield from _banned_words(token.string, token.start[0])


def _banned_names(nodes: Sequence[ast.AST]) -> Iterator[str]:
    fields = [
        node.target
        for part in nodes
        if isinstance(part, ast.ClassDef)
        for node in part.body
        if isinstance(node, ast.AnnAssign)
    ]
    keys = {id(field) for field in fields if isinstance(field, ast.Name) and field.id in BANNED["keys"]}
    for node in nodes:
        if id(node) in keys:
            continue
        name = ""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        if name.lower().strip("_") in _NAMES:
            yield f"{getattr(node, 'lineno', 0)}: name {name}"


def _docstring_starts(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, _DOCUMENTED) and (docstring := ast.get_docstring(node)):
            first = docstring.split(maxsplit=1)[0]
            if first in _STARTS:
                yield f"{node.body[0].lineno}: docstring starts with {first}"


def _long_test_names(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            length = len(node.name)
            if length > BANNED["longest_test_name"]:
                yield f"{node.lineno}: test name of {length} characters"


def _banned_words(text: str, first_line: int) -> Iterator[str]:
    for match in _WORDS.finditer(text):
        line = first_line + text.count("\n", 0, match.start())
        yield f"{line}: word {' '.join(match[0].split())}"


def main() -> int:
    """Print the violations below the paths in argv; return 1 if there are any."""
    paths = [Path(argument) for argument in sys.argv[1:]]
    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    lines = [f"{file}:{line}" for file in files if file.suffix in {".py", ".md"} for line in violations(file)]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
