"""Garbage collections, by the flight recorder and by the GC log."""
