"""The watchdog process: `python -m ingest_bench.ledger FILE DEADLINE PIPE READY`, started by `watchdog.session`."""

import sys

from ingest_bench.ledger import watchdog

if __name__ == "__main__":
    sys.exit(watchdog.main(sys.argv[1:]))
