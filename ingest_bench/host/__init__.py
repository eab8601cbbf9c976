"""Settings of the machine and of a process's share of it.

`settings` has the settings that an experiment may change for the time of a run, each with the file that it is, and how
they are put back. `shares` is what a node has of the machine for itself, so that faults can take it away: `cgroups`, a
file system (`disk`) with rules for it (`io_limits`) or a device that is late (`latency`), its `syncs` of files.
`neighbours` are busy on its CPUs. `machine` reads what this machine is, and `advice` judges what of it is known to hurt
such servers.
"""

from ingest_bench.host.settings import applied, capability, found, require, set_in_namespace

__all__ = ["applied", "capability", "found", "require", "set_in_namespace"]
