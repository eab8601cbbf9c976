"""Arbitrary values by Hypothesis, the same in each run."""

from __future__ import annotations

import datetime
import functools
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

SPECIAL = [
    *("", " ", "\n", "\r", "\t", "\0", ";", "'", '"', "`", "$(reboot)", "|", "&", "\\", "/", "../..", "-", "--", "#"),
    *("\x1b[2J", "\x7f", "\u202e", "\u2028", "é", "²", "٣", "😀", "%", "{}", "{0}", "=", ",", "..", ":", "@", "~", "*"),
]
WORDS = [
    *("0", "1", "-1", "8", "007", "1_000", "1.5", "1e9", "nan", "inf", "-inf", "true", "off", "auto", "closed", "none"),
    *("0s", "5ms", "-5ms", "60s", "5000s", "0bit", "1gbit", "9000gbit", "0%", "1%", "100%", "101%", "0.00001%"),
    *("0g", "1k", "64KiB", "9000g", "64KiB..32KiB", "32KiB..64KiB", "1..2..3", "4096 131072 6291456", "3 2 1"),
    *("2000/s", "0/s", "100000000/s", "50MB/s", "poisson 5/s", "ramp 0/s..9/s 3s", "steps 1/s 2/s 10s", "recorded x"),
    *("cubic", "bbr", "eth0", "ethernet", "sink", "opensearch", "2.19.6", "nyc_taxis", "./x.toml", "veth", "loopback"),
    *("10.0.0.1:9200", "[fd00::1]:9200", "http://127.0.0.1:9200", "https://user:secret@x:1", "http://[::1", "-Xss1m"),
    *("9" * 600, "x" * 600, "é" * 300, "../" * 200, "9" * 5000, f"1{'0' * 600}s", f"{'9' * 600}/s", "a." * 300 + "b:1"),
]
TEXTS = st.one_of(
    st.sampled_from(WORDS),
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.lists(st.sampled_from(WORDS[:-8] + SPECIAL), min_size=1, max_size=4).map("".join),
)


def nested(depth: int, wrap: Any) -> Any:
    return functools.reduce(lambda inner, _: wrap(inner), range(depth), "x")


# What Hypothesis cannot show where a test fails: too deep, and a number of too many digits.
MONSTERS = [
    *(nested(depth, wrap) for depth in (40, 5000) for wrap in (lambda x: [x], lambda x: {"a": x})),
    *(1 << 5000, -(1 << 20_000)),
]
SCALARS = st.one_of(
    TEXTS,
    st.integers(),
    st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, 10**29, 10**40]),
    st.floats(),
    st.booleans(),
    st.sampled_from([datetime.date(2015, 1, 1), datetime.datetime(2015, 1, 1, tzinfo=datetime.UTC), datetime.time(1)]),
)
# What TOML can say, and more.
VALUES = st.one_of(
    SCALARS,
    st.recursive(
        SCALARS,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=3)),
        max_leaves=6,
    ),
)


def examples(count: int) -> settings:
    """Return settings for *count* deterministic examples without a time limit, because the machine may be busy."""
    return settings(max_examples=count, derandomize=True, database=None, deadline=None)
