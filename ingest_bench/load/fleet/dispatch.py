"""Which users each worker has: Locust's dispatcher, with the plan's users in place of its own."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from locust.dispatch import UsersDispatcher

if TYPE_CHECKING:
    from collections.abc import Iterator


class FixedUsers(UsersDispatcher):
    """In place of Locust's dispatcher: each worker gets the users that its plan says, and keeps them."""

    counts: dict[str, dict[str, int]]
    # Or Locust starts the load anew when another worker joins.
    dispatch_in_progress = True

    def __init__(self, worker_nodes: list[Any], user_classes: list[Any]) -> None:  # noqa: ARG002 - as Locust calls it
        self._left: list[dict[str, dict[str, int]]] = []

    def new_dispatch(self, *_: Any, **__: Any) -> None:
        """All users of all workers, in one step."""
        # Not every worker has users of every class; Locust asks each for each.
        self._left = [{worker: Counter(users) for worker, users in self.counts.items()}]

    def __iter__(self) -> Iterator[dict[str, dict[str, int]]]:
        return self

    def __next__(self) -> dict[str, dict[str, int]]:
        if not self._left:
            raise StopIteration
        return self._left.pop()

    def add_worker(self, worker_node: Any) -> None:
        """It has no users of this load."""

    def remove_worker(self, worker_node: Any) -> None:
        """Its users are nobody else's."""
