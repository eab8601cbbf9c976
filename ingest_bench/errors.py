"""Exceptions that end a command, each with its exit code.

A message says what failed, why, and what to do next.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path


class IngestBenchError(Exception):
    """A failure that is explained to the user in one message, without a traceback.

    Other machines get `remote_message`: it names the file, place and reason, but does not quote the file's content.
    """

    exit_code = 1

    def __init__(self, message: str = "", *, remote_message: str | None = None) -> None:
        super().__init__(message)
        self.remote_message = message if remote_message is None else remote_message


class SpecError(IngestBenchError):
    """A file, key, value or option of the user is wrong. Nothing was started."""

    exit_code = 2


class InvalidRun(IngestBenchError):
    """A precondition of the run did not hold; its results are discarded. Never a pass, never in a plot."""

    exit_code = 3


class RunFailed(IngestBenchError):
    """A run failed: the server died, a process could not be started, a command failed."""

    exit_code = 3


class RunAborted(RunFailed):
    """A run was ended early by a condition that the user set. Its measurements until then are kept."""


class MissingCapability(IngestBenchError):
    """This machine cannot do what the user requested. `ingest-bench doctor` shows what it can do."""

    exit_code = 4


class Interrupted(IngestBenchError):
    """Ctrl-C or SIGTERM ended the command. The message says what is left to do."""

    exit_code = 130


def describe_error(error: BaseException) -> str:
    """Return the message for the machine on which the error happened."""
    return str(error) if isinstance(error, IngestBenchError) else f"{type(error).__name__}: {error}"


def describe_error_for_remote(error: BaseException) -> str:
    """Return the message for another machine: the place and reason of the error, without content of local files."""
    if isinstance(error, IngestBenchError):
        return error.remote_message
    if isinstance(error, OSError):
        return describe_error(error)
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    return type(error).__name__ + "".join(f" at {Path(frame.filename).name}:{frame.lineno}" for frame in frames)


@contextlib.contextmanager
def undo_on_error(undo: Callable[[], object]) -> Iterator[None]:
    """Call *undo* if the block fails; an error of *undo* never hides the block's own.

    *undo* must also work if the block's change was made in part or not at all.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(IngestBenchError, OSError):
            undo()
        raise
