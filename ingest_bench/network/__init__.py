"""The link between load and server: made, put into the state of a profile, and proven by measurement.

`profiles` reads TOML; `commands` and `netem` turn a profile into argv (pure); `link` acts, in namespaces of `sandbox`
that die with us; `box` is netem in the middle of the path, this kernel's or User-Mode Linux's.
"""

from ingest_bench.network.link import Link, link
from ingest_bench.network.profiles import load_profile

__all__ = ["Link", "link", "load_profile"]
