"""HTTP/1.1 over bare sockets: user, framing, TLS."""
