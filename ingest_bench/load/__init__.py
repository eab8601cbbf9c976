"""The load: Locust users in child processes, which send prebuilt bodies and keep every sample.

`start(plan, enter)` starts the children; nothing here imports Locust or gevent, only the children do.

    supervisor.py    one start, one report, for all workers    plan.py         what a worker is told (a JSON file)
    workers.py       a worker that is a child of ours          worker.py       that child: Locust as a library
    remote.py        a worker on another machine               agent.py        that machine's side; wire.py between
    work.py          what the users of a worker share          users/          one file a protocol; sender.py: a ticket
    arrivals.py      when requests are due (pure)              tickets.py      who gives them to users; alarm.py
    connection.py    HTTP/1.1 on a plain socket                answers.py      what an answer says (pure)
    recorder.py      every sample on disk                      health.py       how the generator itself is
    locustfile.py    the user for anybody's locustfile
"""

from __future__ import annotations

from ingest_bench.load.plan import LoadPlan
from ingest_bench.load.remote import Remote, RemoteWorker, joined
from ingest_bench.load.supervisor import LoadProcess, Progress, start

__all__ = ["LoadPlan", "LoadProcess", "Progress", "Remote", "RemoteWorker", "joined", "start"]
