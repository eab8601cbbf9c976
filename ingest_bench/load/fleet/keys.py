"""CURVE keys of a fleet, in files that only their owner can read.

Each worker has a key of its own, so that none can pose as another.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import zmq
from zmq.utils import z85

from ingest_bench.errors import SpecError
from ingest_bench.inputs import files
from ingest_bench.inputs.records import from_json, to_json

RUN_FILE = "run.key"
_REMEDY = "`ingest-bench worker --new-keys DIR` generates new ones"
_KEY_CHARACTERS = 40  # z85 of 32 bytes (zmq_curve_keypair(3))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKeys:
    """The CURVE keys of `run`: its own, and the public keys of the workers that may join, with their names."""

    of: Literal["run"] = "run"
    public: str
    secret: str = field(repr=False)
    workers: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerKeys:
    """The CURVE keys of a worker: its own, with its name, and the public key of the only run that it works for."""

    of: Literal["worker"] = "worker"
    public: str
    secret: str = field(repr=False)
    name: str
    run: str


_Keys = TypeVar("_Keys", bound=RunKeys | WorkerKeys)


def generate(names: tuple[str, ...]) -> tuple[RunKeys, tuple[WorkerKeys, ...]]:
    """Generate keys for a run and for workers with these names."""
    (public, secret), *pairs = ([key.decode() for key in zmq.curve_keypair()] for _ in ("run", *names))
    members = tuple(
        WorkerKeys(public=own_public, secret=own_secret, name=name, run=public)
        for (own_public, own_secret), name in zip(pairs, names, strict=True)
    )
    return RunKeys(public=public, secret=secret, workers={keys.public: keys.name for keys in members}), members


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


def read(kind: type[_Keys], path: Path) -> _Keys:
    """Read the key file of `run` or of a worker; SpecError if it is not one, or if other users can read it."""
    owner = "run" if kind is RunKeys else "worker"
    try:
        with files.open_plain(path) as file:
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
        pair = from_json(kind, values)
        for key in (pair.public, pair.secret, *(pair.workers if isinstance(pair, RunKeys) else (pair.run,))):
            _check_key(key)
    except ValueError:
        raise SpecError(f"{path}: the key file is incomplete; {_REMEDY}") from None
    return pair


def _check_key(key: str) -> None:
    if len(key) != _KEY_CHARACTERS or not key.isascii():
        raise ValueError("not a key")
    try:
        z85.decode(key.encode())
    except (KeyError, struct.error):  # not a character of Z85, or five of more than 32 bits
        raise ValueError("not a key") from None
