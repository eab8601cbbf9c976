"""The text of a track's files: fragments collected, Jinja rendered in a sandbox that never leaves the folder."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import jinja2
from jinja2 import meta
from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedEnvironment

from ingest_bench.documents.tracks import places
from ingest_bench.documents.tracks.filters import FILTERS
from ingest_bench.documents.tracks.places import Assembled, Place
from ingest_bench.errors import SpecError
from ingest_bench.inputs import files
from ingest_bench.inputs.user_json import parse_json

T = TypeVar("T")

# `{{ rally.collect(parts="operations/*.json") }}` is replaced as text, before rendering: what the track sets at its
# top holds in its fragments, and a fragment collects relative to its own folder.
_COLLECT = re.compile(
    r"""\{\{-?\s*(?:rally|benchmark)\.collect\(\s*parts\s*=\s*(["'])(?P<parts>[^"']+)\1\s*\)\s*-?\}\}"""
)
_HELPERS = ("rally.helpers", "benchmark.helpers")
_HELPER_TEMPLATE = "{% set collect = _collect %}{% set exists_set_param = _exists_set_param %}"
# What both tools define without being asked, and a parameter may change.
_GIVEN: Mapping[str, Any] = {"build_flavor": "default", "serverless_operator": False}
# What a template raises that asks for what cannot be done.
_BROKEN = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_DEPTH = 20
# NAME_MAX of Linux (limits.h).
_LONGEST_NAME_BYTES = 255
# The workloads of OpenSearch Benchmark share this folder, which stands beside each of theirs.
_SHARED = "common_operations"


# Around the name of a parameter without a value, in rendered text. Noncharacters: no text of a user has them.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_MISSING = re.compile(f"{_OPEN}(.*?){_CLOSE}")
# The same, also as `quoted` writes it.
_MISSING_OR_QUOTED = re.compile(r"(?:\ufdd0|\\ufdd0)(.*?)(?:\ufdd1|\\ufdd1)")
# Finds the parameters of a text. The environment that renders it knows their values and would not name them.
_READER = SandboxedEnvironment(extensions=["jinja2.ext.do"])
_READER.filters.update(FILTERS)
# Both tools define them, and no parameter takes their place.
_READER.globals.update({"now": 0.0, "glob": None})


class Missing(jinja2.Undefined):
    """A parameter without a value: it can be tested and defaulted, and printed only where nobody reads it.

    Both tools print nothing instead, and published tracks count on it in parts that are not run. So what is printed
    is a mark, and `complete` refuses it in the parts that are.
    """

    def __str__(self) -> str:
        if self._undefined_exception is SecurityError:
            self._fail_with_undefined_error()
        return f"{_OPEN}{self._undefined_name}{_CLOSE}"


class Templates:
    """The files of one track's folder, rendered with the user's parameters."""

    def __init__(self, folder: Path, parameters: Mapping[str, Any]) -> None:
        self.folder = folder.resolve()
        self.used: set[str] = set()
        """Every parameter that the files read so far ask for."""
        self._places: dict[str, list[Place]] = {}
        """The places of the lines of each template, by its name."""
        self._roots = (self.folder, self.folder.parent / _SHARED)
        self._environment = SandboxedEnvironment(
            loader=jinja2.FunctionLoader(self._load), undefined=Missing, autoescape=False, extensions=["jinja2.ext.do"]
        )
        self._environment.policies["json.dumps_function"] = _dumps
        helpers = {"_collect": self._collect, "_exists_set_param": _exists_set_param}
        own = {"now": time.time(), "glob": self._glob}
        # Copies: a track may change its own lists and tables, but not what it was given.
        given = copy.deepcopy(dict(parameters))
        self._environment.globals.update({**_GIVEN, **given, **own, **helpers})
        self._environment.filters.update(FILTERS)

    def json(self, name: str) -> Any:
        """What a file of the folder holds once it is rendered."""
        path = self.inside(self.folder / name, name)
        source = self._assembled(path, 0)
        text = self._render(source, str(path))
        try:
            return parse_json(text)
        except RecursionError:
            raise SpecError(f"{path}: is nested too deeply to be read; no track is") from None
        except json.JSONDecodeError as error:
            place = self._place_in_rendered(source, path, text, _fault(text, error.pos))
            if found := _MISSING.match(text, error.pos):
                raise SpecError(f"{place}: {_remedy(found[1])}") from None
            raise SpecError(
                f"{place}: is not JSON once it is rendered: {error.msg}: {_line(text, error.lineno)!r}"
            ) from None
        except ValueError as error:
            raise SpecError(f"{path}: {error}") from None

    def complete(self, value: T, where: str) -> T:
        """The same value; SpecError when a parameter without a value was printed into it."""
        if found := _MISSING.search(json.dumps(value, ensure_ascii=False)):
            raise SpecError(f"{self.folder}: {without_marks(where)}: {_remedy(found[1])}")
        return value

    def inside(self, path: Path, said: str) -> Path:
        """The same path without links; SpecError when it leaves the folder, or when no file can be called so."""
        plain = self.named_inside(path, said)
        real = Path(os.path.realpath(plain))
        self._check_inside(real, said)
        return real

    def named_inside(self, path: Path, name: str) -> Path:
        """Return the path like `inside`, but let a link lead out of the folder: a corpus is often on a larger disk."""
        if missing := _MISSING.search(name):
            raise SpecError(f"{self.folder}: a file is named by a parameter: {_remedy(missing[1])}")
        plain = Path(os.path.normpath(path))
        if not name.isprintable() or any(len(part.encode()) > _LONGEST_NAME_BYTES for part in plain.parts):
            raise SpecError(f"{self.folder}: {name[:60]!r} is named in it, and no file of a track is called so")
        self._check_inside(plain, name)
        return plain

    def _check_inside(self, path: Path, name: str) -> None:
        if not any(path.is_relative_to(root) for root in self._roots):
            raise SpecError(f'{self.folder}: "{name}" is outside the folder of the track; only files in it are read')

    def _load(self, name: str) -> tuple[str, str, None]:
        if name in _HELPERS:
            return _HELPER_TEMPLATE, name, None
        path = self.inside(self.folder / name, name)
        source = self._assembled(path, 0)
        self._places[str(path)] = source.places
        return source.text, str(path), None

    def _assembled(self, path: Path, depth: int) -> Assembled:
        try:
            text = files.text(path)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise SpecError(f"{path}: cannot be read: {reason}; the track needs this file") from None
        lines = [Place(str(path), number) for number in range(1, text.count("\n") + 2)]
        assembled, end, line = Assembled(), 0, 0
        for match in _COLLECT.finditer(text):
            before = text[end : match.start()]
            assembled.add(before, lines[line : line + before.count("\n") + 1])
            self._collect_into(assembled, match["parts"], path.parent, depth + 1)
            end, line = match.end(), text.count("\n", 0, match.end())
        assembled.add(text[end:], lines[line:])
        return assembled

    def _collect_into(self, assembled: Assembled, parts: str, beside: Path, depth: int) -> None:
        if depth > _DEPTH:
            raise SpecError(f'{beside}: "{parts}" collects itself; take one of the collects out')
        for number, path in enumerate(self._matches(parts, beside)):
            if number:
                assembled.add(",\n", [assembled.places[-1]] * 2)
            fragment = self._assembled(path, depth)
            assembled.add(fragment.text, fragment.places)

    def _matches(self, parts: str, beside: Path) -> Iterator[Path]:
        pattern = Path(parts)
        # The fixed beginning is judged before anything is listed.
        fixed = list(_until_wildcard(pattern.parts))
        start = self.inside(beside.joinpath(*fixed), parts)
        if len(fixed) == len(pattern.parts):
            yield start
            return
        try:
            found = sorted(start.glob(str(Path(*pattern.parts[len(fixed) :]))))
        except (ValueError, NotImplementedError) as error:
            raise SpecError(f'{beside}: "{parts}" is no pattern of files: {error}') from None
        for path in found:
            yield self.inside(path, parts)

    def _glob(self, pattern: str) -> list[str]:
        """Return the files of a pattern, relative to the folder of the track, for `include`."""
        return [os.path.relpath(path, self.folder) for path in self._matches(pattern, self.folder) if path.exists()]

    def _collect(self, parts: str) -> str:
        """A collect whose pattern is only known when it is rendered."""
        assembled = Assembled()
        self._collect_into(assembled, parts, self.folder, 1)
        return self._render(assembled, str(self.folder / parts))

    def _render(self, source: Assembled, name: str) -> str:
        """Return the text of a template; `name` is only for errors."""
        self._places[name] = source.places
        try:
            # Compiled first: the reader would name no file in its errors.
            code = self._environment.compile(source.text, filename=name)
            self.used |= meta.find_undeclared_variables(_READER.parse(source.text))
            template = jinja2.Template.from_code(self._environment, code, self._environment.make_globals(None))
            return template.render()
        except jinja2.UndefinedError as error:
            _explain_missing(error, self._raised_at(error, name))
        except SecurityError as error:
            raise SpecError(f"{self._raised_at(error, name)}: the template may not do this: {error}") from None
        except jinja2.TemplateSyntaxError as error:
            # It may be in a file that this one includes.
            where = self._place(error.filename or name, error.lineno)
            said = str(error.message).rstrip(".")
            line = _line(error.source or source.text, error.lineno)
            raise SpecError(f"{where}: {said}, in: {line!r}") from None
        except jinja2.TemplateNotFound as error:
            where = self._raised_at(error, name)
            raise SpecError(f'{where}: includes "{error.name}", which is not there') from None
        except _BROKEN as error:
            raise SpecError(f"{self._raised_at(error, name)}: cannot be rendered: {error}") from None

    def _raised_at(self, error: BaseException, name: str) -> str:
        place = places.raised_at(error)
        return self._place(*place) if place else name

    def _place_in_rendered(self, source: Assembled, path: Path, text: str, position: int) -> str:
        """Return the place in the template that was rendered to this position; the file where it is not known."""
        plain, self._environment = self._environment, self._environment.overlay(extensions=[places.Marks])
        place = None
        # A template that reads its own text may fail over a mark.
        with contextlib.suppress(SpecError):
            place = places.position_in_marked(self._render(source, str(path)), text, position)
        self._environment = plain
        return self._place(*place) if place else str(path)

    def _place(self, name: str, line: int) -> str:
        """Return the line of a file that a line of a template comes from."""
        places_of_lines = self._places.get(name, [])
        return str(places_of_lines[min(line, len(places_of_lines)) - 1]) if places_of_lines else name


def explained(error: SpecError, folder: Path) -> SpecError:
    """Return the error; if its text has a parameter without a value, an error that names this cause."""
    missing = _MISSING_OR_QUOTED.search(str(error))
    return SpecError(f"{folder}: {_remedy(missing[1])}") if missing else error


def without_marks(text: str) -> str:
    """The text as both tools print it: nothing stands where a parameter has no value."""
    return _MISSING.sub("", text)


def _fault(text: str, position: int) -> int:
    """Return the position of a JSON syntax error. For a comma before an end, Python's parser names the end."""
    before = text[:position].rstrip()
    return len(before) - 1 if before.endswith(",") and text[position : position + 1] in ("]", "}") else position


def _line(text: str, number: int) -> str:
    """The beginning of a line; nothing where the text has fewer."""
    return next(iter(text.split("\n")[number - 1 : number]), "").strip()[:80]


def _until_wildcard(parts: tuple[str, ...]) -> Iterator[str]:
    for part in parts:
        if set(part) & set("*?["):
            return
        yield part


def _explain_missing(error: jinja2.UndefinedError, where: str) -> NoReturn:
    found = re.search(r"'([^']+)' is undefined", str(error))
    if not found:
        raise SpecError(f"{where}: cannot be rendered: {error}") from None
    raise SpecError(f"{where}: {_remedy(found[1])}") from None


def _remedy(name: str) -> str:
    return f'the parameter "{name}" has no value and no default; give it: --track-params {name}:VALUE, or a JSON file'


def _dumps(value: Any, **options: Any) -> str:
    return json.dumps(value, default=_refuse, **options)


def _refuse(value: Any) -> str:
    if isinstance(value, jinja2.Undefined):
        return str(value)
    raise TypeError(f"{value!r} has no form in JSON")


def _exists_set_param(name: str, value: Any, default_value: Any = None, comma: bool = True) -> str:
    """A setting as text when it has a value, else nothing; with a comma before it."""
    chosen = default_value if isinstance(value, jinja2.Undefined) else value
    return "" if chosen is None else f"{', ' if comma else ''}{json.dumps(name)}: {json.dumps(chosen)}"
