"""Stalls of a load and their causes."""
