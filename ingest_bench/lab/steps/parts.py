"""What a run does with a server that is ready: its parts, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ingest_bench.load.plan import LoadPlan
from ingest_bench.model.target import Place
from ingest_bench.model.track import AdminRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Requests to the server, one after the other."""

    name: str
    requests: tuple[AdminRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """A load."""

    name: str
    plan: LoadPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Loads at the same time."""

    name: str
    sends: tuple[Send, ...]
    ends_all: tuple[bool, ...]
    """For each, whether the others end when it is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    """The parts in their order, and the indices whose documents are counted at the end."""

    parts: tuple[Ask | Send | Together, ...]
    indices: tuple[str, ...]
    """Data streams among them."""
    skipped: tuple[str, ...] = ()
    """Operations of a track that are not done."""
    notes: tuple[str, ...] = ()
    """What is done in another way than it is written."""
    indices_known: bool = True
    """False: the documents name indices that nobody has read yet."""
    pipelines: tuple[str, ...] = ()
    """The ingest pipelines that its loads name."""

    @property
    def requests(self) -> tuple[AdminRequest, ...]:
        """All that is asked of the server beside loads."""
        return tuple(request for part in self.parts if isinstance(part, Ask) for request in part.requests)


def sends(part: Ask | Send | Together) -> tuple[Send, ...]:
    """The loads of a part: none, one, or several at the same time."""
    if isinstance(part, Together):
        return part.sends
    return (part,) if isinstance(part, Send) else ()


def place_of(place: Place) -> dict[str, Any]:
    """How a load gets to its server, as its plan says it."""
    return {
        "address": place.endpoint,
        "host_header": place.host_header,
        "path_prefix": place.path_prefix,
        "tls": place.tls,
        "credentials": place.credentials,
        "resolver": place.resolver,
        "others": place.others,
    }
