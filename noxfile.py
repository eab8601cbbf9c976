"""The project's checks: `nox` runs all of them, `nox -s NAME` one."""

from __future__ import annotations
