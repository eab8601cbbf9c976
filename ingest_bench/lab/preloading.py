"""The documents of an earlier run, which a server finds in its files when it starts (`target.preloaded_documents`)."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

from ingest_bench.errors import InvalidRun, RunFailed
from ingest_bench.lab import planning
from ingest_bench.lab.planning import Procedure
from ingest_bench.lab.server import running_server
from ingest_bench.lab.server.running_server import ServerSetup
from ingest_bench.load import supervisor
from ingest_bench.load.plan import LoadPlan
from ingest_bench.model.experiment import Cell, HostSettings
from ingest_bench.model.load import Arrivals, LoadOptions
from ingest_bench.model.network import Profile
from ingest_bench.model.samples import WorkerReport
from ingest_bench.results.layout import RunFolder

# The middle of the range of ten digits: no document of the run itself has such an id.
_FIRST_ID = 5 * 10**9


def write_documents(cell: Cell, folder: RunFolder, netem: str, java_home: Path | None) -> None:
    """Write the cell's `preloaded_documents` into the homes of its server, by a separate run of it.

    The same users send them as fast as possible over unshaped links, without probes and faults. The server flushes
    them to its files and is stopped. RunFailed if a document was not acknowledged.
    """
    earlier = folder.earlier
    earlier.create()
    cell = _preloading_cell(cell)
    setup = ServerSetup(netem=netem, java_home=java_home)
    try:
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(running_server.open_server(cell, earlier, setup))
            steps = planning.build_procedure(cell, server.address, earlier.load, may_delete=True, target=server.target)

            def send(plans: Sequence[LoadPlan], _: object) -> list[WorkerReport]:
                load = supervisor.start_load(dataclasses.replace(plans[0], first_id=_FIRST_ID), server.enter)
                stack.callback(load.stop)
                return [load.wait(lambda _: None)]

            try:
                request = functools.partial(server.target.execute, server.http)
                planning.execute(steps, request, send, setup.phase, earlier.load)
                server.flush(steps.indices)
            except RunFailed as error:
                is_alive = not server.ended_nodes()
                oom = running_server.find_out_of_memory(earlier, server, is_alive=is_alive)
                failure = running_server.describe_failure(earlier, server, error)
                raise RunFailed(f"out of memory, {oom.description}" if oom else failure) from None
    except RunFailed as error:
        raise RunFailed(f"target.preloaded_documents: the earlier run failed: {error}") from None
    folder.move_homes_from(earlier, cell.target.nodes)


def check_documents(cell: Cell, steps: Procedure, counted: int | None) -> None:
    """Raise InvalidRun if the server is known to have fewer documents at its start than requested."""
    requested = cell.target.preloaded_documents
    if steps.indices_known and counted is not None and counted < requested:
        raise InvalidRun(
            f"target.preloaded_documents: the server has {counted:,} documents at its start instead of {requested:,}. "
            "Documents with ids of their own replace those with the same id."
        )


def _preloading_cell(cell: Cell) -> Cell:
    """Return the cell of the earlier run. Each of its documents is a new one."""
    defaults = LoadOptions()
    options = dataclasses.replace(
        cell.load,
        warm_up_ns=0,
        ramp_up_ns=0,
        think_time_ns=0,
        action=dataclasses.replace(cell.load.action, conflicts="none"),
        arrivals=Arrivals(),
        measure_documents=cell.target.preloaded_documents,
        query_users=0,
        query_arrivals=Arrivals(),
        timeout_ns=defaults.timeout_ns,
        retries=defaults.retries,
        on_error="abort",
        abort=(),
    )
    unshaped = Profile(name="unshaped")
    return dataclasses.replace(
        cell,
        target=dataclasses.replace(cell.target, preloaded_documents=0),
        load=options,
        network=unshaped,
        peers=unshaped if cell.peers else None,
        host=HostSettings(),
        faults=(),
        probes=(),
    )
