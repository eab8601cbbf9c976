"""From TOML to a plan of runs. Pure: no input or output but the files that an experiment names."""
