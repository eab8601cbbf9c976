"""Locust's own page, to look at while a load runs; and the figures that it shows, taken from the samples."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import flask
import numpy as np

from ingest_bench.errors import RunFailed
from ingest_bench.load.live.figures import Tail
from ingest_bench.model.samples import OUTCOMES, response_times_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from locust.env import Environment

    from ingest_bench.load.plan import LoadPlan

_LOOKING = {"GET", "HEAD"}


def show(environment: Environment, host: str, port: int) -> None:
    """Locust's page, served there. Looking is all that it is for: what would change the load is answered by 403."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        # Python adds the address, which is said already.
        why = str(error.strerror).partition(" (")[0]
        raise RunFailed(f"{host}:{port}: Locust's page cannot be shown there ({why})") from None
    page: Any = environment.create_web_ui(host, port, delayed_start=True)

    def only_look() -> None:
        if flask.request.method not in _LOOKING:
            flask.abort(403, "this load is led by `ingest-bench run`; the page only shows it")

    page.app.before_request(only_look)
    page.start()


class Figures:
    """Locust's statistics of this worker's requests, from what the recorder has written: no request pays for them."""

    def __init__(self, environment: Environment, plan: LoadPlan) -> None:
        self._stats = environment.stats
        self._files = {plan.path: Tail(plan.samples)}
        if plan.own_query_users:
            self._files[plan.search_path] = Tail(plan.query_samples)

    def update(self, realtime_minus_monotonic_ns: int) -> None:
        """With the samples that were written since the last time."""
        for name, tail in self._files.items():
            for samples in tail:
                for entry in (self._stats.get(name, "POST"), self._stats.total):
                    _add(entry, samples, realtime_minus_monotonic_ns)
                self._note_errors(name, samples)

    def _note_errors(self, name: str, samples: np.ndarray[Any, Any]) -> None:
        for outcome in samples["outcome"][samples["outcome"] != 0].tolist():
            self._stats.log_error("POST", name, OUTCOMES[outcome])


def _add(entry: Any, samples: np.ndarray[Any, Any], realtime_minus_monotonic_ns: int) -> None:
    """What `StatsEntry.log` adds for each request, for many at once. Errors are counted by `log_error`."""
    times_ms = response_times_ns(samples) / 1e6
    entry.num_requests += len(samples)
    entry.total_response_time += float(times_ms.sum())
    shortest, longest = float(times_ms.min()), float(times_ms.max())
    entry.min_response_time = shortest if entry.min_response_time is None else min(entry.min_response_time, shortest)
    entry.max_response_time = max(entry.max_response_time, longest)
    entry.total_content_length += int(samples["bytes_sent"].sum())
    seconds = (samples["done_ns"] + realtime_minus_monotonic_ns) // 10**9
    entry.last_request_timestamp = float(seconds.max())
    for second, count in _counted(seconds):
        entry.num_reqs_per_sec[second] += count
    for rounded, count in _counted(_rounded(times_ms)):
        entry.response_times[int(rounded)] += count


def _counted(values: np.ndarray[Any, Any]) -> Iterator[tuple[Any, int]]:
    found, counts = np.unique(values, return_counts=True)
    return zip(found.tolist(), counts.tolist(), strict=True)


def _rounded(times_ms: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As Locust rounds (`StatsEntry._log_response_time`): to two digits above 100 ms."""
    return np.select(
        [times_ms < 100, times_ms < 1000, times_ms < 10000],
        [np.rint(times_ms), np.rint(times_ms / 10) * 10, np.rint(times_ms / 100) * 100],
        np.rint(times_ms / 1000) * 1000,
    )
