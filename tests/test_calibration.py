from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import made_runs as made
import pytest

from ingest_bench.cli.calibrate import calibrate
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.experiment import order, spec
from ingest_bench.lab import calibration, campaign
from ingest_bench.lab.calibration import Sent
from ingest_bench.model.experiment import Plan, Run
from ingest_bench.model.results import Summary
from ingest_bench.results import layout
from ingest_bench.results.layout import Results

SENT = [
    Sent(body_bytes=4_000, processes=1, requests_per_s=5_000, cpu_percent=99),
    Sent(body_bytes=104_000, processes=1, requests_per_s=1_000, cpu_percent=98),
    Sent(body_bytes=4_000, processes=2, requests_per_s=8_000, cpu_percent=97),
]


SEEN = (sys.executable, "-c", "from ingest_bench.host import others; print(others.experiments())")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGEST_BENCH_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("body_bytes", "processes", "most"),
    [
        (1_000, 1, 5_000),  # a smaller body is no faster
        (4_000, 1, 5_000),
        (54_000, 1, 1 / ((1 / 5_000 + 1 / 1_000) / 2)),
        (104_000, 1, 1_000),
        (208_000, 1, 500),  # twice the bytes, twice the time
        (4_000, 3, 8_000),  # as many processes as were measured
    ],
)
def test_the_most_is_read_between_the_sizes_that_were_measured(body_bytes: int, processes: int, most: float) -> None:
    assert calibration.most_per_s(SENT, body_bytes, processes) == pytest.approx(most)


def test_nothing_measured_says_nothing() -> None:
    assert calibration.kept() == []
    assert calibration.most_per_s([], 4_000, 1) is None
    assert calibration.most_per_s([SENT[2]], 4_000, 1) is None


def test_what_is_kept_is_read_again() -> None:
    assert calibration.keep(SENT) == calibration.path()
    assert calibration.kept() == SENT


def test_a_damaged_file_is_no_calibration() -> None:
    calibration.keep(SENT).write_text("{")
    assert calibration.kept() == []


@pytest.mark.parametrize("name", ["body_bytes", "processes", "requests_per_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_what_no_machine_can_have_sent_is_no_calibration(name: str, value: float, tmp_path: Path) -> None:
    odd: dict[str, Any] = {name: value}
    calibration.keep([SENT[0], dataclasses.replace(SENT[1], **odd)])
    assert calibration.warnings(asking(tmp_path, "6000/s"), calibration.kept()) == ()
    assert calibration.kept() == []


def asking(folder: Path, arrivals: str, more: str = "") -> Plan:
    (folder / "x.toml").write_text(
        f'[target]\nname = "sink"\n[load]\nworkload = "nyc_taxis"\nbulk = "4000"\n{more}'
        f'[factors]\narrivals = ["{arrivals}"]\n'
    )
    return order.order(spec.load(str(folder / "x.toml")))


@pytest.mark.parametrize("arrivals", ["6000/s", "ramp 10/s..6000/s 5s", "24MB/s", "sine 4000/s 50% 1s"])
def test_a_rate_that_was_never_reached_is_said_before_the_run(arrivals: str, tmp_path: Path) -> None:
    (line,) = calibration.warnings(asking(tmp_path, arrivals), SENT)
    assert "asks for 6,000 requests/s of 4,000 bytes; this machine sent at most 5,000 with 1 load process (" in line


@pytest.mark.parametrize("arrivals", ["4900/s", "closed", "19MB/s"])
def test_a_rate_that_was_reached_is_no_news(arrivals: str, tmp_path: Path) -> None:
    assert calibration.warnings(asking(tmp_path, arrivals), SENT) == ()


def test_more_processes_may_send_more(tmp_path: Path) -> None:
    assert calibration.warnings(asking(tmp_path, "6000/s", "processes = 2\n"), SENT) == ()


def test_a_run_gives_its_rate_and_its_mean_body() -> None:
    run = Run(id="only/1", cell=made.cell(), replicate=1)
    planned = Plan(experiment="calibrate", description="", seed=1, factors=(), runs=(run,))
    summary = Summary(
        run="only/1",
        cell="only",
        replicate=1,
        levels={},
        state="measured",
        reason="",
        values={"requests_answered": 300, "bytes_measured": 1_200_000, "generator_cpu_percent": 98.0},
        measure_start_ns=0,
        measure_end_ns=3 * 10**9,
    )
    (sent,) = calibration.measured(planned, [summary, dataclasses.replace(summary, state="invalid")])
    assert (sent.body_bytes, sent.requests_per_s, sent.processes) == (4_000, 100, 1)


def test_a_calibration_holds_its_folder_and_can_be_seen_by_other_experiments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def carried_out(results: Results, *_: object) -> list[Summary]:
        with pytest.raises(SpecError, match="another ingest-bench carries out these runs now"), results.held():
            pass
        said.append(subprocess.run(SEEN, capture_output=True, text=True, check=True).stdout)
        raise RunFailed("enough")

    monkeypatch.setattr(campaign, "preflight", lambda *_: ())
    monkeypatch.setattr(campaign, "fetch", lambda *_: None)
    monkeypatch.setattr(campaign, "carry_out", carried_out)
    with pytest.raises(RunFailed, match="enough"):
        calibrate(out=tmp_path / "out")
    (folder,) = (tmp_path / "out" / "calibrate").iterdir()
    assert str(folder)[-40:] in said[0]
    with layout.Results(folder).held():
        pass
