"""What carries a plan out, run by run, and turns the files of its runs into summaries."""
