"""Who may join a fleet: CURVE keys in files that nobody else can read, and never anywhere else.

Each worker has a key of its own, so that none can pose as another.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import zmq
from zmq.utils import z85

from ingest_bench.errors import SpecError
from ingest_bench.inputs import files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

RUN_FILE = "run.key"
_REMEDY = "`ingest-bench worker --new-keys DIR` makes new ones"
_KEY_CHARACTERS = 40  # z85 of 32 bytes (zmq_curve_keypair(3))
_Keys = TypeVar("_Keys")


@dataclass(frozen=True, slots=True)
class Pair:
    """A key: its public half may be told."""

    public: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RunKeys:
    """What `run` knows: its own key, and the public halves of those that may join, each with its name."""

    own: Pair
    workers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WorkerKeys:
    """What a worker knows: its own key, its name, and the public half of the only one that it works for."""

    own: Pair
    name: str
    run: str


def new_pair() -> Pair:
    """A new key."""
    public, secret = zmq.curve_keypair()
    return Pair(public.decode(), secret.decode())


def new(names: tuple[str, ...]) -> tuple[RunKeys, tuple[WorkerKeys, ...]]:
    """New keys for a run and for workers with these names."""
    run, pairs = new_pair(), [new_pair() for _ in names]
    workers = tuple(WorkerKeys(own, name, run.public) for name, own in zip(names, pairs, strict=True))
    return RunKeys(run, {keys.own.public: keys.name for keys in workers}), workers


def write_new(folder: Path, workers: int) -> tuple[Path, ...]:
    """New key files: the first is for `run`, the others for one worker each; all of them, or none.

    SpecError where there are some already, or they cannot be written.
    """
    run, members = new(tuple(f"worker-{number}" for number in range(1, workers + 1)))
    contents = {folder / RUN_FILE: table(run)} | {folder / f"{one.name}.key": table(one) for one in members}
    written: list[Path] = []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, content in contents.items():
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            written.append(path)
            with os.fdopen(opened, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=1)
    except BaseException as error:
        for path in written:
            path.unlink()
        if not isinstance(error, OSError):
            raise
        where = error.filename or folder
        if isinstance(error, FileExistsError):
            raise SpecError(f"{where}: is there already; new keys go into a folder without any") from None
        raise SpecError(f"{where}: new keys cannot be written there ({error.strerror})") from None
    return tuple(written)


def table(keys: RunKeys | WorkerKeys) -> dict[str, Any]:
    """Keys as JSON, for a file or the standard input of a child, and for nothing else."""
    own = {"public": keys.own.public, "secret": keys.own.secret}
    if isinstance(keys, RunKeys):
        return {"of": "run", **own, "workers": dict(keys.workers)}
    return {"of": "worker", **own, "name": keys.name, "run": keys.run}


def run_from(table: Mapping[str, Any]) -> RunKeys:
    """The keys of a run from their JSON."""
    workers = {_key(public): str(name) for public, name in table["workers"].items()}
    return RunKeys(Pair(_key(table["public"]), _key(table["secret"])), workers)


def worker_from(table: Mapping[str, Any]) -> WorkerKeys:
    """The keys of a worker from their JSON."""
    own = Pair(_key(table["public"]), _key(table["secret"]))
    return WorkerKeys(own, str(table["name"]), _key(table["run"]))


def read_run(path: Path) -> RunKeys:
    """The keys in the file that `run` is given; SpecError for what is no such file, or one that others can read."""
    return _read(path, "run", run_from)


def read_worker(path: Path) -> WorkerKeys:
    """The keys in the file that a worker is given; SpecError for what is no such file, or one that others can read."""
    return _read(path, "worker", worker_from)


def _read(path: Path, of: str, keys_from: Callable[[dict[str, Any]], _Keys]) -> _Keys:
    try:
        files.check(path)
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & 0o077:
                raise SpecError(f"{path}: others on this machine may read it (mode {mode & 0o777:o}); chmod 600 it")
            found = json.load(file)
    except OSError as error:
        raise SpecError(f"{path}: no key can be read from it ({error.strerror}); {_REMEDY}") from None
    except ValueError:
        raise SpecError(f"{path}: this is no key file; {_REMEDY}") from None
    if not isinstance(found, dict) or found.get("of") not in {"run", "worker"}:
        raise SpecError(f"{path}: this is no key file; {_REMEDY}")
    if found["of"] != of:
        other = RUN_FILE if of == "run" else "worker-1.key"
        raise SpecError(f"{path}: this is the key of a {found['of']}; here a file such as {other} is needed")
    try:
        return keys_from(found)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise SpecError(f"{path}: this is no whole key file; {_REMEDY}") from None


def _key(text: Any) -> str:
    if not isinstance(text, str) or len(text) != _KEY_CHARACTERS or not text.isascii():
        raise ValueError("no key")
    try:
        z85.decode(text.encode())
    except (KeyError, struct.error):  # no character of Z85, or five that are more than 32 bits
        raise ValueError("no key") from None
    return text
