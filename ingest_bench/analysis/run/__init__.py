"""Columns of one run: what its load, server, probes and nodes give."""
