"""One run: from its samples and readings to one summary."""
