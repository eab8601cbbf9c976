"""When requests waited far longer than usual, and what explains it."""
