"""The one matcher of names: which known key, option, command, file, column or word the user meant."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from ingest_bench.errors import SpecError

_MAX_LISTED_NAMES = 40
# Longer names are data, not slips; the distance takes a time of the product of both lengths.
_MAX_CHARACTERS = 80
# Fewer letters are the beginning of many words.
_MIN_BEGINNING = 3

_WORDS = tomllib.loads(Path(__file__).with_name("aliases.toml").read_text(encoding="utf-8"))
_ALIASES: Mapping[str, str] = {alias: name for name, aliases in _WORDS.items() for alias in aliases}


def suggest(name: str, known_names: Iterable[str], listed_in: str = "") -> str:
    """Return the remedy for an unknown name: the name that was meant, or where all are listed, or all."""
    names = list(dict.fromkeys(known_names))
    if (match := find_match(name, names)) is not None:
        return f'did you mean "{match}"?'
    if listed_in:
        return f"{listed_in} lists all {len(names)}"
    return f"known: {', '.join(sorted(names)[:_MAX_LISTED_NAMES])}"


def check_name(name: str, known_names: Collection[str], problem: str, listed_in: str = "") -> None:
    """Raise SpecError with the problem and the remedy if the name is unknown."""
    if name not in known_names:
        raise SpecError(f"{problem}; {suggest(name, known_names, listed_in)}")


def find_match(name: str, known_names: Iterable[str]) -> str | None:
    """Return the known name that was meant, the first of equally good ones; None if all differ too much.

    Tried in this order: other case or separators, the last parts of dotted keys, known aliases, one typing error, a
    whole word of the name, and few typing errors.
    """
    text = _simplify(name)
    if not text or len(text) > _MAX_CHARACTERS:
        return None
    simplified = {key: _simplify(key) for key in known_names}
    alias = _simplify(_ALIASES.get(text.rpartition(".")[2], ""))
    if match := _match_key(text, simplified) or _match_key(alias, simplified):
        return match
    distances = [
        (distance, index, key)
        for index, (key, simple) in enumerate(simplified.items())
        for target in (simple, simple.partition(".")[2], simple.rpartition(".")[2])
        if (distance := _edit_distance(text, target)) <= (max(len(text), len(target)) + 1) // 4
    ]
    nearest, _, key = min(distances, default=(0, 0, None))
    return key if nearest == 1 else _match_part(name.lower().strip("-"), simplified) or key


def _match_key(text: str, simplified: Mapping[str, str]) -> str | None:
    """Return the key that has that name, or has that name or its last part as its own last parts."""
    last = text.rpartition(".")[2]
    # The last numbers of two versions are equal by chance.
    ends = (f".{text}", f".{last}") if last[:1].isalpha() else ()
    same = [key for key, simple in simplified.items() if text and simple == text]
    matches = [key for end in ends for key, simple in simplified.items() if f".{simple}".endswith(end)]
    return next(iter(same + matches), None)


def _match_part(word: str, simplified: Iterable[str]) -> str | None:
    """Return the name with that word in it: "8" of "8.19.21", "p99" of "response_ms_p99", "17" of "java17"."""
    patterns = ["{}[._-]", ".*[._-]{}([._-]|$)"]
    if word.isdigit():
        patterns.append("[a-z]+{}$")
    elif len(word) >= _MIN_BEGINNING:
        patterns.append("{}")
    matches = (
        key for pattern in patterns for key in simplified if re.match(pattern.format(re.escape(word)), key.lower())
    )
    return next(matches, None)


def _simplify(name: str) -> str:
    """Return the name in lower case, without quotes and separators except dots."""
    return re.sub(r"[^\w.]|_", "", name.lower()).strip(".")


def _edit_distance(text: str, target: str) -> int:
    """Return how many letters must be inserted, removed, replaced, or swapped with their neighbour."""
    before: list[int] = []
    row = list(range(len(target) + 1))
    for line, letter in enumerate(text, 1):
        older, before, row = before, row, [line]
        for column, other in enumerate(target, 1):
            distance = min(before[column] + 1, row[-1] + 1, before[column - 1] + (letter != other))
            if line > 1 and column > 1 and letter == target[column - 2] and text[line - 2] == other:
                distance = min(distance, older[column - 2] + 1)
            row.append(distance)
    return row[-1]
