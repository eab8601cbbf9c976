"""Workers on other machines: Locust's master and workers over ZeroMQ with CURVE."""
