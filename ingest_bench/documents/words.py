"""Seeded English-like vocabulary and prose with Zipf's law, which analyses and compresses like scientific papers."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

_PARTS = {
    name: tuple(text.split())
    for name, text in tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="ascii")).items()
}
_CLOSINGS = (".", ".", ".", " [{}].", ".", ".\\n", ".", " ({}).")

Style = Literal["papers", "places"]


@lru_cache(maxsize=8)
def vocabulary(size: int, seed: int, style: Style = "papers") -> tuple[str, ...]:
    """Return *size* different words by falling frequency: of papers (English function words first) or place names."""
    numbers = _random_numbers(np.random.default_rng([seed, 1]))
    build = _scientific_word if style == "papers" else _place_name
    words = dict.fromkeys(_PARTS["common"] if style == "papers" else ())
    while len(words) < size:
        # The rarer a word, the longer it is.
        words.setdefault(build(numbers, len(words)))
    return tuple(words)


@lru_cache(maxsize=8)
def zipf_cdf(size: int) -> NDArray[np.float64]:
    """Return the cumulative distribution of ranks 1 to *size* by Zipf and Mandelbrot: 1 / (rank + 2.7) ** 1.07.

    2.7 is Mandelbrot's correction for English: without it the first word would be 9% of the text.
    """
    total = np.cumsum(1.0 / (np.arange(1, size + 1) + 2.7) ** 1.07)
    cdf: NDArray[np.float64] = total / total[-1]
    return cdf


def draw_ranks(random: np.random.Generator, cdf: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Draw *count* ranks (from 0) from a cumulative distribution."""
    return np.searchsorted(cdf, random.random(count)).astype(np.int64)


@lru_cache(maxsize=2)
def prose(seed: int, size_bytes: int, words: int) -> bytes:
    """Return about *size_bytes* of sentences and paragraphs from *words* different words, escaped as JSON."""
    random = np.random.default_rng([seed, 2])
    count = size_bytes // 6
    tokens = np.array(vocabulary(words, seed), dtype=object)[draw_ranks(random, zipf_cdf(words), count)]
    positions = random.integers(0, count, size=count // 40)
    tokens[positions] = [f"{value:.3g}" for value in random.lognormal(2.0, 1.6, size=len(positions))]
    commas = random.integers(0, count, size=count // 14)
    tokens[commas] = tokens[commas] + ","
    ends = np.cumsum(random.integers(8, 34, size=count // 8))
    ends = ends[ends < count - 1]
    tokens[ends + 1] = [str(token).capitalize() for token in tokens[ends + 1]]
    closings = random.integers(0, len(_CLOSINGS), size=len(ends)).tolist()
    numbers = random.integers(1, 90, size=len(ends)).tolist()
    tokens[ends] = [
        str(token).rstrip(",") + _CLOSINGS[closing].format(number)
        for token, closing, number in zip(tokens[ends], closings, numbers, strict=True)
    ]
    return " ".join(tokens.tolist()).encode()


def _random_numbers(random: np.random.Generator) -> Iterator[int]:
    """Yield random numbers. Drawing each one from numpy alone would take a hundred times as long."""
    while True:
        yield from random.integers(0, 2**31, size=65536).tolist()


def _scientific_word(numbers: Iterator[int], rank: int) -> str:
    fronts = next(numbers) % (1 + (rank > 1000) + (rank > 12000))
    return _join_parts(numbers, [*["fronts"] * fronts, "roots", *([] if next(numbers) % 8 == 0 else ["endings"])])


def _place_name(numbers: Iterator[int], rank: int) -> str:
    heads = 1 + min(2, next(numbers) % (2 + rank // 8000))
    return _join_parts(numbers, [*["heads"] * heads, "tails"])


def _join_parts(numbers: Iterator[int], names: list[str]) -> str:
    return "".join(_PARTS[name][next(numbers) % len(_PARTS[name])] for name in names)
