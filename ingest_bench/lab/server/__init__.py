"""The server of a run: started by us, attached to, or reached from outside."""
