"""`list`, `fetch` and `doctor`: what there is, and what this machine can do."""

from __future__ import annotations

import json
import textwrap
from typing import Annotated

import typer

from ingest_bench import probes, targets
from ingest_bench.cli import screen
from ingest_bench.experiment import catalog, spec
from ingest_bench.host import cgroups, disk, io_limits, latency, machine, settings, syncs
from ingest_bench.host.advice import advice
from ingest_bench.inputs import data
from ingest_bench.model.target import TargetOptions
from ingest_bench.network import link_capabilities
from ingest_bench.probes import recording
from ingest_bench.probes.kernel import kernel_reads
from ingest_bench.protocols import PROTOCOLS
from ingest_bench.results import facts
from ingest_bench.targets.server_capabilities import capabilities as server_capabilities
from ingest_bench.trials import Trial, tried

app = typer.Typer()


@app.command("list")
def show_list(
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON object, for a program that reads it.")] = False,
) -> None:
    """List the experiments, network profiles, workloads, targets, protocols and probes."""
    folders = {
        "experiments": catalog.EXPERIMENTS,
        "network profiles": catalog.NETWORKS,
        "workloads": catalog.WORKLOADS,
    }
    found = {
        title: {name: str(catalog.table(path).get("description", "")) for name, path in data.files(folder).items()}
        for title, folder in folders.items()
    }
    found["targets"] = {name: ", ".join(target.versions) for name, target in targets.TARGETS.items()}
    found["protocols"] = {name: _first_line(protocol) for name, protocol in PROTOCOLS.items()}
    found["probes"] = {name: _first_line(probe) for name, probe in probes.PROBES.items()}
    if as_json:
        screen.say(json.dumps(found, indent=1))
        return
    for title, rows in found.items():
        screen.names(title, list(rows.items()))


@app.command()
def fetch(
    target: Annotated[str, typer.Argument(help="A target by name, see `list`, or the TOML file of your own server.")],
    version: Annotated[str | None, typer.Option(help="Its version; without it, the default one.")] = None,
) -> None:
    """Fill the cache with a server and its JDK, so that later runs need no network."""
    asked = _asked(target, version)
    needed = targets.of(asked).requirements(asked)
    with screen.downloads() as tell:
        java = targets.fetch(needed, None, tell)
        recording.reader(java)
    screen.say(f"{asked.name}: everything is in the cache")


@app.command()
def doctor(
    servers: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="Your own servers: their TOML files.")
    ] = None,
) -> None:
    """Say what this machine can do, and what to do about what it cannot."""
    own = {asked.name: targets.of(asked) for asked in (_asked(file) for file in servers or ())}
    screen.say(tried(Trial(name="machine", attempt=_machine)).detail)
    servers_here = server_capabilities({**targets.TARGETS, **own})
    of_shares = (cgroups.capability(), disk.capability(), io_limits.capability(), latency.capability())
    of_host = (settings.capability(), *of_shares, syncs.capability(), kernel_reads.capability())
    for each in (*link_capabilities.capabilities(), *of_host, *servers_here):
        screen.mark(each.present, each.name, each.detail)
        if each.remedy:
            screen.say(textwrap.indent(each.remedy, " " * 6))
    screen.say("Known to hurt such servers, or not, of this machine:")
    for one in advice(machine.facts()):
        screen.say(f"{'hurts' if one.hurts else 'fine '}  {one.name}: {one.found}")
        screen.say(f"       recommended: {one.recommended} ({one.source})")


def _asked(target: str, version: str | None = None) -> TargetOptions:
    table = {"file": target} if target.endswith(".toml") else {"name": target}
    return spec.target_options(table | ({} if version is None else {"version": version}), "target")


def _machine() -> str:
    known = facts.facts()
    return (
        f"{known['distribution']}, kernel {known['kernel']}, {known['cores']} cores, "
        f"{known['memory_bytes'] / 2**30:.0f} GiB, Python {known['python']}, uid {known['uid']}"
    )


def _first_line(thing: object) -> str:
    return ((thing if isinstance(thing, type) else type(thing)).__doc__ or "").strip().partition("\n")[0]
