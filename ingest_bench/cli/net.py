"""`net`: shape a network link without an experiment, or some flows of a real interface."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from ingest_bench import units
from ingest_bench.cli import screen
from ingest_bench.cli.options import App, FlowOptions, grouped
from ingest_bench.errors import InvalidRun, RunFailed, SpecError
from ingest_bench.experiment import catalog, spec
from ingest_bench.inputs import records
from ingest_bench.ledger import sessions
from ingest_bench.ledger.steps import Step
from ingest_bench.model.network import Profile, RealInterface, TimeLimit
from ingest_bench.network.act import interface, uml
from ingest_bench.network.act import link as link_module
from ingest_bench.network.act import sandbox as sandbox_module
from ingest_bench.network.act.link import Link, choose_backend
from ingest_bench.network.act.sandbox import has_ipv6
from ingest_bench.network.measure import capture as captures
from ingest_bench.network.measure import check as check_module
from ingest_bench.network.plan import link_plan

_CAPTURE_BYTES = 64 * 10**6

app = App(help="Shape a separate link, or some flows of a real interface, for a limited time.")

ProfileName = Annotated[str, typer.Argument(help="A network profile by name (see `list`), or your own TOML file.")]
Backend = Annotated[
    Literal["auto", "kernel", "uml"],
    typer.Option(help="Where netem runs: in this kernel, or in a User-Mode Linux router. auto: what this machine has."),
]
Sets = Annotated[
    list[str], typer.Option("--set", help="Change a key of the profile, such as mtu=9000 or to_server.delay=5ms.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the exact commands and change nothing.")]


@app.command("exec")
@grouped
def execute(
    profile: ProfileName,
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, after `--`.")],
    server: str | None = None,
    server_port: int | None = None,
    capture_file: Path | None = None,
    netem: Backend = "auto",
    sets: Sets = [],  # noqa: B006 - typer copies it
    dry_run: DryRun = False,
) -> int:
    """Run a command on the client's side of a shaped link.

    The link exists as long as the command. The exit code is that of the command, or 3 if only the server's side failed.
    The command runs as root of a user namespace.

    The environment variables INGEST_BENCH_SERVER and INGEST_BENCH_CLIENT hold the two addresses.
    """
    if server_port is not None and server is None:
        raise SpecError("--server-port requires --server COMMAND")
    try:
        server_command = None if server is None else shlex.split(server)
    except ValueError as error:
        raise SpecError(f"--server {server}: it is not a valid shell command ({error})") from None
    chosen = _profile(profile, sets)
    if dry_run:
        _print_link(chosen, netem, (*((f"server: {server}",) if server else ()), f"client: {shlex.join(command)}"))
        return 0
    sandbox_module.require_process_namespaces()
    with ExitStack() as stack:
        link = stack.enter_context(link_module.open_link(chosen, netem=netem))
        # Not on stdout, which belongs to the command.
        screen.print_to_stderr(f"client {link.client_address}, server {link.server_address}, netem: {link.backend}")
        env = sandbox_module.user_environment(link.client_address, link.server_address)
        has_failed = None
        if server_command is not None:
            starting = sandbox_module.start_on_server(link.server, server_command, env, port=server_port)
            has_failed = stack.enter_context(starting)
        status, summary = _run_on_client(link, command, env, capture_file)
        failed = has_failed() if has_failed is not None else 0
    for line in summary:
        screen.print_to_stderr(line)
    if failed:
        text = f"--server {server}: it exited with {failed} while COMMAND ran"
        if not status:
            raise RunFailed(text)
        screen.print_to_stderr(text)
    return status


def _run_on_client(
    link: Link, command: list[str], env: dict[str, str], capture_file: Path | None
) -> tuple[int, tuple[str, ...]]:
    """Run the command; return its exit code and the summary of the capture."""
    if capture_file is None:
        return sandbox_module.run_on_client(link.client, command, env), ()
    end = link.ends[0]
    with captures.start_capture(end.namespace.command, end.device, capture_file, _CAPTURE_BYTES) as capture:
        status = sandbox_module.run_on_client(link.client, command, env)
        lost = capture.keep()
    return status, captures.format_summary(captures.read_capture(capture_file), lost)


@app.command()
def capture(
    file: Annotated[Path, typer.Argument(help="A new file for the headers, as pcap.")],
    interface_name: Annotated[str, typer.Option("--interface", help="The interface whose frames are captured.")],
    time_limit: Annotated[str, typer.Option("--for", help='Duration, such as "10s". Ctrl-C ends it earlier.')],
    most: Annotated[str, typer.Option("--bytes", help="Maximum size of the capture.")] = "64MB",
) -> None:
    """Capture the headers of an interface's frames as a pcap file, and print a summary. Needs root.

    Payloads of TCP and UDP are not kept, so the file has no passwords and no documents.

    For a separate link, see `net exec --capture`.
    """
    records.read_key(RealInterface, ("name",), interface_name, "--interface")
    limit_s = records.read_key(TimeLimit, ("for",), time_limit, "--for") / 1e9
    most_bytes = units.parse_bytes(most)
    if not 1 <= most_bytes <= units.parse_bytes("1GiB"):
        raise SpecError(f"--bytes {most}: the capture is in memory until the end; give at most 1GiB")
    with captures.start_capture(tuple, interface_name, file, most_bytes) as running_capture:
        try:
            running_capture.wait(limit_s)
        finally:
            lost = running_capture.keep()
    for line in captures.format_summary(captures.read_capture(file), lost):
        screen.print_text(line)


@app.command("check")
def check_profile(
    profile: ProfileName,
    netem: Backend = "auto",
    sets: Sets = [],  # noqa: B006 - typer copies it
    dry_run: DryRun = False,
) -> int:
    """Create a link, measure it, and print the values of its profile next to the measured ones.

    The exit code is 3 if a check fails.
    """
    chosen = _profile(profile, sets)
    if dry_run:
        _print_link(chosen, netem, ())
        return 0
    with link_module.open_link(chosen, netem=netem) as link:
        checks = check_module.check_link(link)
    screen.print_table(
        f"{chosen.name}, netem: {link.backend}",
        ("check", "expected", "measured", "tolerance", "passed"),
        [
            (check.name, check.expected, check.measured, check.tolerance, "yes" if check.passed else "NO")
            for check in checks
        ],
    )
    failed = [check.name for check in checks if not check.passed]
    screen.print_text(f"failed: {', '.join(failed)}" if failed else f"all {len(checks)} checks passed")
    return InvalidRun.exit_code if failed else 0


@app.command()
@grouped
def apply(
    profile: ProfileName,
    interface_name: Annotated[str, typer.Option("--interface", help="The interface by which these packets leave.")],
    time_limit: Annotated[
        str,
        typer.Option(
            "--for", help='Duration, such as "60s". Then all changes are undone, even if this process was killed.'
        ),
    ],
    flows: FlowOptions,
    sets: Sets = [],  # noqa: B006 - typer copies it
    dry_run: DryRun = False,
) -> None:
    """Shape some flows of a real interface for a limited time. Needs root.

    It waits until the time is over, or until Ctrl-C.

    A watchdog process undoes all changes, even if this process is killed.
    """
    chosen = _profile(profile, sets)
    link: RealInterface = records.from_toml(RealInterface, flows.to_table(interface_name), "net apply")
    if not (link.to or link.port):
        raise SpecError("net apply requires --to HOST:PORT, or --port PORT if the server is on this machine")
    time_limit_s = records.read_key(TimeLimit, ("for",), time_limit, "--for") / 1e9
    if dry_run:
        _print_steps(interface.plan_steps(link, chosen))
        return
    with interface.shape_interface(link, chosen, time_limit_s=time_limit_s) as shaped:
        for connection in shaped.facts.ssh_connections:
            screen.print_text(f"exempt: SSH {connection}")
        screen.print_text(f"{chosen.name} on {link.name} {link.traffic} for {time_limit}; Ctrl-C ends it")
        shaped.session.wait_until_expired()
    screen.print_text("all changes are undone")


@app.command()
def show() -> None:
    """Show the changes of real interfaces and host settings: by which process, until when."""
    applied, unreadable = sessions.list_sessions(), sessions.find_unreadable()
    if not applied and not unreadable:
        screen.print_text("no changes are applied")
    rows = []
    for session in applied:
        until = datetime.fromtimestamp(session.deadline_realtime_ns / 1e9).astimezone()
        words = (session.description, str(session.pid), until.isoformat(sep=" ", timespec="seconds"), _state(session))
        rows.append((*words, ", ".join(session.steps)))
    if rows:
        screen.print_table("", ("what", "process", "until", "state", "changes"), rows)
    if unreadable:
        raise RunFailed("\n".join(unreadable))


@app.command()
def restore() -> None:
    """Undo all changes now, including those of killed processes."""
    restored = sessions.restore_all()
    undone = restored.undone
    for command in undone:
        screen.print_text(command)
    screen.print_text(f"{units.format_count(len(undone), 'change')} undone" if undone else "nothing to undo")
    if restored.remaining:
        raise RunFailed("\n".join(("not undone, because they are in another namespace:", *restored.remaining)))


def _state(session: sessions.SessionStatus) -> str:
    if not session.is_undoable_here:
        return "in another namespace"
    return "applied" if session.is_watched else "left by a killed process: run `ingest-bench net restore`"


def _print_link(profile: Profile, netem: str, then: tuple[str, ...]) -> None:
    """Print the commands that create the link, each after the namespace that it runs in, and what runs then."""
    backend = choose_backend(netem, (profile,))
    options = uml.uml_kernel_options() if backend == "uml" else ()
    _print_steps(link_plan.link_steps(profile, backend, has_ipv6=has_ipv6(), uml_kernel_options=options), then)


def _print_steps(steps: tuple[Step, ...], then: tuple[str, ...] = ()) -> None:
    """Print the commands in their order, then those that undo them."""
    for line in (*map(str, steps), *then):
        screen.print_text(line)
    undone = [str((undo.resolve() or undo).action) for step in reversed(steps) for undo in step.undo]
    screen.print_text("# undo:" if undone else "# undo: nothing; the kernel removes everything with the namespaces")
    for line in undone:
        screen.print_text(line)


def _profile(name: str, sets: list[str]) -> Profile:
    return catalog.load_profile(name, spec.parse_profile_overrides(sets))
