"""Wire protocols: how documents are sent, and what a response means. The table is in `protocol.py`."""
