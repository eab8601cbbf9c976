"""Faults of a server's processes."""
