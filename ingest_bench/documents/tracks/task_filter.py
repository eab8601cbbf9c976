"""Choice of tasks as in Rally's `--include-tasks` and `--exclude-tasks`: by name, "type:bulk" or "tag:setup"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ingest_bench.errors import SpecError
from ingest_bench.inputs.records import nearest
from ingest_bench.units import quoted

_KINDS = ("type", "tag")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """The tasks that are done: those that match one of the filters, or those that match none."""

    filters: tuple[str, ...] = ()
    excludes: bool = True
    _seen: set[str] = field(default_factory=set, init=False)
    """Names, types and tags of the tasks in the schedule."""

    def keeps(self, name: str, operation: str, tags: object) -> bool:
        """Return True if a task of that name, operation type and tags is done."""
        listed = tags if isinstance(tags, list) else [tags]
        keys = {name, f"type:{operation}", *(f"tag:{tag}" for tag in listed if tag)}
        self._seen.update(keys)
        return keys.isdisjoint(self.filters) == self.excludes

    def check_matched(self, where: str) -> None:
        """Raise SpecError for a filter that matched no task, once all tasks were seen."""
        for text in self.filters:
            if text not in self._seen:
                raise SpecError(f"{where}: no task matches {quoted(text)}; {nearest(text, self._seen)}")


def task_filter(include: Sequence[str], exclude: Sequence[str]) -> TaskFilter:
    """Return the filter; SpecError for a malformed one."""
    if include and exclude:
        raise SpecError("--include-tasks cannot be combined with --exclude-tasks")
    for text in (*include, *exclude):
        kind, colon, value = text.partition(":")
        if colon and (kind not in _KINDS or not value or ":" in value):
            raise SpecError(f'{quoted(text)} does not choose tasks; write a name, "type:OPERATION-TYPE" or "tag:TAG"')
    return TaskFilter(filters=tuple(include or exclude), excludes=not include)
