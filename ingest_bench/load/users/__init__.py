"""The Locust users: what they send, and what they do with a ticket. How they send it, a protocol says."""
