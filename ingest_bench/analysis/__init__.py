"""Analysis of runs: pure functions from samples and probe outputs to columns, stalls, comparisons and predictions."""
