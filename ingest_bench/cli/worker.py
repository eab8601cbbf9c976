"""`worker`: send a part of the load of a `run` on another machine, or watch a JVM there; and the options of `run`."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ingest_bench.cli import screen
from ingest_bench.cli.options import App, grouped
from ingest_bench.errors import SpecError
from ingest_bench.inputs import credentials, records
from ingest_bench.lab import planning
from ingest_bench.lab.server import reach, remote_observer
from ingest_bench.load.fleet import join, keys
from ingest_bench.load.fleet.roster import PORT, RemoteWorkers
from ingest_bench.load.fleet.transfer import Watched
from ingest_bench.model.experiment import Plan
from ingest_bench.model.target import Endpoint, TargetOptions, Url

app = App()

KEYS_VARIABLE = "INGEST_BENCH_KEYS"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of `worker`."""

    connect: Annotated[
        str | None, {"help": f"Address of the `run` to join: HOST or HOST:PORT. Default port: {PORT}."}
    ] = None
    watch: int | None = None
    may_shape: str | None = None
    key_file: Annotated[Path | None, {"envvar": KEYS_VARIABLE}] = None
    credentials_to: Annotated[str | None, {"envvar": "INGEST_BENCH_CREDENTIALS_TO"}] = None
    ca_file: Annotated[
        Path | None,
        typer.Option(help="CA certificate (PEM) of that server. Default: the certificates of this machine."),
    ] = None
    new_keys: Path | None = None
    count: int = 8


@app.command()
@grouped
def worker(context: typer.Context, options: WorkerOptions) -> None:
    """Send a part of the load of an experiment that runs on another machine, as one process.

    The worker ends with the experiment. Start one for each core that may send load (`run --workers`).

    With --watch PID it sends nothing, and watches that JVM with the probes of the experiment. Start one on the machine
    of each node of the server (`run --watchers`).

    `ingest-bench worker --new-keys DIR` creates the keys. run.key stays on the machine of `run`; each worker gets one
    of the others. Only processes with a matching key can join, and the connection is encrypted.

    A corpus (--documents, --track) must be at the same path on both machines.
    """
    if options.new_keys is not None:
        _create_keys(context, options.new_keys, options.count)
        return
    if _is_on_command_line(context, "count"):
        raise SpecError("--count requires --new-keys DIR")
    if options.connect is None:
        raise SpecError("give --connect HOST[:PORT], the address of the `run`; or --new-keys DIR to create keys")
    if options.watch is not None and (typed := _typed_options(context, ("credentials_to", "ca_file"))):
        raise SpecError(f"--watch cannot be combined with {typed}: an observer sends nothing to the server")
    server: Url | None = None
    if options.credentials_to is not None:
        server = records.read_key(TargetOptions, ("url",), options.credentials_to, "--credentials-to")
    if options.ca_file is not None and (server is None or server.scheme != "https"):
        raise SpecError("--ca-file requires --credentials-to https://HOST:PORT, the server that it vouches for")
    if options.may_shape is not None and options.watch is None:
        raise SpecError("--may-shape requires --watch PID")
    worker_keys = keys.read(keys.WorkerKeys, _require_keys(options.key_file, "worker-1.key"))
    watched = None if options.watch is None else _describe_jvm(options.watch, options.may_shape)
    for note in reach.memory_notes([] if watched is None else [watched.pid]):
        screen.print_text(f"note: {note}")
    joining = join.JoinOptions(
        master=join.parse_endpoint(options.connect),
        keys=worker_keys,
        credentials_to=server,
        ca_pem="" if options.ca_file is None else credentials.read_ca_certificates(options.ca_file),
        watched=watched,
        observer_argv=() if watched is None else remote_observer.build_argv(watched),
    )
    with join.worker_folder() as folder:
        join.run_worker(joining, folder, screen.print_text)


def _describe_jvm(pid: int, may_shape: str | None) -> Watched:
    try:
        return remote_observer.describe_jvm(pid, may_shape)
    except SpecError as error:
        text = str(error).replace("--attach", "--watch").replace("--interface", "--may-shape")
        raise SpecError(text) from None


def _create_keys(context: typer.Context, folder: Path, count: int) -> None:
    others = [param.name or "" for param in context.command.params if param.name not in ("new_keys", "count")]
    if typed := _typed_options(context, others):
        raise SpecError(f"--new-keys cannot be combined with {typed}")
    run_key, *workers = keys.write_new(folder, count)
    screen.print_text(f"{run_key}: for --keys of `ingest-bench run`; keep it on this machine")
    screen.print_text(
        f"{workers[0]} … {workers[-1].name}: one for each `ingest-bench worker --keys`; copy them there by ssh"
    )


def parse_workers(
    context: typer.Context, plans: Sequence[Plan], workers: int | None, bind: str | None, key_file: Path | None
) -> RemoteWorkers | None:
    """Return how `run` waits for remote workers and observers; None without them. Raise SpecError without keys."""
    watched = [run.cell for plan in plans for run in plan.runs if run.cell.target.watchers]
    observers = {cell.target.watchers for cell in watched}
    if workers is None and not observers:
        if bind is not None:
            raise SpecError("--bind requires --workers N or --watchers N")
        if _is_on_command_line(context, "keys"):
            raise SpecError("--keys requires --workers N or --watchers N")
        return None
    if len(observers) > 1:
        levels = ", ".join(map(str, sorted(observers)))
        raise SpecError(f"target.watchers: {levels}: the same observers watch all runs. Keep one number.")
    return RemoteWorkers(
        bind=join.parse_endpoint(bind or "127.0.0.1"),
        workers=workers or 0,
        observers=max(observers, default=0),
        probes=frozenset(name for cell in watched for name in cell.probes),
        shapes=next((_shaped_interface(cell.target) for cell in watched if cell.target.is_shaped_remotely), ""),
        keys=keys.read(keys.RunKeys, _require_keys(key_file, keys.RUN_FILE)),
    )


def parse_page_address(option: str, text: str | None, example: int) -> Endpoint | None:
    """Return the address of a page that is served while loads run; None without one. SpecError if it is in use."""
    if text is None:
        return None
    port = text.rpartition(":")[2]
    if not port.isdigit() or not 0 < int(port[:6]) < 65536:
        raise SpecError(f"{option} {text}: write a port, like {example}, 127.0.0.1:{example} or [::1]:{example}")
    address = join.parse_endpoint(f"127.0.0.1:{port}" if text.removeprefix(":") == port else text)
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        socket.create_server((address.host, address.port), family=family).close()
    except OSError as error:
        raise SpecError(f"{option} {address}: cannot listen there ({error.strerror}). Choose another port.") from None
    return address


def _shaped_interface(target: TargetOptions) -> str:
    """Return the interface that the observers shape; SpecError if their other traffic would be affected."""
    link = target.interface
    assert link is not None  # noqa: S101 - they shape one
    if link.interface_mtu or link.shared_settings:
        raise SpecError("--interface-mtu and --shared-settings conflict with --watchers: use a profile without them")
    return link.name


def check_workers(remote: RemoteWorkers | None, plans: Sequence[Plan]) -> None:
    """Raise SpecError for loads that remote workers cannot send, and for an interface that the load does not cross."""
    is_remote = remote is not None and remote.workers > 0
    for cell in (run.cell for plan in plans for run in plan.runs):
        link = None if cell.target.is_shaped_remotely else cell.target.interface
        if link is not None and bool(link.port) != is_remote:
            raise SpecError(
                "--workers: the load comes from other machines and does not leave by --interface; give --port if the "
                "server is on this machine"
                if is_remote
                else "--port: the server is on this machine, so the load must come from others: add --workers N"
            )
        if not is_remote:
            continue
        if cell.target.url is None:
            raise SpecError(
                "--workers requires --url URL: a server that ingest-bench starts is in a network namespace that other "
                "machines cannot reach"
            )
        if cell.load.processes != 1:
            raise SpecError("--workers: each worker is one process; remove processes, and start more workers")
        if cell.load.track is not None and any(step.group for step in planning.read_track(cell.load.track).steps):
            raise SpecError("--workers: parallel tasks of a track can be sent by local processes only")


def _require_keys(path: Path | None, name: str) -> Path:
    if path is None:
        raise SpecError(
            f"--keys (or the environment's {KEYS_VARIABLE}) must be the path of a file such as {name}; "
            "`ingest-bench worker --new-keys DIR` creates it"
        )
    return path


def _typed_options(context: typer.Context, names: Sequence[str]) -> str:
    """Return those of the options that were typed, as text."""
    params = (param for param in context.command.params if param.name in names)
    return ", ".join(param.opts[0] for param in params if _is_on_command_line(context, param.name or ""))


def _is_on_command_line(context: typer.Context, name: str) -> bool:
    """Return True if that option was typed: the environment may set it for other commands."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
