"""The documents of an earlier run: a server that starts finds them in its files."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

from ingest_bench import probes
from ingest_bench.errors import InvalidRun, RunFailed
from ingest_bench.lab import fault_stage, steps, why_failed
from ingest_bench.lab.server import running_server
from ingest_bench.lab.steps.parts import Procedure
from ingest_bench.load import supervisor
from ingest_bench.load.plan import LoadPlan
from ingest_bench.model.experiment import Cell
from ingest_bench.model.host_settings import HostSettings
from ingest_bench.model.load import Arrivals, LoadOptions, WorkerReport
from ingest_bench.model.network import Profile
from ingest_bench.results.run_folder import RunFolder

# The middle of what ten digits can say: no document of the run itself has such an id.
_FIRST_ID = 5 * 10**9


def leave(cell: Cell, folder: RunFolder, *, netem: str, java_home: Path | None) -> None:
    """The homes of the cell's server have its `earlier_documents` in their files; nothing runs any more.

    The same server takes them from the same users as fast as it can, over links that nothing shapes, with no probe and
    no fault, writes them to its files and is ended in order. RunFailed when one of them was not acknowledged.
    """
    first = folder.earlier
    first.create()
    try:
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(
                running_server.opened(
                    _alone(cell),
                    first,
                    _untimed,
                    lambda jdk, raw: probes.jvm_options((), raw, jdk.version),
                    netem=netem,
                    java_home=java_home,
                )
            )
            to_do = steps.of(_alone(cell), server.place, first.load, may_delete=True, target=server.target)

            def send(plans: Sequence[LoadPlan], _: object) -> list[WorkerReport]:
                sender = supervisor.start(dataclasses.replace(plans[0], first_id=_FIRST_ID), server.enter)
                stack.callback(sender.stop)
                return [sender.wait(lambda _: None)]

            try:
                ask = functools.partial(server.target.ask, server.http)
                steps.carry_out(to_do, ask, send, _untimed, first.load)
                fault_stage.flush(server, to_do.indices)
            except RunFailed as error:
                found = why_failed.out_of_memory(first, server, lived_on=not server.ended())
                said = f"out of memory, {found.sentence}" if found else why_failed.reason(first, server, error)
                raise RunFailed(said) from None
    except RunFailed as error:
        raise RunFailed(f"target.earlier_documents: the run before failed: {error}") from None
    folder.take_homes(first, cell.target.nodes)


def check(cell: Cell, to_do: Procedure, counted: int | None) -> None:
    """InvalidRun where the cell's server has fewer documents at its start than it is to have, as far as it is known."""
    wanted = cell.target.earlier_documents
    if to_do.indices_known and counted is not None and counted < wanted:
        raise InvalidRun(
            f"target.earlier_documents: the server has {counted:,} documents at its start, {wanted:,} were asked for; "
            "where they have ids of their own, one that comes again is no other document"
        )


def _alone(cell: Cell) -> Cell:
    """The cell whose run leaves the documents of another one's start. Each of them is a new one."""
    usual = LoadOptions()
    options = dataclasses.replace(
        cell.load,
        warm_up_ns=0,
        ramp_up_ns=0,
        think_time_ns=0,
        action=dataclasses.replace(cell.load.action, conflicts="none"),
        arrivals=Arrivals(),
        measure_documents=cell.target.earlier_documents,
        query_users=0,
        query_arrivals=Arrivals(),
        timeout_ns=usual.timeout_ns,
        retries=usual.retries,
        on_error="abort",
        abort=(),
    )
    target = dataclasses.replace(cell.target, earlier_documents=0)
    plain = Profile(name="unshaped")
    return dataclasses.replace(
        cell,
        target=target,
        load=options,
        network=plain,
        peers=plain if cell.peers else None,
        host=HostSettings(),
        faults=(),
        probes=(),
    )


def _untimed(_: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()
