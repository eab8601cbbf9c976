"""Statistics of plain numbers: exact percentiles, histograms, changes of a level."""
