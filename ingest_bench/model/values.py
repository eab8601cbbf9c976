"""What a field of a record may hold, said in its type: `Annotated[int, Between(1, 65535)]`.

`records` enforces it wherever a value comes from: a file, `--set`, an option of the command, a plan that is resumed.
Every record that is read from TOML says it for each of its numbers and texts (tests/test_records.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

MS = 10**6
S = 10**9
HOUR = 3600 * S
MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40


@dataclass(frozen=True, slots=True)
class Between:
    """A number from `least` to `most`, both allowed. Nothing else is between them: no nan, no infinity, no truth."""

    least: float
    most: float
    why: str = ""
    """Where the ends come from, in words that can stand in brackets."""


@dataclass(frozen=True, slots=True)
class Form:
    """A text that a regular expression matches from its beginning to its end."""

    pattern: str
    what: str
    """The form in words, after "is not": "a file's path"."""


@dataclass(frozen=True, slots=True)
class Several:
    """How many values a list or a table has."""

    least: int
    most: int
    separator: str | None = None
    """What stands between them where all are written as one text; None: white space."""
    rising: bool = False
    """No value is less than the one before."""


@dataclass(frozen=True, slots=True)
class Json:
    """What JSON can say and every reader of it understands: finite numbers of 64 bits, tables with text as keys."""

    deepest: int = 32
    """How far lists and tables may be nested: far more than the mapping of any index is."""


@dataclass(frozen=True, slots=True)
class Clock:
    """A moment of CLOCK_MONOTONIC of the machine where it was taken; 0 is none.

    On its way to another machine it is told on that one's clock. A length of time is the same on all.
    """


# Control characters move a terminal's cursor and end lines; the marks of direction show a text in another order than
# it has (CVE-2021-42574); a lone surrogate cannot be written as UTF-8.
CONTROL = r"\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_ONE_LINE = f"[^{CONTROL}]"

Line = Annotated[str, Form(f"{_ONE_LINE}{{0,1000}}", "one line of at most 1,000 printable characters")]
Label = Annotated[str, Form(f"{_ONE_LINE}{{1,255}}", "one line of 1 to 255 printable characters")]
Name = Annotated[
    str,
    Form(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,63}", "a name: at most 64 of A-Z, a-z, 0-9, dot, hyphen, plus and underscore"),
]
NodeNumber = Annotated[int, Between(1, 9, "36 links between them are as many as one machine should have")]
# NAME_MAX and PATH_MAX of Linux (include/uapi/linux/limits.h), the second with the end of the text.
FilePath = Annotated[
    str,
    Form(
        rf"(?=[^{CONTROL}]{{1,4095}}\Z)[^{CONTROL}/]{{0,255}}(?:/[^{CONTROL}/]{{0,255}})*",
        "a file's path: at most 4,095 printable characters, each name in it at most 255",
    ),
]
Host = Annotated[
    str,
    # RFC 1035, 2.3.4: labels of 63, names of 253. The colon and the percent sign are IPv6's.
    Form(
        r"(?=.{1,253}\Z)[A-Za-z0-9_:%-]{1,63}(?:\.[A-Za-z0-9_%-]{1,63})*\.?",
        "a host: a name or an address of at most 253 of A-Z, a-z, 0-9, dot, hyphen, underscore, colon and percent sign",
    ),
]
# RFC 3986, 3.3 and 3.4: what may stand in a path and a query as it is, and percent-encoded octets. 8,000 octets is what
# every server takes (RFC 9112, 3).
UrlPath = Annotated[
    str,
    Form(
        r"/(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2}){0,2000}",
        "a path of a URL: / and at most 2,000 characters that need no encoding, or percent-encoded ones",
    ),
]
# Segments of a path (RFC 3986), but none that leads upwards.
PATH_PREFIX = r"(?=.{0,2000}\Z)(/(?!\.{1,2}(/|$))([A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})+)*"
PathPrefix = Annotated[
    str,
    Form(PATH_PREFIX, "empty, or a path of a URL without an end slash, such as /search, of at most 2,000 characters"),
]
Port = Annotated[int, Between(1, 65535, "TCP's ports")]
Share = Annotated[int, Between(0, 10**6)]
"""In parts of a million."""
Seed = Annotated[int, Between(0, 2**63 - 1, "a whole number of 64 bits, as TOML has them")]
Moment = Annotated[int, Clock()]
Value = Annotated[Any, Json()]


def moments(record: Any) -> tuple[str, ...]:
    """The fields of a record that are moments of a machine's clock, as their types say."""
    hints = get_type_hints(record, include_extras=True).items()
    return tuple(name for name, hint in hints if Clock() in getattr(hint, "__metadata__", ()))
