"""Small Java servers of ours."""
