"""Verify that a link matches its profile, and record what crossed it during the load."""
