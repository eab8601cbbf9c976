"""Faults of what a node has of its machine."""
