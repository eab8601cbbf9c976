"""Whether a link does what its profile promises, and what crossed it while the load ran."""
