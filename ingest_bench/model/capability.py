"""What a machine can do, found by trying."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One thing that was tried: whether it worked, what was seen, and what to do when it did not."""

    name: str
    present: bool
    detail: str
    remedy: str = ""
