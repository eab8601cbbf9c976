"""From readings and samples to one summary a run, and from summaries to comparisons. Pure: no input or output."""
