"""The command: arguments in, exit code out. The only package that prints."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType, TracebackType

from ingest_bench.inputs.visible import visible


def main() -> None:
    """Run the command and end the process: 0 pass, 1 gate, 2 usage, 3 invalid, 4 cannot, 130 Ctrl-C."""
    sys.unraisablehook, sys.excepthook = _again, _explain
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        # Asked afterwards, a terminal that is gone is none any more.
        terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]
        signal.signal(signal.SIGHUP, lambda *_: _hang_up(terminals))
    # None: closed by whoever started us. Nobody reads it then.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - as long as the process
    try:
        from ingest_bench import system  # noqa: PLC0415

        # Libraries start programs too: matplotlib asks fc-list which fonts there are.
        os.environ["PATH"] = system.PATH
        # matplotlib refuses to be imported with a word that it does not know, and our pictures need no screen.
        os.environ["MPLBACKEND"] = "agg"
        # It takes most of a second, and Ctrl-C in that time is no reason for a traceback.
        from ingest_bench.cli.app import run  # noqa: PLC0415

        code = run()
    except KeyboardInterrupt:
        code = 130
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def _hang_up(terminals: list[int]) -> None:
    """The terminal is gone: what is printed there while everything is stopped would only be one more error."""
    for descriptor in terminals:
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    raise KeyboardInterrupt


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An error of the program, with its traceback. Its words may be somebody else's."""
    sys.stderr.write(visible("".join(traceback.format_exception(kind, error, trace))))


def _again(ignored: sys.UnraisableHookArgs) -> None:
    """A Ctrl-C that came where Python forgets exceptions, such as in a `__del__`, comes once more."""
    if not isinstance(ignored.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(ignored)
        return
    once_more = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    once_more.daemon = True
    once_more.start()
