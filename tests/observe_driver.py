"""Attaches probes to the JVM of a pid, says so, and waits: `python observe_driver.py PID RAW`. A test kills it."""

import sys
import time
from pathlib import Path

from ingest_bench import probes
from ingest_bench.jvm.attach import attach
from ingest_bench.probes import vantage as vantage_module

vantage = vantage_module.AttachedTo(attach(int(sys.argv[1])))
with vantage.watch(probes.chosen(["reads", "gc"]), [Path(sys.argv[2])], limit_s=300):
    sys.stdout.write("attached\n")
    sys.stdout.flush()
    time.sleep(300)
