"""`list`, `show`, `init`, `fetch`, `doctor` and `workload`: available parts, and the capabilities of this machine."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from ingest_bench import probes, targets
from ingest_bench.cli import screen
from ingest_bench.cli.options import App
from ingest_bench.documents import synthetic
from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog, spec
from ingest_bench.host import node_resources, settings
from ingest_bench.host.capability_checks import run_check
from ingest_bench.inputs import files, records
from ingest_bench.inputs.names import check_name
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.target import TargetOptions
from ingest_bench.network import link_capabilities
from ingest_bench.probes import kernel_reads, recording
from ingest_bench.protocols.protocol import PROTOCOLS
from ingest_bench.results import facts, safe_files
from ingest_bench.targets.base import check_targets
from ingest_bench.units import format_count, quote_name

app = App()
workload_app = App(help="Write the documents of a workload to a file.")
app.add_typer(workload_app, name="workload")


@app.command("list")
def list_parts(
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON object, for programs.")] = False,
) -> None:
    """List the experiments, network profiles, workloads, targets, protocols and probes."""
    folders = {"experiments": catalog.EXPERIMENTS, "network profiles": catalog.NETWORKS, "workloads": catalog.WORKLOADS}
    parts = {
        title: {
            name: str(catalog.read_table(path).get("description", ""))
            for name, path in files.data_files(folder).items()
        }
        for title, folder in folders.items()
    }
    parts["example targets"] = {
        name: str(catalog.read_table(path).get("description", ""))
        for name, path in files.data_files(catalog.CUSTOM_TARGETS).items()
    }
    parts["targets"] = {
        name: ", ".join(filter(None, (*target.versions, target.other_versions)))
        for name, target in targets.TARGETS.items()
    }
    # A protocol is created by a method of its class; probes are described by the table of their package.
    creators = {name: getattr(create, "__self__", create) for name, create in PROTOCOLS.items()}
    parts["protocols"] = {name: (creator.__doc__ or "").partition("\n")[0] for name, creator in creators.items()}
    measured = dict(re.findall(r"^\| (\S+) \| (.+?) \|", probes.__doc__ or "", re.MULTILINE))
    parts["probes"] = {name: measured.get(name, "") for name in probes.PROBES}
    if as_json:
        screen.print_json(parts)
        return
    for title, rows in parts.items():
        screen.print_names(title, list(rows.items()))


@app.command()
def show(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME | target NAME",
            help="An experiment, network profile or workload; or `target` and an example target. See `list`.",
        ),
    ],
) -> None:
    """Print a shipped file: an experiment, network profile, workload or example target. Copy it to change it."""
    is_target = names[0] == "target"
    name = " ".join(names[is_target:])
    if is_target:
        paths = sorted(files.data_folder(catalog.CUSTOM_TARGETS).iterdir())
        shipped = {path.name.removesuffix(".toml"): path for path in paths}
        check_name(name, shipped, f'unknown example target "{quote_name(name)}"')
    else:
        folders = (catalog.WORKLOADS, catalog.NETWORKS, catalog.EXPERIMENTS)
        shipped = {stem: path for folder in folders for stem, path in files.data_files(folder).items()}
        check_name(name, shipped, f'unknown name "{quote_name(name)}"', "`ingest-bench list`")
    screen.print_unwrapped(files.read_text(shipped[name]).rstrip("\n"))


@app.command()
def init(file: Annotated[Path, typer.Argument(help="The file to write, such as my.toml.")]) -> None:
    """Write an experiment with comments, as a start for your own. It runs as it is."""
    if file.suffix != ".toml":
        raise SpecError(f"{file}: the name of an experiment must end in .toml")
    safe_files.check_name(catalog.file_stem(file), "the experiment")
    is_new = False
    try:
        with file.open("x", encoding="utf-8") as target:
            is_new = True
            target.write(catalog.read_template())
    except FileExistsError:
        raise SpecError(f"{file}: exists already; it is not overwritten") from None
    except OSError as error:
        if is_new:
            file.unlink()  # The next attempt would find it.
        raise SpecError(f"{file}: cannot be written: {error.strerror}") from None
    name = shlex.quote(str(file))
    screen.print_text(f"{file}: written. Next: ingest-bench plan {name}, then ingest-bench run {name}")


@app.command()
def fetch(
    target: Annotated[
        str, typer.Argument(help="A target or an example by name, see `list`, or the TOML file of a custom target.")
    ],
    version: Annotated[str | None, typer.Option(help="Version of the target; default: its default version.")] = None,
) -> None:
    """Download a server and its JDK into the cache, so that later runs need no network."""
    options = _target_options(target, version)
    requirements = targets.resolve(options).requirements(options)
    with screen.download_progress() as on_progress:
        java = targets.fetch(requirements, None, on_progress)
        recording.reader_command(java)
    screen.print_text(f"{options.name}: everything is in the cache")


@app.command()
def doctor(
    servers: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="Custom targets: TOML files, or names of examples.")
    ] = None,
) -> None:
    """Show the capabilities of this machine, and the remedy for each one that is missing."""
    custom = {options.name: targets.resolve(options) for options in map(_target_options, servers or ())}
    screen.print_text(run_check("machine", _describe_machine).detail)
    for capability in (
        *link_capabilities.capabilities(),
        settings.check_settings(),
        *node_resources.check_resources(),
        kernel_reads.check_capability(),
        *check_targets({**targets.TARGETS, **custom}),
    ):
        screen.print_capability(capability.present, capability.name, capability.detail)
        if capability.remedy:
            screen.print_text(textwrap.indent(capability.remedy, " " * 6))
    screen.print_text("Settings of this machine, with the recommendations of the servers' vendors:")
    machine = settings.read_machine_facts()
    for item in settings.RECOMMENDATIONS:
        state = "harmful" if item.is_harmful(machine) else "fine   "
        screen.print_text(f"{state}  {item.name}: {item.describe(machine)}")
        screen.print_text(f"         recommended: {item.recommended} ({item.source})")


@workload_app.command("write")
def write_workload(
    name: Annotated[str, typer.Argument(help="A workload by name (see `list`), or your own TOML file.")],
    file: Annotated[
        Path, typer.Option("--out", help="The file to write: NDJSON, compressed if it ends in .gz or .zst.")
    ],
    documents: Annotated[int, typer.Option(help="Number of documents.", min=1)] = 10_000,
    seed: Annotated[int, typer.Option(help="Another seed gives other documents of the same kind.")] = 1,
) -> None:
    """Write the documents of a workload to a file."""
    records.read_key(LoadOptions, ("seed",), seed, "--seed")
    written = synthetic.write_documents(catalog.load_workload(name), documents, file, seed)
    screen.print_text(f"{file}: {format_count(documents, 'document')}, {written:,} bytes of JSON")


def _target_options(target: str, version: str | None = None) -> TargetOptions:
    table = {"file": target} if target.endswith(".toml") else {"name": target}
    return spec.build_target(table | ({} if version is None else {"version": version}), "target")


def _describe_machine() -> str:
    values = facts.collect_facts()
    return (
        f"{values['distribution']}, kernel {values['kernel']}, {values['cores']} cores, "
        f"{values['memory_bytes'] / 2**30:.0f} GiB, Python {values['python']}, uid {values['uid']}"
    )
