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

from typing import TYPE_CHECKING

from ingest_bench.front_page import deferred

if TYPE_CHECKING:
    from ingest_bench.load.fleet.roster import Fleet, Remote, joined, local
    from ingest_bench.load.live.exporter import Exporter, exported
    from ingest_bench.load.plan import LoadPlan
    from ingest_bench.load.supervisor import LoadProcess, Progress, start

__all__ = ["Exporter", "Fleet", "LoadPlan", "LoadProcess", "Progress", "Remote", "exported", "joined", "local", "start"]
__getattr__ = deferred(__name__, __all__, "plan", "supervisor", "fleet.roster", "live.exporter")
