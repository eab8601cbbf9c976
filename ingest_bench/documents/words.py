"""Seeded English-like vocabulary and prose with Zipf's law, which analyses and compresses like scientific papers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The most frequent words of English prose, by rank.
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
# Parts of scientific words.
_FRONTS = tuple(
    str.split(
        "anti bi cardio chemo co cyto de di epi ex gluco hetero homo hydro hyper hypo immuno in inter intra iso"
        " macro meta micro mono multi myo neo neuro non osteo para patho peri phospho photo poly pre pro pseudo re"
        " sub super thermo trans tri un vaso"
    )
)
_ROOTS = tuple(
    str.split(
        "act bact bol cell chrom clon corr crypt cycl cyt derm dict duct dyn fer fil flam form fract fus gen glyc"
        " graph gress hist kin lat lig lipid log lymph lys mar medi metr morph mut nephr neur not nucle op osm oxid"
        " path phen phil plas pol port prote rad rel rept ruct sect sens sequ sist solv som spect stat stim stru"
        " synth tact tec tens termin tox tract troph vas vect ven vert vir vis"
    )
)
_ENDINGS = tuple(
    str.split(
        "s ed ing ion ions al ic ate ated ates ity ive ous ment able ase ases ism ly ically osis ology er ent ance"
        " in ine ide"
    )
)
# Parts of place names.
_HEADS = tuple(
    str.split(
        "al an ba bar bel ber bor bra bu ca car cha co da del do dor el er fa fer ga gor gra ha hal he ho is ja ka"
        " kal kar ko kra la lan le li lo lu ma mar me mo mu na ne ni no o ol or pa par pe po ra re ri ro ru sa san"
        " se si so ta tar te to tra u va ve vi vo wa we wi ya za"
    )
)
_TAILS = tuple(
    str.split(
        "berg bo burg by da dorf feld ford gan ham heim ino ka lia lo na nagar ne no ov pur ra ria ro sk stad stan"
        " ta ton ville wa wiler"
    )
)
_CLOSINGS = (".", ".", ".", " [{}].", ".", ".\\n", ".", " ({}).")

Style = Literal["papers", "places"]


@lru_cache(maxsize=8)
def vocabulary(size: int, seed: int, style: Style = "papers") -> tuple[str, ...]:
    """Return *size* different words by falling frequency: of papers (English function words first) or place names."""
    numbers = _random_numbers(np.random.default_rng([seed, 1]))
    build = _scientific_word if style == "papers" else _place_name
    words = dict.fromkeys(COMMON if style == "papers" else ())
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
    parts = [*(_FRONTS,) * fronts, _ROOTS, *(() if next(numbers) % 8 == 0 else (_ENDINGS,))]
    return "".join(part[next(numbers) % len(part)] for part in parts)


def _place_name(numbers: Iterator[int], rank: int) -> str:
    heads = 1 + min(2, next(numbers) % (2 + rank // 8000))
    parts = [*(_HEADS,) * heads, _TAILS]
    return "".join(part[next(numbers) % len(part)] for part in parts)
