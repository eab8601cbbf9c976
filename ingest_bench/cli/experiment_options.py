"""Options of `run` and `plan` that say what is measured, and the plans made from them."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from ingest_bench import targets
from ingest_bench.cli.completion import complete_experiment, complete_setting, complete_target
from ingest_bench.cli.options import FlowOptions
from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog, spec
from ingest_bench.inputs import files, records, user_json
from ingest_bench.inputs.names import check_name
from ingest_bench.lab import campaign
from ingest_bench.lab.server import reach
from ingest_bench.model.experiment import Plan
from ingest_bench.model.load import TrackOptions
from ingest_bench.results import layout
from ingest_bench.units import quote_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentOptions:
    """Options of `run` and `plan` that say what is measured."""

    experiment: Annotated[str | None, {"autocompletion": complete_experiment}] = None
    sets: Annotated[list[str], {"autocompletion": complete_setting}] = field(default_factory=list)
    replicates: int | None = None
    against_itself: int | None = None
    measure: str | None = None
    warm_up: str | None = None
    documents: str | None = None
    mapping: Path | None = None
    index_settings: Path | None = None
    track: Path | None = None
    track_params: str = ""
    challenge: str | None = None
    include_tasks: str = ""
    exclude_tasks: str = ""
    test_mode: bool = False
    target: Annotated[str | None, {"autocompletion": complete_target}] = None
    url: list[str] = field(default_factory=list)
    attach: list[int] = field(default_factory=list)
    watchers: int | None = None
    watch_jmx: list[str] = field(default_factory=list)
    interface: str | None = None
    flows: FlowOptions = field(default_factory=FlowOptions)
    ca_file: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    aborts: list[str] = field(default_factory=list)

    @property
    def track_options(self) -> TrackOptions | None:
        """The track and its options."""
        if self.track is None:
            if self.track_params or self.challenge or self.test_mode or self.include_tasks or self.exclude_tasks:
                raise SpecError(
                    "--track-params, --challenge, --include-tasks, --exclude-tasks and --test-mode require --track DIR"
                )
            return None
        # Absolute, because the plan keeps it: a run may be resumed from another folder.
        path, parameters = catalog.absolute_path(self.track), user_json.parse_track_parameters(self.track_params)
        return TrackOptions(
            path=path,
            parameters=parameters,
            challenge=self.challenge,
            test_mode=self.test_mode,
            include_tasks=_split_names(self.include_tasks),
            exclude_tasks=_split_names(self.exclude_tasks),
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that have options of their own, by their keys."""
        table: dict[str, Any] = {"measure": self.measure, "warm_up": self.warm_up, "abort": self.aborts or None}
        if self.documents is not None:
            table |= self._document_settings(self.documents)
        if (track := self.track_options) is not None:
            table["track"] = {key: value for key, value in records.to_json(track).items() if value not in (None, [])}
        if self.target is not None:
            is_path = self.target.endswith(".toml")
            key = "file" if catalog.is_custom_target(self.target) else "target"
            table[key] = catalog.absolute_path(self.target) if is_path else self.target
        for key in ("mapping", "index_settings", "ca_file", "client_cert", "client_key"):
            path: Path | None = getattr(self, key)
            table[key] = catalog.absolute_path(path) if path else None
        return table

    def _document_settings(self, documents: str) -> dict[str, Any]:
        if documents == "-":
            raise SpecError(
                "--documents -: standard input can be read only once, and workers and --resume read it again. "
                "Write it to a file"
            )
        if not re.fullmatch("[0-9]+", documents):
            # Absolute, as the track's: --resume may be called from another folder.
            path = catalog.absolute_path(documents)
            if Path(path).is_dir():
                raise SpecError(f"--documents {documents}: is a folder. For a track: --track DIR.")
            if not Path(path).exists():
                raise SpecError(f"--documents {documents}: does not exist; a number is written like 5000000")
            return {"documents": path}
        number = documents.lstrip("0")
        if self.measure is not None or not number:
            raise SpecError(
                f"--documents {documents}: must be at least 1, and cannot be combined with --measure: the last one "
                "ends the run"
            )
        # Python parses no number above 4300 digits; 40 are enough to reject it as too large.
        return {"measure_documents": int(number[:40])}


def build_plans(options: ExperimentOptions) -> list[Plan]:
    """Return the plan, or one for each experiment that this one includes; raise SpecError for impossible options."""
    if options.experiment is not None:
        _check_experiment(options.experiment)
    names = spec.expand_includes(options.experiment) if options.experiment is not None else (None,)
    return [_build_plan(name, options) for name in names]


def _check_experiment(name: str) -> None:
    """Raise SpecError for the name of another part or of a folder, with the option that takes it."""
    if name.endswith(".toml") or name in files.data_files(catalog.EXPERIMENTS):
        return
    others: dict[str, Collection[str]] = {"--target ": targets.TARGETS}
    others |= {"--set workload=": files.data_files(catalog.WORKLOADS)}
    others |= {"--set network=": files.data_files(catalog.NETWORKS)}
    for option, names in others.items():
        if name in names:
            raise SpecError(f'"{name}" is not an experiment. Try: ingest-bench run quickstart {option}{name}')
    # A name that no file can have is no folder.
    with contextlib.suppress(OSError, ValueError):
        if Path(name).is_dir():
            raise SpecError(f"{quote_name(name)}: is a folder. Results to resume: --resume DIR. A track: --track DIR.")


def _build_plan(experiment: str | None, options: ExperimentOptions) -> Plan:
    settings, server = options.settings, _server_settings(options)
    if experiment == "track" and options.track is None:
        raise SpecError("the experiment track requires --track DIR")
    name = experiment or _default_experiment(options, settings, server)
    if options.against_itself is not None and options.replicates is not None:
        raise SpecError("--aa cannot be combined with --replicates: its number is that of the replicates of each side")
    replicates = options.against_itself or options.replicates
    description = spec.load_experiment(
        name, options.sets, fixed=settings, running=server or None, replicates=replicates
    )
    if experiment is None and options.track is not None:
        description = dataclasses.replace(description, name=_folder_name(options.track))
    plan = spec.build_plan(description)
    if options.against_itself is not None:
        plan = spec.pair_runs(plan)
    layout.check_names(plan)
    return campaign.drop_inapplicable_cells(reach.pin_processes(plan))


def _server_settings(options: ExperimentOptions) -> dict[str, Any]:
    """Return the settings of a server that runs already; empty for one that ingest-bench starts."""
    first, *more = options.url or (None,)
    table: dict[str, Any] = {
        "url": first,
        "more_urls": more or None,
        "attach": options.attach or None,
        "watchers": options.watchers,
        "watch_jmx": options.watch_jmx or None,
        "interface": options.flows.to_table(options.interface) or None,
    }
    if table["interface"] and not (options.url or options.attach):
        raise SpecError("--interface requires --url URL, a server that runs already")
    for name, value in {"--watchers": options.watchers, "--watch-jmx": options.watch_jmx}.items():
        if value and not options.url:
            raise SpecError(f"{name} requires --url URL, a server that runs on another machine")
    return {key: value for key, value in table.items() if value is not None}


def _default_experiment(options: ExperimentOptions, settings: dict[str, Any], server: dict[str, Any]) -> str:
    """Return the experiment to run when none is named."""
    if options.track is not None:
        return "track"
    if options.attach or options.watchers or options.watch_jmx:
        return "attached"
    if server:
        return "running"
    if "file" in settings:
        return "custom-target"
    chosen = ""
    if options.target is not None:
        problem = f'--target: unknown target "{quote_name(options.target)}"'
        check_name(options.target, complete_target(""), problem, "`ingest-bench list`")
        chosen = f" --target {options.target}"
    if options.documents is not None:
        chosen += f" --documents {shlex.quote(options.documents)}"
    raise SpecError(f"no experiment given. Try: ingest-bench run quickstart{chosen} (`ingest-bench list` shows all)")


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in text.split(","))))


def _folder_name(track: Path) -> str:
    """Return the track's name as the name of a result folder: JVM options accept no path with a space in it."""
    name = files.track_name(Path(catalog.absolute_path(track)).resolve())
    return re.sub(r"[^A-Za-z0-9=._-]+", "_", name)
