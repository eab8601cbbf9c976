"""Samples that are read in batches give the same numbers as an array."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import example_runs as made
import numpy as np
import pytest

from ingest_bench.analysis import quantiles
from ingest_bench.analysis.run import sample_columns, steady
from ingest_bench.analysis.run.sample_columns import Samples
from ingest_bench.analysis.run.summary import summarise
from ingest_bench.model.samples import OUTCOMES, SAMPLE
from ingest_bench.results import layout
from ingest_bench.results.layout import SampleFiles

SECONDS = made.WARM_UP_S + made.MEASURE_S


def workers(count: int, size: int, seed: int = 1) -> list[Samples]:
    """Return the samples of several workers by their end, unsent arrivals last."""
    draw = np.random.default_rng(seed)
    result = []
    for number in range(count):
        samples = np.zeros(size, dtype=SAMPLE)
        samples["done_ns"] = made.START + np.sort(draw.integers(0, (SECONDS + 1) * made.SECOND, size))
        samples["scheduled_ns"] = samples["done_ns"] - np.exp(draw.normal(17, 1.5, size)).astype(np.int64)
        samples["sent_ns"] = samples["scheduled_ns"] + 1000
        samples["documents"] = samples["documents_acked"] = draw.integers(1, 200, size)
        samples["bytes_sent"] = samples["documents"] * 500
        samples["attempts"], samples["status"], samples["user"] = 1, 200, number
        failed = draw.random(size) < 0.1
        samples["outcome"][failed], samples["documents_acked"][failed] = OUTCOMES.index("timeout"), 0
        unsent = slice(size - size // 50, size)
        samples["attempts"][unsent] = samples["bytes_sent"][unsent] = samples["documents_acked"][unsent] = 0
        samples["outcome"][unsent] = OUTCOMES.index("cut-off")
        samples["done_ns"][unsent] = made.START + SECONDS * made.SECOND - 10**8 * (number + 1)
        result.append(samples)
    return result


def on_disk(folder: Path, parts: Sequence[Samples]) -> SampleFiles:
    paths = [folder / f"samples-{number}.bin" for number in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        path.write_bytes(part.tobytes() + b"cut off")
    return SampleFiles(paths)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_load_read_in_batches_has_the_same_summary(
    tmp_path: Path, count: int, is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = workers(count, 5000)
    combined = np.concatenate(parts)
    files = on_disk(tmp_path, parts)
    report = made.report(is_open_loop=is_open)
    expected = summarise(made.inputs(samples=combined, report=report, queries=combined))
    monkeypatch.setattr(layout, "_BATCH_RECORDS", 1500)
    monkeypatch.setattr(layout, "_MIN_BATCH_RECORDS", 100)
    monkeypatch.setattr(sample_columns, "_LATE_S", 2)
    assert len(list(files.batches())) > 3
    result = summarise(made.inputs(samples=files, report=report, queries=files))
    assert result.values == pytest.approx(expected.values)
    assert (result.state, result.reason) == (expected.state, expected.reason)
    for name, series in expected.series.items():
        assert result.series[name].at_ns == series.at_ns
        assert result.series[name].values == pytest.approx(series.values)


def test_no_request_ended_before_the_first_one_of_an_earlier_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = workers(3, 2000)
    for part in parts:
        part.sort(order="done_ns")
    monkeypatch.setattr(layout, "_BATCH_RECORDS", 900)
    monkeypatch.setattr(layout, "_MIN_BATCH_RECORDS", 100)
    files = on_disk(tmp_path, parts)
    pieces = list(files.batches())
    assert len(files) == 6000
    for earlier, later in itertools.pairwise(pieces):
        assert later["done_ns"].min() >= earlier["done_ns"][0]
    assert sorted(np.concatenate(pieces).tolist()) == sorted(np.concatenate(parts).tolist())


def test_missing_and_empty_sample_files_have_no_samples(tmp_path: Path) -> None:
    for files in (SampleFiles([]), on_disk(tmp_path, [np.empty(0, dtype=SAMPLE)] * 2)):
        assert len(files) == 0
        assert [len(samples) for samples in files.batches()] == [0]
        assert sample_columns.load_series(files, made.report()) == {}
        assert steady.find_steady_start(files, made.report()).reason == "nothing was sent"


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
def test_percentiles_are_exact_for_all_distributions(values: Samples) -> None:
    percents = (0, 0.1, 1, 50, 90, 99, 99.9, 99.99, 100)

    def passes() -> Iterator[Mapping[str, Samples]]:
        for start in range(0, len(values), 700):
            yield {"some": values[start : start + 700], "none": values[:0]}

    result = quantiles.percentiles(passes, {"some": percents, "none": (50,)})
    ordered = np.sort(values)
    defined = [percent for percent in percents if percent == 100 or len(values) * (100 - Fraction(str(percent))) >= 100]
    assert {percent for kind, percent in result if kind == "some"} == set(defined)
    for percent in defined:
        # The least value with at least this percentage at or below it. numpy's inverted_cdf rounds: of 2,000 values
        # its 99.9th percentile is the 1,999th.
        place = math.ceil(Fraction(str(percent)) * len(values) / 100) - 1
        assert result["some", percent] == ordered[max(0, place)]
    assert ("none", 50) not in result
