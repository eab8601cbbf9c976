"""What can go wrong, each kind with the exit code that the command ends with.

A message says what was tried, what was found and what to do next.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path


class IngestBenchError(Exception):
    """Any failure that is explained to the user in one message, without a traceback.

    Another machine is told `elsewhere`: a message that quotes a file says there only which one, where in it, and why.
    """

    exit_code = 1

    def __init__(self, message: str = "", *, elsewhere: str | None = None) -> None:
        super().__init__(message)
        self.elsewhere = message if elsewhere is None else elsewhere


class GateFailed(IngestBenchError):
    """A threshold or a baseline was not met."""

    exit_code = 1


class SpecError(IngestBenchError):
    """A file, key, value or option that the user gave is wrong. Nothing was started."""

    exit_code = 2


class InvalidRun(IngestBenchError):
    """A run without its condition: its numbers mean nothing. Never a pass, never in a plot."""

    exit_code = 3


class RunFailed(IngestBenchError):
    """A run that broke: the server died, a process could not be started, a tool went away."""

    exit_code = 3


class RunAborted(RunFailed):
    """A run that was ended while it ran, by a condition of the user's: what was measured until then is kept."""


class MissingCapability(IngestBenchError):
    """This machine cannot do what was asked. `ingest-bench doctor` says what it can."""

    exit_code = 4


class Interrupted(IngestBenchError):
    """Ctrl-C or SIGTERM, with a word about what is left to do."""

    exit_code = 130


def text_here(error: BaseException) -> str:
    """What is said of an error on the machine on which it happened."""
    return str(error) if isinstance(error, IngestBenchError) else f"{type(error).__name__}: {error}"


def text_elsewhere(error: BaseException) -> str:
    """What another machine is told of it: its place and its reason, and nothing that a file here holds."""
    if isinstance(error, IngestBenchError):
        return error.elsewhere
    if isinstance(error, OSError):
        return text_here(error)
    at = [f" at {Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-1:]]
    return type(error).__name__ + "".join(at)


@contextlib.contextmanager
def undone(undo: Callable[[], object]) -> Iterator[None]:
    """What the block changed before it failed is undone; an error of the undo never hides the block's own.

    `undo` must do for a change that was made in part, or not at all.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(IngestBenchError, OSError):
            undo()
        raise
