"""Java runtimes, pinned artifacts, our own Java sources, server processes, and JVMs that already run."""
