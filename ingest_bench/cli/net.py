"""`net`: the link as a tool of its own, and flows of a real interface."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from ingest_bench import units
from ingest_bench.cli import screen
from ingest_bench.cli.flow_options import Flows
from ingest_bench.cli.grouped import grouped
from ingest_bench.errors import InvalidRun, RunFailed, SpecError
from ingest_bench.experiment import catalog, spec
from ingest_bench.inputs import records
from ingest_bench.ledger.steps import Step
from ingest_bench.model.network import Profile, Promise, RealLink, TimeLimit
from ingest_bench.network.act import inside, interface, uml
from ingest_bench.network.act import link as link_module
from ingest_bench.network.act.box import choose
from ingest_bench.network.act.sandbox import has_ipv6
from ingest_bench.network.measure import capture as captures
from ingest_bench.network.measure import check as check_module
from ingest_bench.network.plan import link_plan

_CAPTURE_BYTES = 64 * 10**6

app = typer.Typer(
    help="Shape a link of your own, or some flows of a real interface, and take it back.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

ProfileName = Annotated[str, typer.Argument(help="A network profile by name (see `list`), or your own TOML file.")]
Backend = Annotated[
    Literal["auto", "kernel", "uml"],
    typer.Option(help="Which netem: the kernel's, or a User-Mode Linux box. auto takes what this machine has."),
]
Sets = Annotated[
    list[str], typer.Option("--set", help="Change a key of the profile, such as mtu=9000 or to_server.delay=5ms.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the exact commands and change nothing.")]


@app.command("exec")
def execute(
    profile: ProfileName,
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, after `--`.")],
    server: Annotated[
        str | None, typer.Option(help="A command for the server's side. It is stopped when COMMAND has ended.")
    ] = None,
    server_port: Annotated[
        int | None, typer.Option(help="Begin when the server's side listens on this port.", min=1, max=65535)
    ] = None,
    capture_file: Annotated[
        Path | None, typer.Option("--capture", help="Keep the headers of the first 64 MB as pcap, and say what it saw.")
    ] = None,
    netem: Backend = "auto",
    sets: Sets = [],  # noqa: B006 - typer copies it
    dry_run: DryRun = False,
) -> int:
    """Run a command on the client's side of a shaped link.

    The link exists as long as the command. The exit code is the command's, or 3 where only the server's side failed.
    Inside, it is root, even if you are not.

    It finds the two addresses in INGEST_BENCH_SERVER and INGEST_BENCH_CLIENT.
    """
    if server_port is not None and server is None:
        raise SpecError("--server-port: there is nothing to wait for; add --server COMMAND")
    try:
        server_command = shlex.split(server) if server is not None else None
    except ValueError as error:
        raise SpecError(f"--server {server}: a shell could not read it ({error})") from None
    chosen = _profile(profile, sets)
    if dry_run:
        _print_link(chosen, netem, (*((f"server: {server}",) if server else ()), f"client: {shlex.join(command)}"))
        return 0
    inside.require()
    with ExitStack() as stack:
        link = stack.enter_context(link_module.link(chosen, netem=netem))
        # Not on the standard output: that one is the command's.
        screen.note(f"client {link.client_address}, server {link.server_address}, netem: {link.backend}")
        has_failed, said = None, tuple[str, ...]()
        if server_command is not None:
            has_failed = stack.enter_context(inside.server(link, server_command, port=server_port))
        if capture_file is None:
            status = inside.run(link, command)
        else:
            end = link.ends[0]
            with captures.capturing(end.namespace.command, end.device, capture_file, _CAPTURE_BYTES) as capture:
                status = inside.run(link, command)
                lost = capture.keep()
            said = captures.words(captures.read(capture_file), lost)
        failed = has_failed() if has_failed is not None else 0
    for line in said:
        screen.note(line)
    if failed:
        text = f"--server {server}: it ended with {failed} while COMMAND ran"
        if not status:
            raise RunFailed(text)
        screen.note(text)
    return status


@app.command()
def capture(
    file: Annotated[Path, typer.Argument(help="A new file for the headers, as pcap.")],
    interface_name: Annotated[str, typer.Option("--interface", help="The interface whose frames are kept.")],
    time_limit: Annotated[str, typer.Option("--for", help='How long, such as "10s". Ctrl-C ends it too.')],
    most: Annotated[str, typer.Option("--bytes", help="It ends, too, when it has so many bytes.")] = "64MB",
) -> None:
    """Keep the headers of an interface's frames as a pcap file, and say what is in it. Needs root.

    No byte of what TCP or UDP carry is kept: no password and no document.

    For a link of ours, see `net exec --capture`.
    """
    records.at(RealLink, ("name",), interface_name, "--interface")
    limit_s = records.at(TimeLimit, ("for",), time_limit, "--for") / 1e9
    most_bytes = units.parse_bytes(most)
    if not 1 <= most_bytes <= units.parse_bytes("1GiB"):
        raise SpecError(f"--bytes {most}: it is all in memory until the end; take at most 1GiB")
    with captures.capturing(tuple, interface_name, file, most_bytes) as lasting:
        try:
            lasting.wait(limit_s)
        finally:
            lost = lasting.keep()
    for line in captures.words(captures.read(file), lost):
        screen.say(line)


@app.command()
def check(
    profile: ProfileName,
    netem: Backend = "auto",
    sets: Sets = [],  # noqa: B006 - typer copies it
    dry_run: DryRun = False,
) -> int:
    """Make a link, measure what its profile promises, and print promised against measured.

    The exit code is 3 when a promise is broken.
    """
    chosen = _profile(profile, sets)
    if dry_run:
        _print_link(chosen, netem, ())
        return 0
    with link_module.link(chosen, netem=netem) as link:
        promises = check_module.check(link)
    screen.table(
        f"{chosen.name}, netem: {link.backend}",
        ("promise", "promised", "measured", "tolerance", "kept"),
        [(*_words(promise), "yes" if promise.kept else "NO") for promise in promises],
    )
    broken = [promise.name for promise in promises if not promise.kept]
    screen.say(f"broken: {', '.join(broken)}" if broken else f"all {len(promises)} promises are kept")
    return InvalidRun.exit_code if broken else 0


@app.command()
@grouped
def apply(
    profile: ProfileName,
    interface_name: Annotated[str, typer.Option("--interface", help="The interface by which packets go there.")],
    time_limit: Annotated[
        str, typer.Option("--for", help='How long, such as "60s". Then everything is put back, whatever happens.')
    ],
    flows: Flows,
    sets: Sets = [],  # noqa: B006 - typer copies it
    dry_run: DryRun = False,
) -> None:
    """Shape some flows of a real interface for a limited time. Needs root.

    It waits until the time is over, or until Ctrl-C.

    Everything is put back by a second process, even if this one is killed.
    """
    chosen = _profile(profile, sets)
    link: RealLink = records.from_toml(RealLink, flows.table(interface_name), "net apply")
    if not (link.to or link.port):
        raise SpecError("net apply: whose connections? Give --to HOST:PORT, or --port PORT where the server is here")
    time_limit_s = records.at(TimeLimit, ("for",), time_limit, "--for") / 1e9
    if dry_run:
        _print_steps(interface.plan(link, chosen))
        return
    with interface.shaped(link, chosen, time_limit_s=time_limit_s) as shaped:
        for words in shaped.spared:
            screen.say(f"spared: SSH {words}")
        screen.say(f"{chosen.name} on {link.name} {link.ends} for {time_limit}; Ctrl-C ends it")
        shaped.wait()
    screen.say("everything is put back")


@app.command()
def show() -> None:
    """Show what is applied to real interfaces and host settings: by whom, until when."""
    applied, unreadable = interface.show(), interface.unreadable()
    if not applied and not unreadable:
        screen.say("nothing is applied")
    rows = []
    for session in applied:
        until = datetime.fromtimestamp(session.until_realtime_ns / 1e9).astimezone()
        words = (session.what, str(session.pid), until.isoformat(sep=" ", timespec="seconds"), _state(session))
        rows.append((*words, ", ".join(session.steps)))
    if rows:
        screen.table("", ("what", "process", "until", "state", "changes"), rows)
    if unreadable:
        raise RunFailed("\n".join(unreadable))


@app.command()
def restore() -> None:
    """Put everything back now, also what a killed program left behind."""
    restored = interface.restore()
    undone = restored.undone
    for command in undone:
        screen.say(command)
    screen.say(f"{units.count_of(len(undone), 'change')} put back" if undone else "nothing to put back")
    if restored.left:
        raise RunFailed("\n".join(("not put back, it is not here:", *restored.left)))


def _state(session: interface.Applied) -> str:
    if not session.here:
        return "in another namespace"
    return "applied" if session.alive else "left behind: ingest-bench net restore"


def _words(promise: Promise) -> tuple[str, ...]:
    return (promise.name, promise.promised, promise.measured, promise.tolerance)


def _print_link(profile: Profile, netem: str, then: tuple[str, ...]) -> None:
    """What makes the link, each command after the namespace that it runs in, and what runs then."""
    backend = choose(netem, (profile,))
    words = uml.kernel_words() if backend == "uml" else ()
    _print_steps(link_plan.steps(profile, backend, has_ipv6=has_ipv6(), kernel_words=words), then)


def _print_steps(steps: tuple[Step, ...], then: tuple[str, ...] = ()) -> None:
    """The commands in their order, then the way back in its own."""
    for line in (*map(str, steps), *then):
        screen.say(line)
    undone = [str((undo.named() or undo).action) for step in reversed(steps) for undo in step.undo]
    screen.say("# and back:" if undone else "# and back: nothing; all of this goes with its namespaces")
    for line in undone:
        screen.say(line)


def _profile(name: str, sets: list[str]) -> Profile:
    return catalog.profile(name, spec.profile_overrides(sets))
