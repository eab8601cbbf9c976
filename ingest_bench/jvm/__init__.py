"""Java for everybody: runtimes, pinned archives, our own Java sources, and server processes."""
