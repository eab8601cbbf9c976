"""Faults of clients, beside the load."""
