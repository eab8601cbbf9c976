"""Constraints on the fields of records, stated in their types: `Annotated[int, Between(1, 65535)]`.

`inputs.records` enforces them for every source of a value: a file, `--set`, a command-line option, a resumed plan.
Every number and text of a record that is read from TOML has a constraint (tests/test_records.py).
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
    """A finite number from `minimum` to `maximum`, both included. Booleans are not numbers."""

    minimum: float
    maximum: float
    reason: str = ""
    """Why these limits, as text that fits in parentheses."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text that a regular expression matches completely."""

    pattern: str
    description: str
    """The form in words, as it follows "is not": "a file's path"."""


@dataclass(frozen=True, slots=True)
class Length:
    """The number of values in a list or table."""

    minimum: int
    maximum: int
    separator: str | None = None
    """Separates the values where all are written as one text; None: white space."""
    rising: bool = False
    """No value is less than its predecessor."""
    distinct: bool = False
    """No value occurs twice."""


@dataclass(frozen=True, slots=True)
class Json:
    """A value that every JSON reader understands: finite 64-bit numbers, and objects with text keys."""

    max_depth: int = 32
    """Maximum nesting of lists and objects; index mappings stay far below."""


@dataclass(frozen=True, slots=True)
class MonotonicClock:
    """A time on CLOCK_MONOTONIC of the machine that took it; 0 means unset.

    It is converted to the receiver's clock when it is sent to another machine. Durations are not.
    """


# Control characters move a terminal's cursor and end lines; direction marks display a text in another order than it
# has (CVE-2021-42574); a lone surrogate cannot be encoded as UTF-8.
CONTROL = r"\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_ONE_LINE = f"[^{CONTROL}]"

Line = Annotated[str, Pattern(f"{_ONE_LINE}{{0,1000}}", "one line of at most 1,000 printable characters")]
Label = Annotated[str, Pattern(f"{_ONE_LINE}{{1,255}}", "one line of 1 to 255 printable characters")]
Name = Annotated[
    str,
    Pattern(
        r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,63}",
        "a name: at most 64 of A-Z, a-z, 0-9, dot, hyphen, plus and underscore",
    ),
]
NodeNumber = Annotated[int, Between(1, 9, "nine nodes have 36 links between them, the most for one machine")]
# NAME_MAX and PATH_MAX of Linux (include/uapi/linux/limits.h); PATH_MAX includes the terminating zero.
FilePath = Annotated[
    str,
    Pattern(
        rf"(?=[^{CONTROL}]{{1,4095}}\Z)[^{CONTROL}/]{{0,255}}(?:/[^{CONTROL}/]{{0,255}})*",
        "a file's path: at most 4,095 printable characters, each name in it at most 255",
    ),
]
Host = Annotated[
    str,
    # RFC 1035, 2.3.4: labels of 63, names of 253 characters. Colon and percent sign belong to IPv6.
    Pattern(
        r"(?=.{1,253}\Z)[A-Za-z0-9_:%-]{1,63}(?:\.[A-Za-z0-9_%-]{1,63})*\.?",
        "a host: a name or an address of at most 253 of A-Z, a-z, 0-9, dot, hyphen, underscore, colon and percent sign",
    ),
]
# RFC 3986, 3.3 and 3.4: characters that a path and a query may contain, and percent-encoded octets. Every server
# accepts 8,000 octets (RFC 9112, 3).
UrlPath = Annotated[
    str,
    Pattern(
        r"/(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2}){0,2000}",
        "a path of a URL: / and at most 2,000 characters that need no encoding, or percent-encoded ones",
    ),
]
# Path segments of RFC 3986, without `.` and `..`.
PATH_PREFIX = r"(?=.{0,2000}\Z)(/(?!\.{1,2}(/|$))([A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})+)*"
PathPrefix = Annotated[
    str,
    Pattern(
        PATH_PREFIX, "empty, or a path of a URL without an end slash, such as /search, of at most 2,000 characters"
    ),
]
Port = Annotated[int, Between(1, 65535, "TCP's ports")]
Share = Annotated[int, Between(0, 10**6)]
"""In parts per million."""
Seed = Annotated[int, Between(0, 2**63 - 1, "a whole number of 64 bits, as TOML has them")]
MonotonicNs = Annotated[int, MonotonicClock()]
JsonValue = Annotated[Any, Json()]


def monotonic_fields(record: Any) -> tuple[str, ...]:
    """Return the names of the fields of *record* that are times on a machine's monotonic clock."""
    hints = get_type_hints(record, include_extras=True).items()
    return tuple(name for name, hint in hints if MonotonicClock() in getattr(hint, "__metadata__", ()))
