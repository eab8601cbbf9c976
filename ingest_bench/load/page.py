"""Locust's web page, read-only: `python -m ingest_bench.load.page HOST PORT`.

Standard input has lines of JSON with the users and figures of the load that is shown. It runs outside the client's
namespace, where browsers reach it.
"""

from __future__ import annotations

import socket
import sys
import time
from typing import Any

import flask
from locust.env import Environment
from locust.runners import STATE_RUNNING, STATE_STOPPED, LocalRunner

from ingest_bench.errors import RunFailed
from ingest_bench.load.channel import LineChannel, run_child
from ingest_bench.load.figures import EDGES_NS, LoadFigures, RequestFigures, figures_from_json

_READ_ONLY_METHODS = {"GET", "HEAD"}


class _PageRunner(LocalRunner):
    """A runner without users of its own: they are in other processes."""

    # Locust computes it from the users of the runner.
    user_count = 0


def _serve_page(environment: Environment, host: str, port: int) -> None:
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


def _show_loads(channel: LineChannel, runner: _PageRunner) -> None:
    """Show one load after the other, until the parent closes our input."""
    shown = LoadFigures()
    for line in channel.lines():
        runner.user_count = line["users"]
        if not line["users"]:
            runner.update_state(STATE_STOPPED)
            continue
        if runner.state != STATE_RUNNING:
            runner.stats.clear_all()
            runner.update_state(STATE_RUNNING)
            shown = LoadFigures()
        figures = figures_from_json(line["figures"])
        add_requests(runner.stats, line["bulks"], figures.bulks - shown.bulks)
        add_requests(runner.stats, line["queries"], figures.queries - shown.queries)
        shown = figures


def add_requests(stats: Any, name: str, new: RequestFigures) -> None:
    """Add many requests to Locust's statistics, as `StatsEntry.log` and `log_error` add one.

    Response times are the upper ends of their steps, at most 4% high.
    """
    times_ms = {int(EDGES_NS[min(step, len(EDGES_NS) - 1)]) / 1e6: count for step, count in new.steps.items()}
    if not times_ms:
        return
    for entry in (stats.get(name, "POST"), stats.total):
        entry.num_requests += new.requests
        entry.total_response_time += new.response_ns / 1e6
        entry.total_content_length += new.bytes_sent
        entry.min_response_time = min(times_ms.keys() | {entry.min_response_time or max(times_ms)})
        entry.max_response_time = max(times_ms.keys() | {entry.max_response_time})
        entry.last_request_timestamp = time.time()
        entry.num_reqs_per_sec[int(entry.last_request_timestamp)] += new.requests
        for time_ms, count in times_ms.items():
            entry.response_times[round(time_ms)] += count
    for outcome, count in new.outcomes.items():
        for _ in range(count if outcome != "ok" else 0):
            stats.log_error("POST", name, outcome)


def main() -> None:
    """Serve the page at the host and port of the arguments."""
    with run_child() as channel:
        environment = Environment(user_classes=[])
        environment.runner = runner = _PageRunner(environment)
        try:
            _serve_page(environment, sys.argv[1], int(sys.argv[2]))
        except RunFailed as error:
            channel.send({"error": str(error)})
        else:
            channel.send({"listening": True})
            _show_loads(channel, runner)


if __name__ == "__main__":
    main()
