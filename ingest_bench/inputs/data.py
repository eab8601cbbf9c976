"""Where the shipped TOML files are: in the wheel below `ingest_bench/data`, in a checkout at its top."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent.parent


def folder(name: str) -> Path:
    """The folder of that name: "netem", "workloads" or "workloads/experiments"."""
    shipped = _PACKAGE / "data" / name
    return shipped if shipped.is_dir() else _PACKAGE.parent / name


def files(name: str) -> dict[str, Path]:
    """Name to path of each TOML in a data folder."""
    return {path.stem: path for path in sorted(folder(name).glob("*.toml"))}
