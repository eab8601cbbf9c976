"""Journals and steps for tests of the ledger."""

from __future__ import annotations

from pathlib import Path

from ingest_bench.ledger import sessions
from ingest_bench.ledger.journal import Journal, create_header
from ingest_bench.ledger.steps import Action, Step, Undo

TRUE, FALSE = Action(argv=("true",)), Action(argv=("false",))


def make_write_step(path: Path, value: str) -> Step:
    """Return a step that writes a file, and whose undo writes its present content."""
    old = Action(path=str(path), value=path.read_text(encoding="ascii").strip())
    return Step(name=path.name, action=Action(path=str(path), value=value), undo=(Undo(action=old),))


def write(journal: Journal, path: Path, value: str) -> None:
    journal.apply(make_write_step(path, value), lambda _: None)


def apply_undo(journal: Journal, undo: Undo, name: str = "step") -> None:
    """Apply a step that changes nothing but has an undo."""
    journal.apply(Step(name=name, action=TRUE, undo=(undo,)), lambda _: None)


def create_journal(name: str = "key", resources: tuple[str, ...] = ()) -> Journal:
    path = sessions.ensure_state_folder() / f"{name}.jsonl"
    return Journal.create(path, create_header(name, 60, resources))
