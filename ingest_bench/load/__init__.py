"""The load: Locust users in child processes, which send prebuilt bodies and keep every sample.

`start(plan, enter)` starts the children; nothing here imports Locust or gevent, only the children do.

    plan.py          what a child is told (a JSON file)      worker.py      the child: Locust as a library
    supervisor.py    starts the children, merges reports     work.py        what the users of one child share
    tickets.py       when the next request is due            users/         one file a protocol
    connection.py    HTTP/1.1 on a plain socket              answers.py     what an answer says (pure)
    recorder.py      every sample on disk                    supply.py      what is sent
"""

from __future__ import annotations

from ingest_bench.load.plan import LoadPlan
from ingest_bench.load.remote import Remote
from ingest_bench.load.supervisor import LoadProcess, Progress, start

__all__ = ["LoadPlan", "LoadProcess", "Progress", "Remote", "start"]
