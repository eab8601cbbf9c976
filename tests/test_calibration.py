from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import example_runs as made
import example_summaries
import pytest

from ingest_bench.cli.run import calibrate
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.experiment import spec
from ingest_bench.lab import calibration, campaign
from ingest_bench.lab.calibration import SendRate
from ingest_bench.model.experiment import Plan, Run
from ingest_bench.model.results import Summary
from ingest_bench.results import layout
from ingest_bench.results.layout import Results

SENT = [
    SendRate(body_bytes=4_000, processes=1, requests_per_s=5_000, cpu_percent=99),
    SendRate(body_bytes=104_000, processes=1, requests_per_s=1_000, cpu_percent=98),
    SendRate(body_bytes=4_000, processes=2, requests_per_s=8_000, cpu_percent=97),
]


LIST = (sys.executable, "-c", "from ingest_bench.host import cpu; print(cpu.list_other_experiments())")


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
def test_maximum_rate_is_interpolated_between_body_sizes(body_bytes: int, processes: int, most: float) -> None:
    assert calibration.max_requests_per_s(SENT, body_bytes, processes) == pytest.approx(most)


def test_missing_calibration_has_no_maximum_rate() -> None:
    assert calibration.load_rates() == []
    assert calibration.max_requests_per_s([], 4_000, 1) is None
    assert calibration.max_requests_per_s([SENT[2]], 4_000, 1) is None


def test_saved_rates_are_loaded_unless_the_file_is_damaged() -> None:
    assert calibration.save_rates(SENT) == calibration.calibration_path()
    assert calibration.load_rates() == SENT
    calibration.calibration_path().write_text("{")
    assert calibration.load_rates() == []


@pytest.mark.parametrize("name", ["body_bytes", "processes", "requests_per_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_impossible_rates_are_ignored(name: str, value: float, tmp_path: Path) -> None:
    odd: dict[str, Any] = {name: value}
    calibration.save_rates([SENT[0], dataclasses.replace(SENT[1], **odd)])
    assert calibration.rate_warnings(plan_with(tmp_path, "6000/s"), calibration.load_rates()) == ()
    assert calibration.load_rates() == []


def plan_with(folder: Path, arrivals: str, more: str = "") -> Plan:
    (folder / "x.toml").write_text(
        f'[target]\nname = "sink"\n[load]\nworkload = "nyc_taxis"\nbulk = "4000"\n{more}'
        f'[factors]\narrivals = ["{arrivals}"]\n'
    )
    return spec.build_plan(spec.load_experiment(str(folder / "x.toml")))


@pytest.mark.parametrize("arrivals", ["6000/s", "ramp 10/s..6000/s 5s", "24MB/s", "sine 4000/s 50% 1s"])
def test_unreached_rate_is_a_warning_before_the_run(arrivals: str, tmp_path: Path) -> None:
    (line,) = calibration.rate_warnings(plan_with(tmp_path, arrivals), SENT)
    assert "requests 6,000 requests/s of 4,000 bytes; this machine sent at most 5,000 with 1 load process (" in line


@pytest.mark.parametrize("arrivals", ["4900/s", "closed", "19MB/s"])
def test_reached_rate_is_not_a_warning(arrivals: str, tmp_path: Path) -> None:
    assert calibration.rate_warnings(plan_with(tmp_path, arrivals), SENT) == ()

    assert calibration.rate_warnings(plan_with(tmp_path, "6000/s", "processes = 2\n"), SENT) == ()


def test_rate_of_a_run_has_its_mean_body_size() -> None:
    run = Run(id="only/1", cell=made.cell(), replicate=1)
    planned = Plan(experiment="calibrate", description="", seed=1, factors=(), runs=(run,))
    values = {"requests_answered": 300, "bytes_measured": 1_200_000, "generator_cpu_percent": 98.0}
    summary = example_summaries.summary({}, values=values, measure_start_ns=0, measure_end_ns=3 * 10**9)
    (sent,) = calibration.rates_of_runs(planned, [summary, dataclasses.replace(summary, state="invalid")])
    assert (sent.body_bytes, sent.requests_per_s, sent.processes) == (4_000, 100, 1)


@pytest.mark.processes
def test_calibration_locks_its_folder_and_is_visible_to_other_experiments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []

    def carried_out(results: Results, *_: object) -> list[Summary]:
        with pytest.raises(SpecError, match="another ingest-bench executes these runs now"), results.lock():
            pass
        listed.append(subprocess.run(LIST, capture_output=True, text=True, check=True).stdout)
        raise RunFailed("enough")

    monkeypatch.setattr(campaign, "check_machine", lambda *_: ())
    monkeypatch.setattr(campaign, "fetch_servers", lambda *_: None)
    monkeypatch.setattr(campaign, "run_missing", carried_out)
    with pytest.raises(RunFailed, match="enough"):
        calibrate(results_folder=tmp_path / "out")
    (folder,) = (tmp_path / "out" / "calibrate").glob("20*")
    assert str(folder)[-40:] in listed[0]
    with layout.Results(folder).lock():
        pass
