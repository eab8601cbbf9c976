"""Experiments: TOML to a plan of runs. Pure, except for reading files."""
