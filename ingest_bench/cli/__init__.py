"""The command: arguments in, exit code out. The only package that prints.

Imports nothing else of the package: a Ctrl-C before `main` has begun ends with a traceback.
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
    signal.signal(signal.SIGTERM, _leave)
    # Ignored from the start, as in a background job of a script, it stays so.
    is_heard = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    if is_heard:
        signal.signal(signal.SIGINT, _leave)
    sys.unraisablehook, sys.excepthook = _again, _explain
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        # Asked afterwards, a terminal that is gone is none any more.
        terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]
        signal.signal(signal.SIGHUP, lambda *_: _hang_up(terminals))
    # None: closed by whoever started us. Nobody reads it then.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - as long as the process
    from ingest_bench import system  # noqa: PLC0415

    # Libraries start programs too: matplotlib asks fc-list which fonts there are.
    os.environ["PATH"] = system.PATH
    # matplotlib refuses to be imported with a word that it does not know, and our pictures need no screen.
    os.environ["MPLBACKEND"] = "agg"
    from ingest_bench.cli.app import run  # noqa: PLC0415

    # From here on something may be running, which is stopped first.
    signal.signal(signal.SIGTERM, _interrupt)
    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = run()
    except KeyboardInterrupt:
        _say_interrupted()
        code = 130
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def _leave(*_: object) -> None:
    """Exit at once: nothing was started yet, or everything is stopped."""
    _say_interrupted()
    os._exit(130)


def _say_interrupted() -> None:
    try:
        os.write(2, b"interrupted\n")
    except OSError:
        # stderr is closed, or it is a pipe without a reader.
        return


def _hang_up(terminals: list[int]) -> None:
    """The terminal is gone: what is printed there while everything is stopped would only be one more error."""
    for descriptor in terminals:
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    raise KeyboardInterrupt


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An error of the program, with its traceback. Its words may be somebody else's."""
    if issubclass(kind, KeyboardInterrupt):
        _leave()
    import traceback  # noqa: PLC0415

    from ingest_bench.inputs.visible import visible  # noqa: PLC0415

    sys.stderr.write(visible("".join(traceback.format_exception(kind, error, trace))))


def _again(ignored: sys.UnraisableHookArgs) -> None:
    """A Ctrl-C that came where Python forgets exceptions, such as in a `__del__`, comes once more."""
    if not isinstance(ignored.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(ignored)
        return
    import threading  # noqa: PLC0415

    once_more = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    once_more.daemon = True
    once_more.start()
