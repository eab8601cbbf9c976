"""Record the JVM whose JMX listens at 127.0.0.1:PORT until killed: `jmx_driver.py PORT FOLDER`."""

import sys
import time
from pathlib import Path

from ingest_bench.jvm import jmx
from ingest_bench.model.target import Endpoint
from ingest_bench.probes import recording

settings = Path(sys.argv[2]) / "settings.jfc"
settings.write_text(recording.format_settings({}))
with (
    jmx.connect(Endpoint("127.0.0.1", int(sys.argv[1])), None) as jvm,
    jvm.record(settings, settings.with_name("recording.jfr"), limit_s=300),
):
    time.sleep(300)
