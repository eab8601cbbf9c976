"""ingest-bench: chaos and load testing of network ingest into JVM servers.

docs/architecture.md says where each concept lives. Start reading at `lab/runner.py`: one run, top to bottom.
"""
