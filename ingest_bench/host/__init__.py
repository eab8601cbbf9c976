"""Settings of the machine and of a process's share of it.

`settings` has the settings that an experiment may change for the time of a run, each with the file that it is, and how
they are put back. `cgroups` gives each node a share of the machine of its own, which faults make smaller, and `disk` a
file system, which they fill. `machine` reads what this machine is, and `advice` judges what of it is known to hurt such
servers.
"""

from ingest_bench.host import cgroups, disk
from ingest_bench.host.settings import applied, capability, found, require, set_in_namespace

__all__ = ["applied", "capability", "cgroups", "disk", "found", "require", "set_in_namespace"]
