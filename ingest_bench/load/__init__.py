"""The load: Locust users in child processes, which send prebuilt bodies and keep every sample.

`start(plan, enter)` starts the children; nothing here imports Locust or gevent, only the children do.

    supervisor.py    one start, one report, for all workers    plan.py         what a worker is told
    together.py      several loads at the same time
    fleet/           Locust's master and workers, anywhere     worker.py       what a worker does
    work.py          what the users of a worker share          users/tries.py  a ticket to its end
    arrivals.py      when requests are due (pure)              tickets.py      who gives them to users; alarm.py
    recorder.py      every sample on disk                      health.py       how the generator itself is
    live/figures.py  what it has done so far                   live/exporter.py    figures for a dashboard
    reports.py       several reports as one                    live/giving_up.py   whether it is hopeless (pure)
    locustfile.py    the user for anybody's locustfile

How a body goes over the wire and what an answer means, `protocols/` knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ingest_bench.load.fleet.roster import Fleet, Remote, joined, local
    from ingest_bench.load.live.exporter import Exporter, exported
    from ingest_bench.load.plan import LoadPlan
    from ingest_bench.load.supervisor import LoadProcess, Progress, start

__all__ = ["Exporter", "Fleet", "LoadPlan", "LoadProcess", "Progress", "Remote", "exported", "joined", "local", "start"]


def __getattr__(name: str) -> Any:
    """What is asked for. Each child imports this package too, with nothing of it: a load begins once they have."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ingest_bench.load import plan, supervisor  # noqa: PLC0415
    from ingest_bench.load.fleet import roster  # noqa: PLC0415
    from ingest_bench.load.live import exporter  # noqa: PLC0415

    return next(getattr(home, name) for home in (plan, roster, supervisor, exporter) if name in vars(home))
