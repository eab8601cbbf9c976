"""Text of a track's files: fragments collected, Jinja rendered in a sandbox that never leaves the folder."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jinja2
from jinja2 import meta
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from jinja2.sandbox import SandboxedEnvironment

from ingest_bench.errors import SpecError
from ingest_bench.inputs import files
from ingest_bench.inputs.user_json import parse_json

T = TypeVar("T")

# `{{ rally.collect(parts="operations/*.json") }}` is replaced as text before rendering: variables that the track sets
# at its top are visible in its fragments, and a fragment collects relative to its own folder.
_COLLECT = re.compile(
    r"""\{\{-?\s*(?:rally|benchmark)\.collect\(\s*parts\s*=\s*(["'])(?P<parts>[^"']+)\1\s*\)\s*-?\}\}"""
)
_HELPERS = ("rally.helpers", "benchmark.helpers")
_HELPER_TEMPLATE = "{% set collect = _collect %}{% set exists_set_param = _exists_set_param %}"
# Variables that both tools define, and that a parameter may override.
_DEFAULTS: Mapping[str, Any] = {"build_flavor": "default", "serverless_operator": False}
# Errors that a template can raise.
_RENDER_ERRORS = (
    *(jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
)
_MAX_DEPTH = 20
# NAME_MAX of Linux (limits.h).
_LONGEST_NAME_BYTES = 255
# The workloads of OpenSearch Benchmark share this folder, which stands next to each of theirs.
_SHARED = "common_operations"
# Around the name of a parameter without a value, in rendered text. Noncharacters never occur in a user's text.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_MISSING = re.compile(f"{_OPEN}(.*?){_CLOSE}")
# The same, also as `quoted` writes it.
_MISSING_OR_QUOTED = re.compile(r"(?:\ufdd0|\\ufdd0)(.*?)(?:\ufdd1|\\ufdd1)")
# Around the file name and the line of a template, in marked text.
_MARK_OPEN, _MARK_BETWEEN, _MARK_CLOSE = "\ufdd2", "\ufdd3", "\ufdd4"
_MARK = re.compile(f"{_MARK_OPEN}([^{_MARK_BETWEEN}]*){_MARK_BETWEEN}([0-9]+){_MARK_CLOSE}")


def days_ago(start_date: Any, end_date: Any, date_format: str = "%d-%m-%Y") -> int:
    """Return the whole days from one date to another, such as from "15-05-1998" to `now`."""
    return (_parse_date(end_date, date_format) - _parse_date(start_date, date_format)).days


def get_start_date(the_date: Any, date_format: str = "%Y-%m-%d") -> str:
    """Return a date as text."""
    return _parse_date(the_date, date_format).strftime(date_format)


def get_end_date(start_date: Any, duration_days: float = 1, date_format: str = "%Y-%m-%d") -> str:
    """Return the date that is *duration_days* after another one, as text."""
    return (_parse_date(start_date, date_format) + timedelta(days=duration_days)).strftime(date_format)


def version_between(version: str, lowest: str, highest: str) -> bool:
    """Return whether a version such as "2.11.0" is at least *lowest* and at most *highest*."""
    low, current, high = ([int(part) for part in text.split(".")] for text in (lowest, version, highest))
    return low <= current <= high


def _parse_date(value: Any, date_format: str) -> datetime:
    """Parse a date as both tools do: a datetime, seconds since 1970 such as `now`, or text in that format."""
    if isinstance(value, datetime):
        return value
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    date = datetime.strptime(str(value), date_format)
    return date if date.tzinfo else date.replace(tzinfo=UTC)


# Filters that Rally and OpenSearch Benchmark define.
FILTERS: Mapping[str, Callable[..., Any]] = {
    "days_ago": days_ago,
    "get_start_date": get_start_date,
    "get_end_date": get_end_date,
    "version_between": version_between,
}
# Parses the parameters of a text. The environment that renders it has their values and would not list them.
_PARSER = SandboxedEnvironment(extensions=["jinja2.ext.do"])
_PARSER.filters.update(FILTERS)
# Both tools define these, and a parameter cannot override them.
_PARSER.globals.update({"now": 0.0, "glob": None})


class _Segment(NamedTuple):
    """Text of an assembled template that comes from one place."""

    text: str
    file: str
    line: int


class _MarkLines(Extension):
    """Jinja extension that writes file and line before each line of a template's text."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """Yield the tokens of a template, its text with marks."""
        for token in stream:
            if token.type == "data":
                lines = enumerate(token.value.split("\n"), token.lineno)
                marked = (f"{_MARK_OPEN}{stream.filename}{_MARK_BETWEEN}{n}{_MARK_CLOSE}{line}" for n, line in lines)
                yield Token(token.lineno, "data", "\n".join(marked))
            else:
                yield token


def _position_in_marked(marked: str, text: str, position: int) -> tuple[str, int] | None:
    """Return the template file and the line of a position in *text*, which was rendered again with marks.

    None if a template depends on its own text, so that the marks changed what it renders.
    """
    first, *marked_lines = _MARK.split(marked)
    files, lines, pieces = marked_lines[::3], marked_lines[1::3], marked_lines[2::3]
    if "".join((first, *pieces)) != text:
        return None
    mark, length = None, len(first)
    for file, line, piece in zip(files, lines, pieces, strict=True):
        if length > position:
            break
        mark, length = (file, int(line)), length + len(piece)
    return mark


def _raising_line(error: BaseException) -> tuple[str, int] | None:
    """Return the template file and the line in which rendering raised *error*; None if no template did."""
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        # Jinja replaces the frames of compiled templates with such frames (jinja2.debug).
        if "__jinja_exception__" in frame.f_globals
    ]
    return frames[-1] if frames else None


class Missing(jinja2.Undefined):
    """A parameter without a value: it can be tested and defaulted, and printed into parts that are not used.

    Both tools print nothing for it, and published tracks rely on that in parts that are not run. So it is printed as a
    mark, which `Templates.require_complete` refuses in the parts that are used.
    """

    def __str__(self) -> str:
        if self._undefined_exception is SecurityError:
            self._fail_with_undefined_error()
        return f"{_OPEN}{self._undefined_name}{_CLOSE}"


class Templates:
    """The files of one track's folder, rendered with the user's parameters."""

    def __init__(self, folder: Path, parameters: Mapping[str, Any]) -> None:
        self.folder = folder.resolve()
        self.used_parameters: set[str] = set()
        """Every parameter that the files read so far use."""
        self._segments: dict[str, list[_Segment]] = {}
        """The text of each template, by its name."""
        self._roots = (self.folder, self.folder.parent / _SHARED)
        self._environment = SandboxedEnvironment(
            loader=jinja2.FunctionLoader(self._load), undefined=Missing, autoescape=False, extensions=["jinja2.ext.do"]
        )
        self._environment.policies["json.dumps_kwargs"] = {"sort_keys": True, "default": _encode_undefined}
        helpers = {"_collect": self._collect, "_exists_set_param": _exists_set_param}
        builtins = {"now": time.time(), "glob": self._glob}
        # Copies: a track may change its own lists and tables, but not those of the caller.
        copies = copy.deepcopy(dict(parameters))
        self._environment.globals.update({**_DEFAULTS, **copies, **builtins, **helpers})
        self._environment.filters.update(FILTERS)

    def render_json(self, name: str) -> Any:
        """Render a file of the folder and parse it as JSON."""
        path = self.resolve_inside(self.folder / name, name)
        segments = self._assemble(path, 0)
        text = self._render(segments, str(path))
        try:
            return parse_json(text)
        except RecursionError:
            raise SpecError(f"{path}: is nested too deeply to be parsed") from None
        except json.JSONDecodeError as error:
            where = self._locate_rendered(segments, path, text, _syntax_error_position(text, error.pos))
            if missing := _MISSING.match(text, error.pos):
                raise SpecError(f"{where}: {_missing_message(missing[1])}") from None
            line = _line_start(text, error.lineno)
            raise SpecError(f"{where}: is not JSON after rendering: {error.msg}: {line!r}") from None
        except ValueError as error:
            raise SpecError(f"{path}: {error}") from None

    def require_complete(self, value: T, where: str) -> T:
        """Return the value; SpecError if a parameter without a value was printed into it."""
        if missing := _MISSING.search(json.dumps(value, ensure_ascii=False)):
            raise SpecError(f"{self.folder}: {without_marks(where)}: {_missing_message(missing[1])}")
        return value

    def resolve_inside(self, path: Path, name: str) -> Path:
        """Return the path without links; SpecError if it leaves the folder or is not a valid file name."""
        resolved = Path(os.path.realpath(self.check_inside(path, name)))
        self._refuse_outside(resolved, name)
        return resolved

    def check_inside(self, path: Path, name: str) -> Path:
        """Check like `resolve_inside`, but let a link lead out of the folder: a corpus is often on a larger disk."""
        if missing := _MISSING.search(name):
            raise SpecError(f"{self.folder}: a file is named by a parameter: {_missing_message(missing[1])}")
        normal = Path(os.path.normpath(path))
        if not name.isprintable() or any(len(part.encode()) > _LONGEST_NAME_BYTES for part in normal.parts):
            raise SpecError(f"{self.folder}: {name[:60]!r} is not a valid file name")
        self._refuse_outside(normal, name)
        return normal

    def _refuse_outside(self, path: Path, name: str) -> None:
        if not any(path.is_relative_to(root) for root in self._roots):
            raise SpecError(f'{self.folder}: "{name}" is outside the folder of the track; only files in it are read')

    def _load(self, name: str) -> tuple[str, str, None]:
        if name in _HELPERS:
            return _HELPER_TEMPLATE, name, None
        path = self.resolve_inside(self.folder / name, name)
        self._segments[str(path)] = segments = self._assemble(path, 0)
        return _join(segments), str(path), None

    def _assemble(self, path: Path, depth: int) -> list[_Segment]:
        """Return the text of a file with all files that it collects."""
        text = files.read_user_text(path, f"the track needs {path}")
        segments, end, line = [], 0, 1
        for match in _COLLECT.finditer(text):
            segments.append(_Segment(text[end : match.start()], str(path), line))
            segments += self._collect_files(match["parts"], path.parent, depth + 1)
            end, line = match.end(), 1 + text.count("\n", 0, match.end())
        return [*segments, _Segment(text[end:], str(path), line)]

    def _collect_files(self, pattern: str, folder: Path, depth: int) -> list[_Segment]:
        """Return the text of all files of a pattern, with commas in between."""
        if depth > _MAX_DEPTH:
            raise SpecError(f'{folder}: "{pattern}" collects itself. Remove one of the collects.')
        segments: list[_Segment] = []
        for path in self._matching_files(pattern, folder):
            if segments:
                text, file, line = segments[-1]
                segments.append(_Segment(",\n", file, line + text.count("\n")))
            segments += self._assemble(path, depth)
        return segments

    def _matching_files(self, pattern: str, folder: Path) -> Iterator[Path]:
        parts = Path(pattern).parts
        # The part before the first wildcard is checked before anything is listed.
        fixed = next((n for n, part in enumerate(parts) if set(part) & set("*?[")), len(parts))
        start = self.resolve_inside(folder.joinpath(*parts[:fixed]), pattern)
        if fixed == len(parts):
            yield start
            return
        try:
            paths = sorted(start.glob(str(Path(*parts[fixed:]))))
        except (ValueError, NotImplementedError) as error:
            raise SpecError(f'{folder}: "{pattern}" is not a valid pattern of files: {error}') from None
        for path in paths:
            yield self.resolve_inside(path, pattern)

    def _glob(self, pattern: str) -> list[str]:
        """Return the files of a pattern, relative to the folder of the track, for `include`."""
        paths = self._matching_files(pattern, self.folder)
        return [os.path.relpath(path, self.folder) for path in paths if path.exists()]

    def _collect(self, parts: str) -> str:
        """Collect files whose pattern is only known when it is rendered."""
        return self._render(self._collect_files(parts, self.folder, 1), str(self.folder / parts))

    def _render(self, segments: list[_Segment], name: str) -> str:
        """Return the rendered text of a template; *name* is only for errors."""
        self._segments[name], text = segments, _join(segments)
        try:
            # Compiled first: the errors of the parser name no file.
            code = self._environment.compile(text, filename=name)
            self.used_parameters |= meta.find_undeclared_variables(_PARSER.parse(text))
            template = jinja2.Template.from_code(self._environment, code, self._environment.make_globals(None))
            return template.render()
        except jinja2.UndefinedError as error:
            missing = re.search(r"'([^']+)' is undefined", str(error))
            reason = _missing_message(missing[1]) if missing else f"cannot be rendered: {error}"
            raise SpecError(f"{self._locate_error(error, name)}: {reason}") from None
        except SecurityError as error:
            raise SpecError(f"{self._locate_error(error, name)}: the template may not do this: {error}") from None
        except jinja2.TemplateSyntaxError as error:
            # It may be in a file that this one includes.
            where = self._locate(error.filename or name, error.lineno)
            reason = str(error.message).rstrip(".")
            line = _line_start(error.source or text, error.lineno)
            raise SpecError(f"{where}: {reason}, in: {line!r}") from None
        except jinja2.TemplateNotFound as error:
            where = self._locate_error(error, name)
            raise SpecError(f'{where}: includes "{error.name}", which does not exist') from None
        except _RENDER_ERRORS as error:
            raise SpecError(f"{self._locate_error(error, name)}: cannot be rendered: {error}") from None

    def _locate_error(self, error: BaseException, name: str) -> str:
        line = _raising_line(error)
        return self._locate(*line) if line else name

    def _locate_rendered(self, segments: list[_Segment], path: Path, text: str, position: int) -> str:
        """Return the template line that was rendered to this position; the file if it is unknown."""
        plain, self._environment = self._environment, self._environment.overlay(extensions=[_MarkLines])
        line = None
        # A template that reads its own text may fail on a mark.
        with contextlib.suppress(SpecError):
            line = _position_in_marked(self._render(segments, str(path)), text, position)
        self._environment = plain
        return self._locate(*line) if line else str(path)

    def _locate(self, name: str, line: int) -> str:
        """Return the line of a file that a line of a template comes from: of its first part that is not blank."""
        where, number = name, 1
        for text, file, first in self._segments.get(name, ()):
            parts = text.split("\n")
            # A line behind the last one is an error at the end.
            place = min(line - number, len(parts) - 1)
            if place >= 0:
                where = f"{file}: line {first + place}"
                if line - number < len(parts) and parts[place].strip():
                    break
            number += len(parts) - 1
        return where


def _join(segments: list[_Segment]) -> str:
    return "".join(segment.text for segment in segments)


def explain_missing(error: SpecError, folder: Path) -> SpecError:
    """Return the error; if its text has a parameter without a value, an error that names this cause."""
    missing = _MISSING_OR_QUOTED.search(str(error))
    return SpecError(f"{folder}: {_missing_message(missing[1])}") if missing else error


def without_marks(text: str) -> str:
    """Return the text as both tools print it: empty where a parameter has no value."""
    return _MISSING.sub("", text)


def _syntax_error_position(text: str, position: int) -> int:
    """Return the position of a JSON syntax error. For a trailing comma, Python's parser reports the bracket."""
    before = text[:position].rstrip()
    return len(before) - 1 if before.endswith(",") and text[position : position + 1] in ("]", "}") else position


def _line_start(text: str, number: int) -> str:
    """Return the first 80 characters of a line; empty if the text has fewer lines."""
    return next(iter(text.split("\n")[number - 1 : number]), "").strip()[:80]


def _missing_message(name: str) -> str:
    return (
        f'the parameter "{name}" has no value and no default. Pass it: --track-params {name}:VALUE, or in a JSON file.'
    )


def _encode_undefined(value: Any) -> str:
    if isinstance(value, jinja2.Undefined):
        return str(value)
    raise TypeError(f"{value!r} cannot be written as JSON")


def _exists_set_param(name: str, value: Any, default_value: Any = None, comma: bool = True) -> str:
    """Return a setting as text, after a comma; empty without a value."""
    chosen = default_value if isinstance(value, jinja2.Undefined) else value
    return "" if chosen is None else f"{', ' if comma else ''}{json.dumps(name)}: {json.dumps(chosen)}"
