"""The command: arguments in, exit code out. The only package that prints.

It imports nothing else of the package at import time: Ctrl-C before `main` begins would end with a traceback.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType


def main() -> None:
    """Run the command and end the process: 0 pass, 1 gate, 2 usage, 3 invalid, 4 cannot, 130 Ctrl-C."""
    signal.signal(signal.SIGTERM, _exit_now)
    # A background job of a script starts with SIGINT ignored; it stays ignored.
    handles_sigint = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    if handles_sigint:
        signal.signal(signal.SIGINT, _exit_now)
    sys.unraisablehook, sys.excepthook = _repeat_interrupt, _print_exception
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        # Found out now: isatty is false for a terminal that is gone.
        terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]
        signal.signal(signal.SIGHUP, lambda *_: _hang_up(terminals))
    # Python sets a stream to None if the parent closed it.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - as long as the process
    from ingest_bench import system  # noqa: PLC0415

    # Libraries start programs too: matplotlib asks fc-list for fonts.
    os.environ["PATH"] = system.PATH
    # matplotlib cannot be imported with an unknown backend; our pictures need no screen.
    os.environ["MPLBACKEND"] = "agg"
    from ingest_bench.cli.app import run  # noqa: PLC0415

    # From here on something may be running that must be stopped first.
    signal.signal(signal.SIGTERM, _interrupt)
    if handles_sigint:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = run()
    except KeyboardInterrupt:
        _print_interrupted()
        code = 130
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def _exit_now(*_: object) -> None:
    """Exit at once: nothing was started yet, or everything is stopped."""
    _print_interrupted()
    os._exit(130)


def _print_interrupted() -> None:
    try:
        os.write(2, b"interrupted\n")
    except OSError:
        # stderr is closed, or a pipe without a reader.
        return


def _hang_up(terminals: list[int]) -> None:
    """Redirect output away from a terminal that is gone, and stop everything: printing there would fail."""
    for descriptor in terminals:
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    raise KeyboardInterrupt


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _print_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an unexpected error with its traceback. Its text may hold terminal commands, so it is escaped."""
    if issubclass(kind, KeyboardInterrupt):
        _exit_now()
    import traceback  # noqa: PLC0415

    from ingest_bench.inputs.escaping import escape_text  # noqa: PLC0415

    sys.stderr.write(escape_text("".join(traceback.format_exception(kind, error, trace))))


def _repeat_interrupt(ignored: sys.UnraisableHookArgs) -> None:
    """Send a Ctrl-C again if it came where Python drops exceptions, such as in a `__del__`."""
    if not isinstance(ignored.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(ignored)
        return
    import threading  # noqa: PLC0415

    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
