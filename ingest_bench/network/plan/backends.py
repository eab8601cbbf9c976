"""What each backend of netem can carry and what it decides, as far as it can be said without trying. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingest_bench.network.plan import guest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ingest_bench.model.network import Profile


@dataclass(frozen=True, slots=True)
class Backend:
    """A kind of box in the middle of a path."""

    refusal: Callable[[Profile], str] = lambda _: ""
    """Why it cannot carry such a profile; empty: it can."""
    has_fixed_mtu: bool = False
    """Whether its own devices keep the MTU that it was opened with: then only the ends' devices have the profile's."""
    rate_by_netem: bool = False
    """Whether its timers are too late for any token bucket, and each rate is a netem's."""
    carried: Callable[[Profile], Profile] = lambda profile: profile
    """The profile with what the box itself decides where the profile left it open."""


BACKENDS: Mapping[str, Backend] = {
    "kernel": Backend(),
    "uml": Backend(guest.refusal, has_fixed_mtu=True, rate_by_netem=True, carried=guest.carried),
}
