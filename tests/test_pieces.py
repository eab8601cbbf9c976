"""Samples that are read in pieces give the numbers that they give at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import made_runs as made
import numpy as np
import pytest

from ingest_bench.analysis.numbers import quantiles
from ingest_bench.analysis.run import over_time, steady
from ingest_bench.analysis.run.sample_columns import Samples
from ingest_bench.analysis.run.summary import summarise
from ingest_bench.model.samples import OUTCOMES, SAMPLE
from ingest_bench.results import sample_files
from ingest_bench.results.sample_files import SampleFiles

SECONDS = made.WARM_UP_S + made.MEASURE_S


def workers(count: int, each: int, seed: int = 1) -> list[Samples]:
    """What the workers of a load wrote, by the moment each ticket ended; what was never sent comes last."""
    draw = np.random.default_rng(seed)
    found = []
    for number in range(count):
        one = np.zeros(each, dtype=SAMPLE)
        one["done_ns"] = made.START + np.sort(draw.integers(0, (SECONDS + 1) * made.SECOND, each))
        one["planned_ns"] = one["done_ns"] - np.exp(draw.normal(17, 1.5, each)).astype(np.int64)
        one["sent_ns"] = one["planned_ns"] + 1000
        one["documents"] = one["documents_acked"] = draw.integers(1, 200, each)
        one["bytes_sent"] = one["documents"] * 500
        one["attempts"], one["status"], one["user"] = 1, 200, number
        failed = draw.random(each) < 0.1
        one["outcome"][failed], one["documents_acked"][failed] = OUTCOMES.index("timeout"), 0
        unsent = slice(each - each // 50, each)
        one["attempts"][unsent] = one["bytes_sent"][unsent] = one["documents_acked"][unsent] = 0
        one["outcome"][unsent] = OUTCOMES.index("cut-off")
        one["done_ns"][unsent] = made.START + SECONDS * made.SECOND - 10**8 * (number + 1)
        found.append(one)
    return found


def on_disk(folder: Path, parts: Sequence[Samples]) -> SampleFiles:
    paths = [folder / f"samples-{number}.bin" for number in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        path.write_bytes(part.tobytes() + b"cut off")
    return SampleFiles(paths)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_a_load_that_is_read_in_pieces_has_the_same_summary(
    tmp_path: Path, count: int, is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = workers(count, 5000)
    whole = np.concatenate(parts)
    files = on_disk(tmp_path, parts)
    report = made.report(is_open=is_open)
    expected = summarise(made.record(), made.cell(), whole, report, made.measured(), queries=whole)
    monkeypatch.setattr(sample_files, "_PIECE_RECORDS", 1500)
    monkeypatch.setattr(sample_files, "_LEAST_RECORDS", 100)
    monkeypatch.setattr(quantiles, "_FIT", 50)
    monkeypatch.setattr(over_time, "_LATE_S", 2)
    assert len(list(files.pieces())) > 3
    found = summarise(made.record(), made.cell(), files, report, made.measured(), queries=files)
    assert found.values == pytest.approx(expected.values)
    assert (found.state, found.reason) == (expected.state, expected.reason)
    for name, series in expected.series.items():
        assert found.series[name].at_ns == series.at_ns
        assert found.series[name].values == pytest.approx(series.values)


def test_no_piece_has_a_sample_from_before_what_the_one_before_called_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = workers(3, 2000)
    for part in parts:
        part.sort(order="done_ns")
    files = on_disk(tmp_path, parts)
    monkeypatch.setattr(sample_files, "_PIECE_RECORDS", 900)
    monkeypatch.setattr(sample_files, "_LEAST_RECORDS", 100)
    pieces = list(files.pieces())
    assert sum(len(samples) for samples, _ in pieces) == len(files) == 6000
    for (_, settled_ns), (samples, _) in itertools.pairwise(pieces):
        assert settled_ns is not None
        assert samples["done_ns"].min() >= settled_ns
    assert pieces[-1][1] is None
    assert sorted(np.concatenate([samples for samples, _ in pieces]).tolist()) == sorted(np.concatenate(parts).tolist())


def test_samples_without_a_file_and_files_without_a_sample_are_none(tmp_path: Path) -> None:
    for files in (SampleFiles([]), on_disk(tmp_path, [np.empty(0, dtype=SAMPLE)] * 2)):
        assert len(files) == 0
        assert [len(samples) for samples, _ in files.pieces()] == [0]
        assert over_time.series(files, made.report()) == {}
        assert steady.of_load(files, made.report()).reason == "nothing was sent"


DRAW = np.random.default_rng(7)


@pytest.mark.parametrize(
    "values",
    [
        DRAW.integers(0, 10**12, 5000),
        np.exp(DRAW.normal(17, 3, 5000)).astype(np.int64),
        np.full(5000, 123_456_789),
        np.repeat(np.array([5, 5, 5, 6, 10**15]), 1000),
        np.arange(5000) - 2500,
        np.array([-(2**63), 2**63 - 1] * 2500),
        np.array([42]),
    ],
    ids=["even", "skewed", "all alike", "a few", "below zero", "the ends of a number", "one"],
)
@pytest.mark.parametrize("fit", [1 << 20, 100, 1])
def test_percentiles_are_exact_however_the_values_lie_and_however_few_fit_into_memory(
    values: Samples, fit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantiles, "_FIT", fit)
    percents = (0, 0.1, 1, 50, 90, 99, 99.9, 99.99, 100)

    def passes() -> Iterator[Mapping[str, Samples]]:
        for start in range(0, len(values), 700):
            yield {"some": values[start : start + 700], "none": values[:0]}

    found = quantiles.percentiles(passes, {"some": percents, "none": (50,)})
    ordered = np.sort(values)
    known = [percent for percent in percents if percent == 100 or len(values) * (100 - Fraction(str(percent))) >= 100]
    assert {percent for kind, percent in found if kind == "some"} == set(known)
    for percent in known:
        # The least value that at least so many percent are not above. numpy's inverted_cdf rounds: of 2,000 values
        # its 99.9th percentile is the 1,999th.
        place = math.ceil(Fraction(str(percent)) * len(values) / 100) - 1
        assert found["some", percent] == ordered[max(0, place)]
    assert ("none", 50) not in found
