"""Attach probes to the JVM of a pid, print "attached", and wait: `observe_driver.py PID RAW`. A test kills it."""

import sys
import time
from pathlib import Path

from ingest_bench import probes
from ingest_bench.jvm.attach import attach
from ingest_bench.probes import observer

jvm = attach(int(sys.argv[1]))
with observer.watch_attached((jvm,), probes.select_probes(["reads", "gc"]), [Path(sys.argv[2])], limit_s=300):
    sys.stdout.write("attached\n")
    sys.stdout.flush()
    time.sleep(300)
