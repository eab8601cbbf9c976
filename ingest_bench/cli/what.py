"""What `run` and `plan` are told to measure, and the plans that it makes."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from ingest_bench.cli.flow_options import Flows
from ingest_bench.errors import SpecError
from ingest_bench.experiment import order, spec, whole_paths
from ingest_bench.inputs import records, track_files, track_parameters
from ingest_bench.lab import campaign
from ingest_bench.lab.server import attaching
from ingest_bench.model.experiment import Plan
from ingest_bench.model.load import TrackChoice
from ingest_bench.results import layout

Experiment = Annotated[str | None, typer.Argument(help="An experiment by name (see `list`), or your own TOML file.")]
Sets = Annotated[list[str], typer.Option("--set", help="A setting or a factor: heap=1g,2g or network=jumbo.")]
Replicates = Annotated[int | None, typer.Option(help="How often each cell runs.", min=1)]
AgainstItself = Annotated[
    int | None,
    typer.Option(
        "--aa",
        metavar="N",
        help="Run each cell N times on each of two sides that do not differ: how much of a change is noise here, and "
        "how many replicates would show one of 10%, 5% or 3%.",
        min=3,
    ),
]
Measure = Annotated[str | None, typer.Option(help='How long each run measures, such as "20s".')]
WarmUp = Annotated[str | None, typer.Option(help='How long each run warms up before: "5s", or "auto".')]
Documents = Annotated[
    str | None,
    typer.Option(
        metavar="N|FILE",
        help="Measure until N documents are indexed; or send this file of them (NDJSON, also packed).",
    ),
]
Track = Annotated[
    Path | None,
    typer.Option(
        help="A Rally track or an OpenSearch Benchmark workload: its folder, or a .json file that is all of it."
    ),
]
TrackParams = Annotated[str, typer.Option(help="Its parameters: NAME:VALUE,…, a JSON object, or a JSON file.")]
Challenge = Annotated[str | None, typer.Option(help="Its challenge (test procedure), when not the default one.")]
IncludeTasks = Annotated[str, typer.Option(help="Only these tasks of it: NAME, type:bulk or tag:setup, with commas.")]
ExcludeTasks = Annotated[str, typer.Option(help="All tasks of it but these.")]
TestMode = Annotated[bool, typer.Option("--test-mode", help="A thousand documents of each file of the track.")]
Target = Annotated[
    str | None,
    typer.Option(help="A target by name (see `list`), or your own server: a TOML file that says how it is started."),
]
Url = Annotated[
    list[str],
    typer.Option(
        help="Measure the server that runs there, in place of one of ours. Again for each address of a cluster."
    ),
]
Attach = Annotated[
    list[int], typer.Option(help="Watch the server of this JVM (a pid) with all probes, without a restart.")
]
CaFile = Annotated[Path | None, typer.Option(help="The CA certificate (PEM) that vouches for the server at --url.")]
ClientCert = Annotated[
    Path | None,
    typer.Option(help="Our own certificate (PEM), for a server that demands one. Or INGEST_BENCH_CLIENT_CERT."),
]
ClientKey = Annotated[
    Path | None, typer.Option(help="The file of its key, without a passphrase. Or INGEST_BENCH_CLIENT_KEY.")
]
Aborts = Annotated[
    list[str],
    typer.Option(
        "--abort",
        metavar="CONDITION",
        help='End a hopeless load while it runs: "errors > 5% for 10s", "p99 > 2s for 30s". Several are allowed.',
    ),
]
Interface = Annotated[
    str | None,
    typer.Option(
        help="The real interface that leads to --url: shape it for each run as the network's profile says. Needs root."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class What:
    """What `run` and `plan` are told to measure, as it was typed."""

    experiment: Experiment = None
    sets: Sets = field(default_factory=list)
    replicates: Replicates = None
    against_itself: AgainstItself = None
    measure: Measure = None
    warm_up: WarmUp = None
    documents: Documents = None
    track: Track = None
    track_params: TrackParams = ""
    challenge: Challenge = None
    include_tasks: IncludeTasks = ""
    exclude_tasks: ExcludeTasks = ""
    test_mode: TestMode = False
    target: Target = None
    url: Url = field(default_factory=list)
    attach: Attach = field(default_factory=list)
    interface: Interface = None
    flows: Flows = field(default_factory=Flows)
    ca_file: CaFile = None
    client_cert: ClientCert = None
    client_key: ClientKey = None
    aborts: Aborts = field(default_factory=list)

    @property
    def choice(self) -> TrackChoice | None:
        """The track."""
        if self.track is None:
            if self.track_params or self.challenge or self.test_mode or self.include_tasks or self.exclude_tasks:
                raise SpecError(
                    "--track-params, --challenge, --include-tasks, --exclude-tasks and --test-mode belong to --track "
                    "DIR: which track?"
                )
            return None
        # The plan keeps it: a run may be resumed from another folder.
        path, parameters = whole_paths.absolute(self.track), track_parameters.parse(self.track_params)
        return TrackChoice(
            path=path,
            parameters=parameters,
            challenge=self.challenge,
            test_mode=self.test_mode,
            include_tasks=_listed(self.include_tasks),
            exclude_tasks=_listed(self.exclude_tasks),
        )

    @property
    def fixed(self) -> dict[str, Any]:
        """What has an option of its own, by its key."""
        found: dict[str, Any] = {"measure": self.measure, "warm_up": self.warm_up}
        found["abort"] = self.aborts or None
        if self.documents is not None and re.fullmatch("[0-9]+", self.documents):
            number = self.documents.lstrip("0")
            if self.measure is not None or not number:
                raise SpecError(
                    f"--documents {self.documents}: at least 1, and in place of --measure: the last one ends a run"
                )
            # Of a number that is too large by far, enough to be refused: Python reads none of 4300 digits.
            found["measure_documents"] = int(number[:40])
        elif self.documents == "-":
            raise SpecError(
                "--documents -: each worker reads the file, and a run that is resumed reads it again: "
                "write it to a file first, and give that"
            )
        elif self.documents is not None:
            # Absolute, as the track's: --resume may be called from another folder.
            found["documents"] = whole_paths.absolute(self.documents)
        if (choice := self.choice) is not None:
            found["track"] = {key: value for key, value in records.to_json(choice).items() if value not in (None, [])}
        if self.target is not None:
            is_file = self.target.endswith(".toml")
            found["file" if is_file else "target"] = whole_paths.absolute(self.target) if is_file else self.target
        for key in ("ca_file", "client_cert", "client_key"):
            path: Path | None = getattr(self, key)
            found[key] = whole_paths.absolute(path) if path else None
        return found


def plans(what: What) -> list[Plan]:
    """One plan, or one for each experiment that this one includes; SpecError for what cannot be."""
    names = spec.included(what.experiment) if what.experiment is not None else (None,)
    return [_plan(name, what) for name in names]


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in text.split(","))))


def _folder_name(track: Path) -> str:
    """Return the track's name as the name of a result folder: JVM options take no path with a space in it."""
    name = track_files.name_of(Path(whole_paths.absolute(track)).resolve())
    return re.sub(r"[^A-Za-z0-9=._-]+", "_", name)


def _plan(experiment: str | None, what: What) -> Plan:
    fixed = what.fixed
    first, *more = what.url or (None,)
    if len(what.attach) > 1:
        raise SpecError(f"--attach {', '.join(map(str, what.attach))}: one JVM can be attached; give one pid")
    attach = what.attach[0] if what.attach else None
    options: dict[str, Any] = {"url": first, "more_urls": more or None, "attach": attach}
    options["interface"] = what.flows.table(what.interface) or None
    if options["interface"] and not (what.url or what.attach):
        raise SpecError("--interface: it leads to a server that runs already; give --url too")
    running = {key: value for key, value in options.items() if value is not None}
    if experiment == "track" and what.track is None:
        raise SpecError("the experiment track sends a track: give it by --track DIR")
    if experiment is None and what.track is None and not running and "file" not in fixed:
        raise SpecError("which experiment? Try: ingest-bench run quickstart (`ingest-bench list` shows all)")
    usual = "track" if what.track is not None else "attached" if what.attach else "running"
    usual = usual if running or what.track is not None else "own-server"
    if what.against_itself is not None and what.replicates is not None:
        raise SpecError("--aa says already how often each side runs; take --replicates out")
    often = what.against_itself or what.replicates
    experiment_plan = spec.load(experiment or usual, what.sets, fixed=fixed, running=running or None, replicates=often)
    if experiment is None and what.track is not None:
        experiment_plan = dataclasses.replace(experiment_plan, name=_folder_name(what.track))
    ordered = order.order(experiment_plan)
    if what.against_itself is not None:
        ordered = order.against_itself(ordered)
    layout.check_names(ordered)
    return campaign.applicable(attaching.pinned(ordered))
