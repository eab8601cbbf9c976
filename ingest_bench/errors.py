"""What can go wrong, each kind with the exit code that the command ends with.

A message says what was tried, what was found and what to do next.
"""

from __future__ import annotations


class IngestBenchError(Exception):
    """Any failure that is explained to the user in one message, without a traceback."""

    exit_code = 1


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
