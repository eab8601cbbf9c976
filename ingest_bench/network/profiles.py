"""A network profile by name, for those who need no experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingest_bench import catalog

if TYPE_CHECKING:
    from ingest_bench.model.network import Profile


def load_profile(name: str, overrides: dict[str, Any] | None = None) -> Profile:
    """A shipped profile by its name, or a user's own by the path of its TOML, with some of its keys replaced.

    `overrides` has the shape of the TOML: {"mtu": "9000", "to_server": {"delay": "5ms"}, "offloads": {"tso": "off"}}.
    """
    return catalog.profile(name, overrides or {})
