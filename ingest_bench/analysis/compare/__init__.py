"""Comparison of cells, results and histories by one number a run."""
