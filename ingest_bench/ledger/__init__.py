"""Changes to the machine that outlive a process, and how they are always taken back.

`steps` are changes with their undo, `namespaces` say from where it works, `book` is the file in which the undo is noted
before the change is made, `sessions` are all such files with their locks, and `watchdog` is the second process that
takes everything back when the first one is done, late or dead.
"""

from ingest_bench.ledger.namespaces import Kind
from ingest_bench.ledger.sessions import Applied, Restored, restore, show, unreadable
from ingest_bench.ledger.steps import Action, Step, Undo
from ingest_bench.ledger.watchdog import Session, session

__all__ = [
    "Action",
    "Applied",
    "Kind",
    "Restored",
    "Session",
    "Step",
    "Undo",
    "restore",
    "session",
    "show",
    "unreadable",
]
