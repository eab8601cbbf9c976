"""Built-in servers: small, in Java on Netty, from our own sources."""
