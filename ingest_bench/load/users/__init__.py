"""The Locust users, one file a protocol."""
