"""CURVE keys of a fleet, in files that only their owner can read.

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
_REMEDY = "`ingest-bench worker --new-keys DIR` generates new ones"
_KEY_CHARACTERS = 40  # z85 of 32 bytes (zmq_curve_keypair(3))
_Keys = TypeVar("_Keys")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key."""

    public: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RunKeys:
    """The keys of `run`: its own, and the public keys of the workers that may join, with their names."""

    own: KeyPair
    workers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WorkerKeys:
    """The keys of a worker: its own, with its name, and the public key of the only run that it works for."""

    own: KeyPair
    name: str
    run: str


def generate(names: tuple[str, ...]) -> tuple[RunKeys, tuple[WorkerKeys, ...]]:
    """Generate keys for a run and for workers with these names."""

    def generate_pair() -> KeyPair:
        public, secret = zmq.curve_keypair()
        return KeyPair(public.decode(), secret.decode())

    run = generate_pair()
    workers = tuple(WorkerKeys(generate_pair(), name, run.public) for name in names)
    return RunKeys(run, {keys.own.public: keys.name for keys in workers}), workers


def write_new(folder: Path, workers: int) -> tuple[Path, ...]:
    """Write new key files: the first for `run`, the others for one worker each; all of them, or none.

    SpecError if there are some already, or they cannot be written.
    """
    run, members = generate(tuple(f"worker-{number}" for number in range(1, workers + 1)))
    contents = {folder / RUN_FILE: to_json(run)} | {folder / f"{keys.name}.key": to_json(keys) for keys in members}
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
            raise SpecError(f"{where}: exists already. New keys require a folder without any.") from None
        raise SpecError(f"{where}: cannot write new keys there ({error.strerror})") from None
    return tuple(written)


def to_json(keys: RunKeys | WorkerKeys) -> dict[str, Any]:
    """Return keys as JSON values, only for a key file or the standard input of a child."""
    own = {"public": keys.own.public, "secret": keys.own.secret}
    if isinstance(keys, RunKeys):
        return {"of": "run", **own, "workers": dict(keys.workers)}
    return {"of": "worker", **own, "name": keys.name, "run": keys.run}


def run_keys_from_json(values: Mapping[str, Any]) -> RunKeys:
    """Return the keys of a run from their JSON values."""
    workers = {_check_key(public): str(name) for public, name in values["workers"].items()}
    return RunKeys(_own_pair(values), workers)


def worker_keys_from_json(values: Mapping[str, Any]) -> WorkerKeys:
    """Return the keys of a worker from their JSON values."""
    return WorkerKeys(_own_pair(values), str(values["name"]), _check_key(values["run"]))


def read_run(path: Path) -> RunKeys:
    """Read the key file of `run`; SpecError if it is not one, or if other users can read it."""
    return _read(path, "run", run_keys_from_json)


def read_worker(path: Path) -> WorkerKeys:
    """Read the key file of a worker; SpecError if it is not one, or if other users can read it."""
    return _read(path, "worker", worker_keys_from_json)


def _read(path: Path, owner: str, keys_from_json: Callable[[dict[str, Any]], _Keys]) -> _Keys:
    try:
        files.check_plain(path)
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & 0o077:
                raise SpecError(
                    f"{path}: other users of this machine may read it (mode {mode & 0o777:o}). chmod 600 it."
                )
            values = json.load(file)
    except OSError as error:
        raise SpecError(f"{path}: cannot read the key ({error.strerror}); {_REMEDY}") from None
    except ValueError:
        raise SpecError(f"{path}: not a key file; {_REMEDY}") from None
    if not isinstance(values, dict) or values.get("of") not in {"run", "worker"}:
        raise SpecError(f"{path}: not a key file; {_REMEDY}")
    if values["of"] != owner:
        example = RUN_FILE if owner == "run" else "worker-1.key"
        raise SpecError(f"{path}: this is the key of a {values['of']}. A file such as {example} is required.")
    try:
        return keys_from_json(values)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise SpecError(f"{path}: the key file is incomplete; {_REMEDY}") from None


def _own_pair(values: Mapping[str, Any]) -> KeyPair:
    return KeyPair(_check_key(values["public"]), _check_key(values["secret"]))


def _check_key(text: Any) -> str:
    if not isinstance(text, str) or len(text) != _KEY_CHARACTERS or not text.isascii():
        raise ValueError("not a key")
    try:
        z85.decode(text.encode())
    except (KeyError, struct.error):  # not a character of Z85, or five of more than 32 bits
        raise ValueError("not a key") from None
    return text
