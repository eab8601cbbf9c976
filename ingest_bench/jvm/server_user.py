"""The unprivileged user that a server runs as, and what it may reach."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench import system
from ingest_bench.inputs import untrusted
from ingest_bench.jvm import cache

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest_bench.model.target import LaunchPlan

# The traditional uid of nobody. OpenSearch, Elasticsearch and Cassandra refuse to run as root.
SERVER_UID = 65534
# For a server whose folders lie in a closed one, such as /root. access(2) forgets the capabilities of an ordinary uid
# unless no_setuid_fixup is set, and the flight recorder asks it whether its folder can be written.
_WALK_ANYWHERE = (
    "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
    "--securebits=+no_setuid_fixup",
)


def drop_privileges(plan: LaunchPlan) -> tuple[str, ...]:
    """The start of an argv whose program runs as an unprivileged user. It clears the death signal.

    An ordinary user is uid 0 inside the link's user namespace, which servers refuse: one namespace deeper it is not.
    """
    if not system.is_root():
        return ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")
    identity = (f"--reuid={SERVER_UID}", f"--regid={SERVER_UID}", "--clear-groups", "--no-new-privs")
    return ("setpriv", *identity, *(() if reachable(plan) else _WALK_ANYWHERE), "--")


def reachable(plan: LaunchPlan) -> bool:
    """Whether any user may walk to the server's folders, its program and the cache.

    Root's own folders are often closed (/root). A server with results there may then read and search, not write.
    """
    places = [*plan.writable, *plan.readable, plan.cwd, Path(plan.argv[0]), cache.folder()]
    way = {folder for place in places for folder in _way_to(place.absolute()) if folder.exists()}
    files = all(file.stat().st_mode & 0o004 for file in plan.readable)
    return files and all(_may_enter(folder) for folder in {plan.cwd, *way})


def _way_to(place: Path) -> Iterator[Path]:
    """Each folder on the way to a place, those that a link leads through too."""
    for step in (*reversed(place.parents), place):
        yield step.parent
        if step.is_symlink():
            yield from _way_to(step.parent / step.readlink())


def _may_enter(folder: Path) -> bool:
    """Whether the server's user may walk through a folder: any user may, or it was given to that one."""
    state = folder.stat()
    return bool(state.st_mode & 0o001) or (state.st_uid == SERVER_UID and bool(state.st_mode & 0o100))


def give(folder: Path) -> None:
    """A folder, with all below it, that the server's user may write. An ordinary user's server needs no gift."""
    if system.is_root():
        untrusted.give(folder, SERVER_UID)
