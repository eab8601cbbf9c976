"""Settings of the machine, and resources (cgroup, volume) of one node."""
