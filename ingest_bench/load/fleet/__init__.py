"""The workers of a load, on this machine or on many: Locust's own master and workers over ZeroMQ with CURVE keys.

Whoever measures imports `roster` alone: it starts the processes in which Locust and gevent are.

    keys.py      who may join: key files             curve.py     Locust's sockets, encrypted and authenticated
    roster.py    the fleet as `run` sees it          member.py    one worker of it
    json_child.py   what starts its processes        fleet_worker.py   a worker: Locust's WorkerRunner, one load
    master.py    that child: Locust's MasterRunner
    join.py      the fleet as another machine does   transfer.py  samples on their way, and clocks
    gate.py      strangers at its port, bounded
    web.py       Locust's page, to look at           dispatch.py   which users each worker has
    messages.py  what a worker may say               consent.py    what its machine gives to whom
"""
