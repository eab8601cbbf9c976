"""Count the mutants that the unit tests kill.

    python tests/mutants.py [COUNT] [--seed N]

A mutant is the code with one comparison, operator, number or negation of a pure module changed by cosmic-ray, in a copy
of the checkout. First the tests that reach its line run, then all test files that reach its module. Lines that an
import executes are judged by all tests. The first failure, or a limit of CPU time, ends the run.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import itertools
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.provider import OperatorProvider
from coverage import CoverageData

CHECKOUT = Path(__file__).resolve().parents[1]
# Pure modules.
PURE = (
    "analysis/**/*",
    "inputs/*",
    "lab/buffer_advice",
    "lab/evaluation",
    "lab/find_max",
    "load/arrivals",
    "load/figures",
    "load/fleet/transfer",
    "load/plan",
    "model/*",
    "network/plan/*",
    "protocols/**/*",
    "report/*table*",
    "report/gate",
)
# Each place has one or two of these: an off-by-one bound, and the opposite.
OPERATORS = (
    "AddNot",
    "NumberReplacer",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceFalseWithTrue",
    "ReplaceTrueWithFalse",
    "ReplaceUnaryOperator_Delete_Not",
    "ReplaceUnaryOperator_USub_UAdd",
    *(
        f"ReplaceComparisonOperator_{change}"
        for change in (
            *("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is"),
            *("Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt"),
        )
    ),
    *(
        f"ReplaceBinaryOperator_{change}"
        for change in (
            *("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_FloorDiv", "Pow_Mul"),
            *("LShift_RShift", "RShift_LShift", "BitOr_BitAnd", "BitAnd_BitOr"),
        )
    ),
)
# Nodes of parso with a binary operator; elsewhere `*` and `/` separate parameters.
BINARY = frozenset({"and_expr", "arith_expr", "expr", "power", "shift_expr", "term"})
PYTEST = ("-m", "pytest", "-q", "-m", "unit", "-p", "no:cacheprovider", "--tb=no", "-rfE")
WAIT_S = 3600
MEMORY_BYTES = 16 << 30


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one line."""

    file: str
    line: int
    was: str
    becomes: str
    code: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Verdict of the tests on a mutant, and the first test that failed."""

    mutant: Mutant
    state: str
    test: str


def modules(checkout: Path) -> list[Path]:
    """Return the modules that are mutated."""
    return sorted(path for pattern in PURE for path in (checkout / "ingest_bench").glob(f"{pattern}.py"))


def mutants(checkout: Path, seed: int) -> Iterator[Mutant]:
    """Yield mutants in random order: draw a place in the code, then one of its changes."""
    chance = random.Random(seed)  # noqa: S311 - a sample, not a secret
    sources = {str(path.relative_to(checkout)): path.read_text(encoding="utf-8") for path in modules(checkout)}
    places = [(file, place) for file, source in sources.items() for place in _places(source)]
    chance.shuffle(places)
    for file, (line, changes) in places:
        name, occurrence = chance.choice(changes)
        code = mutate_code(sources[file], OperatorProvider()[name](), occurrence)
        if _compiles(code):
            yield Mutant(file, line, *_difference(sources[file], code), code)


def _places(source: str) -> list[tuple[int, Sequence[tuple[str, int]]]]:
    """Return each place with its changes: operator of cosmic-ray, and index of the occurrence."""
    silent, annotations = _without_effect(ast.parse(source))
    nodes = list(ast_nodes(get_ast(source)))
    changes_by_place: dict[tuple[Any, str], list[tuple[str, int]]] = {}
    for name in OPERATORS:
        operator = OperatorProvider()[name]()
        occurrence = 0
        for node in nodes:
            for place, _ in operator.mutation_positions(node):
                within = _contains(silent, place) or (name != "NumberReplacer" and _contains(annotations, place))
                if not within and (not name.startswith("ReplaceBinary") or node.parent.type in BINARY):
                    changes_by_place.setdefault((place, name.partition("_")[0]), []).append((name, occurrence))
                occurrence += 1
    return [(place[0], changes) for (place, _), changes in sorted(changes_by_place.items())]


def _without_effect(tree: ast.Module) -> tuple[list[ast.expr], list[ast.expr]]:
    """Return expressions without effect on results, and type annotations, in which only numbers count (bounds)."""
    silent: list[ast.expr] = []
    types: list[ast.expr | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            silent += node.decorator_list
        # `strict` of zip only asserts.
        if isinstance(node, ast.keyword) and node.arg == "strict":
            silent.append(node.value)
        if isinstance(node, ast.AnnAssign | ast.arg):
            types.append(node.annotation)
        if isinstance(node, ast.FunctionDef):
            types.append(node.returns)
    return silent, [annotation for annotation in types if annotation]


def _contains(parts: Iterable[ast.expr], place: tuple[int, int]) -> bool:
    return any(
        (part.lineno, part.col_offset) <= place < (part.end_lineno or 0, part.end_col_offset or 0) for part in parts
    )


def _compiles(code: str) -> bool:
    """Return False for `not` before an assignment expression."""
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


def _difference(source: str, code: str) -> tuple[str, str]:
    """Return the line that differs, before and after."""
    both = zip(source.splitlines(), code.splitlines(), strict=True)
    return next((was.strip(), becomes.strip()) for was, becomes in both if was != becomes)


class Tests:
    """Unit tests in a copy of the checkout, and the lines that each of them reaches."""

    def __init__(self, copy: Path) -> None:
        self.copy = copy
        before = _processor_s()
        # No test may fail on unchanged code. Failed tests are run once more, alone.
        coverage = ("--cov=ingest_bench", "--cov-context=test", "--cov-report=")
        exit_code, output = self._run(coverage, limit_s=WAIT_S)
        if failed := _failed(output):
            exit_code, output = self._run(failed, limit_s=WAIT_S)
        if exit_code != 0:
            sys.exit(f"the tests fail on unchanged code:\n{output}")
        self.limit_s = round(60 + 2 * (_processor_s() - before))
        self._data = CoverageData(str(copy / ".coverage"))
        self._data.read()

    def judge(self, mutant: Mutant) -> Outcome:
        """Run the tests that reach the mutant's line, then all tests, until one fails."""
        contexts = self._data.contexts_by_lineno(str(self.copy / mutant.file))
        source = (self.copy / mutant.file).read_text(encoding="utf-8")
        lines, imported = _statement(source, mutant.line)
        reached = {context for line in lines for context in contexts.get(line, ())}
        if not reached:
            return Outcome(mutant, "not reached", "")
        # Lines executed by an import are in the context of no single test.
        everywhere = imported or "" in reached
        files = sorted({_test(name).partition("::")[0] for names in contexts.values() for name in names if name})
        first_tests = files if imported else sorted({_test(name) for name in reached if name})
        path = self.copy / mutant.file
        try:
            self._write(path, mutant.code)
            for chosen in filter(None, (first_tests, [*files, "tests"] if everywhere else files)):
                exit_code, output = self._run(("-x", *chosen), limit_s=self.limit_s)
                if exit_code != 0:
                    first = next(iter(_failed(output)), "time limit, or pytest crashed")
                    return Outcome(mutant, "killed", first)
        finally:
            self._write(path, source)
        return Outcome(mutant, "survived", "")

    def _write(self, path: Path, code: str) -> None:
        path.write_text(code, encoding="utf-8")
        # Python compares size and mtime in seconds: two mutants may have both in common.
        Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)

    def _run(self, arguments: Sequence[str], *, limit_s: int) -> tuple[int, str]:
        """Return pytest's exit code and output. CPU time is limited, because the machine may be busy."""
        limits = ("prlimit", f"--cpu={limit_s}", f"--as={MEMORY_BYTES}")
        argv = (*limits, "env", f"PYTHONPATH={self.copy}", sys.executable, *PYTEST, *arguments)
        try:
            done = subprocess.run(
                argv,
                cwd=self.copy,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=WAIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 1, ""
        # A mutant may make a test module fail on import, which leaves no tests in it.
        if done.returncode in {4, 5} and not _failed(done.stdout):
            sys.exit(f"not tests: {' '.join(arguments)}\n{done.stdout}{done.stderr}")
        return done.returncode, done.stdout


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _failed(output: str) -> list[str]:
    """Return failed tests of pytest's summary, and test modules that could not be imported."""
    return [line.split(" ")[1] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]


def _test(context: str) -> str:
    """Return the test of a coverage context `tests/test_x.py::test_y[z]|run`, without parameters."""
    return context.partition("|")[0].partition("[")[0]


def _statement(source: str, line: int) -> tuple[range, bool]:
    """Return the lines of the innermost statement at *line*, without its body, and True if an import executes it."""
    around = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    inner = max(around, key=lambda node: node.lineno)
    below = [node.lineno for node in ast.walk(inner) if isinstance(node, ast.stmt) and node is not inner]
    lines = range(inner.lineno, min(below, default=(inner.end_lineno or 0) + 1))
    in_function = any(isinstance(node, ast.FunctionDef) and node.body[0].lineno <= line for node in around)
    # `except` and `case` come after the first statement of their body.
    return lines if line in lines else range(line, line + 1), not in_function


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("count", nargs="?", type=int, default=60)
    options.add_argument("--seed", type=int, default=None)
    arguments = options.parse_args()
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"{arguments.count} mutants, seed {seed}", flush=True)
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="mutants-", dir="/var/tmp") as folder:
        left_out = shutil.ignore_patterns(".*_cache", ".git", ".hypothesis", ".nox", "__pycache__")
        copy = shutil.copytree(CHECKOUT, Path(folder) / "checkout", ignore=left_out)
        tests = Tests(copy)
        for mutant in itertools.islice(mutants(copy, seed), arguments.count):
            outcome = tests.judge(mutant)
            outcomes.append(outcome)
            place = f"{mutant.file}:{mutant.line}: {mutant.was} -> {mutant.becomes}"
            print(f"{len(outcomes)}/{arguments.count} {outcome.state} {outcome.test} {place}", flush=True)
    states = Counter(outcome.state for outcome in outcomes)
    share = f"{states['killed'] / max(1, len(outcomes)):.0%}"
    print(f"{share} of {len(outcomes)} mutants killed; {', '.join(f'{state}: {n}' for state, n in states.items())}")


if __name__ == "__main__":
    main()
