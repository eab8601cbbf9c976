"""Cells and results compared by one number a run."""
