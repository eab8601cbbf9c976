"""`ingest-bench net …` as its own process, before and after it is mounted in the whole command."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from typer.exceptions import TyperException

from ingest_bench.cli.net import app
from ingest_bench.errors import IngestBenchError


def interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except TyperException as error:
        sys.stderr.write(f"error: {error.format_message()}\n")
        sys.exit(2)
    except IngestBenchError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
