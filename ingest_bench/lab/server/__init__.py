"""The server of a run: launched by us, attached to, or external."""
