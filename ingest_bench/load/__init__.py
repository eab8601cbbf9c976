"""Load generation: Locust users in child processes that send prepared bodies and record every sample."""
