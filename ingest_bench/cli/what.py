"""What `run` and `plan` are told to measure, and the plans that it makes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ingest_bench import attaching, plan, records, spec, store
from ingest_bench.cli.flows import Flows
from ingest_bench.documents import tracks
from ingest_bench.errors import SpecError
from ingest_bench.model.experiment import Plan
from ingest_bench.model.load import TrackChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class What:
    """What `run` and `plan` are told to measure, as it was typed."""

    experiment: str | None = None
    sets: Sequence[str] = field(default_factory=list)
    replicates: int | None = None
    measure: str | None = None
    warm_up: str | None = None
    documents: str | None = None
    track: Path | None = None
    track_params: str = ""
    challenge: str | None = None
    test_mode: bool = False
    target: str | None = None
    url: Sequence[str] = ()
    attach: int | None = None
    flows: Flows = field(default_factory=Flows)
    ca_file: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    aborts: Sequence[str] = ()

    @property
    def choice(self) -> TrackChoice | None:
        """The track."""
        if self.track is None:
            if self.track_params or self.challenge or self.test_mode:
                raise SpecError("--track-params, --challenge and --test-mode belong to --track DIR: which track?")
            return None
        # The plan keeps it: a run may be resumed from another folder.
        path, parameters = str(self.track.absolute()), tracks.parameters_of(self.track_params)
        return TrackChoice(path=path, parameters=parameters, challenge=self.challenge, test_mode=self.test_mode)

    @property
    def fixed(self) -> dict[str, Any]:
        """What has an option of its own, by its key."""
        found: dict[str, Any] = {"measure": self.measure, "warm_up": self.warm_up}
        found["abort"] = list(self.aborts) or None
        if self.documents is not None and self.documents.isdecimal():
            if self.measure is not None or int(self.documents) < 1:
                raise SpecError(
                    f"--documents {self.documents}: at least 1, and in place of --measure: the last one ends a run"
                )
            found["measure_documents"] = int(self.documents)
        elif self.documents is not None:
            # Absolute, as the track's: --resume may be called from another folder.
            found["documents"] = str(Path(self.documents).absolute())
        if (choice := self.choice) is not None:
            found["track"] = {key: value for key, value in records.to_json(choice).items() if value is not None}
        if self.target is not None:
            is_file = self.target.endswith(".toml")
            found["file" if is_file else "target"] = str(Path(self.target).absolute()) if is_file else self.target
        for key in ("ca_file", "client_cert", "client_key"):
            path: Path | None = getattr(self, key)
            found[key] = str(path.absolute()) if path else None
        return found


def plans(what: What) -> list[Plan]:
    """One plan, or one for each experiment that this one includes; SpecError for what cannot be."""
    names = spec.included(what.experiment) if what.experiment is not None else (None,)
    return [_plan(name, what) for name in names]


def _plan(experiment: str | None, what: What) -> Plan:
    fixed = what.fixed
    first, *more = what.url or (None,)
    asked: dict[str, Any] = {"url": first, "more_urls": more or None, "attach": what.attach}
    asked["interface"] = what.flows.table or None
    if asked["interface"] and not (what.url or what.attach):
        raise SpecError("--interface: it leads to a server that runs already; give --url too")
    running = {key: value for key, value in asked.items() if value is not None}
    if experiment is None and what.track is None and not running and "file" not in fixed:
        raise SpecError("which experiment? Try: ingest-bench run quickstart (`ingest-bench list` shows all)")
    usual = "track" if what.track is not None else "attached" if what.attach is not None else "running"
    usual = usual if running or what.track is not None else "own-server"
    found = spec.load(experiment or usual, what.sets, fixed=fixed, running=running or None, replicates=what.replicates)
    if experiment is None and what.track is not None:
        found = dataclasses.replace(found, name=what.track.resolve().name)
    ordered = plan.order(found)
    store.check_names(ordered)
    return attaching.pinned(ordered)
