"""Words and prose: a seeded English-like vocabulary with Zipf's law, so that it analyses and compresses like papers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The most frequent words of English prose come first; their order is their rank.
_COMMON = (
    "the of and in to a with for was is were that as by from on at are this be or we not an which these it have"
    " between has been also had than can their more other using both used may after all two our but however no"
    " during there most study results data analysis patients cells based different observed significant showed"
    " treatment group high compared found associated levels time increased among model method effect cell each"
    " three only higher one those such its into when they expression number control studies total first protein"
    " table figure values lower over disease rate reported however within low mean samples type could test due"
    " respectively shown similar well sample years previous age genes population activity factors following"
)
COMMON = tuple(_COMMON.split())
# Syllables and endings of the made words.
_ONSETS = tuple(str.split("b c d f g h l m n p r s t v br cr dr fl gl pl pr sc sp st tr th ch ph"))
_VOWELS = tuple(str.split("a e i o u a e i o ea io ou"))
_CODAS = tuple(str.split("n r l s t m x nd nt st rm ct"))
_ENDINGS = tuple(str.split("tion al ic ous ity ing ed ate ine ase oid ism er s es ly ment ance ive logy osis"))
_CLOSINGS = (".", ".", ".", " [{}].", ".", ".\\n", ".", " ({}).")


@lru_cache(maxsize=8)
def vocabulary(size: int, seed: int) -> tuple[str, ...]:
    """`size` different words by falling frequency: English function words, then made ones of growing length."""
    numbers = _numbers(np.random.default_rng([seed, 1]))
    words = dict.fromkeys(COMMON)
    while len(words) < size:
        syllables = 1 + min(2, int(len(words) ** 0.5 / 60)) + next(numbers) % 2
        word = "".join(_syllable(numbers) for _ in range(syllables))
        words.setdefault(word + _ENDINGS[next(numbers) % len(_ENDINGS)] if next(numbers) % 10 < 7 else word)
    return tuple(words)


@lru_cache(maxsize=8)
def zipf(size: int, exponent: float = 1.0) -> NDArray[np.float64]:
    """The cumulated shares of the ranks 1 to `size` by Zipf and Mandelbrot: 1 / (rank + 2.7) ** exponent.

    2.7 is Mandelbrot's correction for English: without it the first word alone would be 9% of the text.
    """
    total = np.cumsum(1.0 / (np.arange(1, size + 1) + 2.7) ** exponent)
    shares: NDArray[np.float64] = total / total[-1]
    return shares


def draw(random: np.random.Generator, shares: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """`count` ranks (from 0) drawn by cumulated shares."""
    return np.searchsorted(shares, random.random(count)).astype(np.int64)


@lru_cache(maxsize=2)
def prose(seed: int, size_bytes: int, words: int) -> bytes:
    """About `size_bytes` of sentences and paragraphs from so many different words, escaped as JSON."""
    random = np.random.default_rng([seed, 2])
    count = size_bytes // 6
    tokens = np.array(vocabulary(words, seed), dtype=object)[draw(random, zipf(words), count)]
    places = random.integers(0, count, size=count // 40)
    tokens[places] = [f"{value:.3g}" for value in random.lognormal(2.0, 1.6, size=len(places))]
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


def _numbers(random: np.random.Generator) -> Iterator[int]:
    """Random numbers one by one. Asking numpy for each one would take a hundred times as long."""
    while True:
        yield from random.integers(0, 2**31, size=65536).tolist()


def _syllable(numbers: Iterator[int]) -> str:
    parts = (_ONSETS, _VOWELS, _CODAS) if next(numbers) % 5 < 2 else (_ONSETS, _VOWELS)
    return "".join(part[next(numbers) % len(part)] for part in parts)
