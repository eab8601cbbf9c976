"""The command: arguments in, exit code out. The only package that prints."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

import typer
from rich.markup import escape
from typer.exceptions import TyperException

from ingest_bench.cli import gate, look, measure, net, recommend, report, workload
from ingest_bench.cli.screen import ERRORS
from ingest_bench.errors import IngestBenchError

app = typer.Typer(
    name="ingest-bench",
    help="Chaos and load testing of network ingest into JVM servers: what the network does to the heap.",
    epilog="Start with: ingest-bench run quickstart",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
measure.add_to(app)
report.add_to(app)
recommend.add_to(app)
gate.add_to(app)
look.add_to(app)
app.add_typer(net.app, name="net")
app.add_typer(workload.app, name="workload")


def main() -> None:
    """Run the command and end the process: 0 pass, 1 gate, 2 usage, 3 invalid, 4 cannot, 130 Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _interrupt)
    sys.exit(_run())


def _run() -> int:
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        return 130
    except TyperException as error:
        _complain(f"{error.format_message()} `ingest-bench --help` shows what there is.")
        return 2
    except IngestBenchError as error:
        _complain(str(error))
        return error.exit_code
    except BrokenPipeError:
        # Whoever read our output went away, as `| head` does. Python's own flush at exit must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if code == 130:
        ERRORS.print("interrupted: everything that was started is stopped", soft_wrap=True)
    return code if isinstance(code, int) else 0


def _complain(text: str) -> None:
    ERRORS.print(f"[bold red]error:[/] {escape(text)}", soft_wrap=True, highlight=False)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
