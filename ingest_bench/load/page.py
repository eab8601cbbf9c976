"""Locust's web page, read-only, and the statistics it shows, taken from the samples.

As a program (`python -m ingest_bench.load.page HOST PORT`) it shows the loads of this machine: standard input has one
line of JSON per load, with its users and sample files. It runs outside the client's namespace, where browsers reach it.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flask
import gevent
import numpy as np
from locust.env import Environment
from locust.runners import STATE_RUNNING, STATE_STOPPED, LocalRunner

from ingest_bench.errors import RunFailed
from ingest_bench.load.channel import LineChannel, die_with_parent
from ingest_bench.load.figures import SampleTail
from ingest_bench.model.samples import OUTCOMES, response_times_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_READ_ONLY_METHODS = {"GET", "HEAD"}
_UPDATE_S = 1.0


def show_page(environment: Environment, host: str, port: int) -> None:
    """Serve Locust's page there. Requests that would change the load get 403."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        # Without the address that Python adds to the reason.
        reason = str(error.strerror).partition(" (")[0]
        raise RunFailed(
            f"{host}:{port}: Locust's page cannot be shown there ({reason}). Choose another port."
        ) from None
    page: Any = environment.create_web_ui(host, port, delayed_start=True)

    def refuse_changes() -> None:
        if flask.request.method not in _READ_ONLY_METHODS:
            flask.abort(403, "this load is controlled by `ingest-bench run`; the page is read-only")

    page.app.before_request(refuse_changes)
    page.start()


class PageStatistics:
    """Locust's statistics of requests, updated from sample files, so that they cost no CPU per request."""

    def __init__(self, environment: Environment, sample_files: Mapping[str, Iterable[Path]]) -> None:
        self._stats = environment.stats
        self._tails = [(name, SampleTail(file)) for name, files in sample_files.items() for file in files]

    def update(self) -> None:
        """Add the samples that were written since the last update."""
        realtime_minus_monotonic_ns = time.time_ns() - time.monotonic_ns()
        for name, tail in self._tails:
            for samples in tail:
                for entry in (self._stats.get(name, "POST"), self._stats.total):
                    _add_samples(entry, samples, realtime_minus_monotonic_ns)
                for outcome in samples["outcome"][samples["outcome"] != 0].tolist():
                    self._stats.log_error("POST", name, OUTCOMES[outcome])


def _add_samples(entry: Any, samples: np.ndarray[Any, Any], realtime_minus_monotonic_ns: int) -> None:
    """Add many requests as `StatsEntry.log` adds one. `log_error` counts the errors."""
    times_ms = response_times_ns(samples) / 1e6
    entry.num_requests += len(samples)
    entry.total_response_time += float(times_ms.sum())
    shortest, longest = float(times_ms.min()), float(times_ms.max())
    entry.min_response_time = shortest if entry.min_response_time is None else min(entry.min_response_time, shortest)
    entry.max_response_time = max(entry.max_response_time, longest)
    entry.total_content_length += int(samples["bytes_sent"].sum())
    seconds = (samples["done_ns"] + realtime_minus_monotonic_ns) // 10**9
    entry.last_request_timestamp = float(seconds.max())
    for second, count in _count_values(seconds):
        entry.num_reqs_per_sec[second] += count
    for rounded_ms, count in _count_values(_round_times(times_ms)):
        entry.response_times[int(rounded_ms)] += count


def _count_values(values: np.ndarray[Any, Any]) -> Iterator[tuple[Any, int]]:
    distinct, counts = np.unique(values, return_counts=True)
    return zip(distinct.tolist(), counts.tolist(), strict=True)


def _round_times(times_ms: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Round as Locust does (`StatsEntry._log_response_time`): to two digits from 100 ms on."""
    return np.select(
        [times_ms < 100, times_ms < 1000, times_ms < 10000],
        [np.rint(times_ms), np.rint(times_ms / 10) * 10, np.rint(times_ms / 100) * 100],
        np.rint(times_ms / 1000) * 1000,
    )


class _PageRunner(LocalRunner):
    """A runner without users of its own: they are in other processes."""

    shown_users = 0

    @property
    def user_count(self) -> int:
        """Number of users of the load that is shown."""
        return self.shown_users


def _show_loads(channel: LineChannel, runner: _PageRunner) -> None:
    """Show one load after the other, until the parent closes our input."""
    updating: gevent.Greenlet[..., Any] | None = None
    for line in channel.lines():
        if updating is not None:
            updating.kill()
            updating = None
        runner.shown_users = line["users"]
        if not line["users"]:
            runner.update_state(STATE_STOPPED)
            continue
        runner.stats.clear_all()
        runner.update_state(STATE_RUNNING)
        files = {name: [Path(file) for file in names] for name, names in line["sample_files"].items()}
        updating = gevent.spawn(_update_forever, PageStatistics(runner.environment, files))


def _update_forever(statistics: PageStatistics) -> None:
    while True:
        statistics.update()
        gevent.sleep(_UPDATE_S)


def main() -> None:
    """Serve the page at the host and port of the arguments."""
    die_with_parent()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    channel = LineChannel()
    environment = Environment(user_classes=[])
    environment.runner = runner = _PageRunner(environment)
    try:
        show_page(environment, sys.argv[1], int(sys.argv[2]))
    except RunFailed as error:
        channel.send({"error": str(error)})
    else:
        channel.send({"listening": True})
        _show_loads(channel, runner)
    channel.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
