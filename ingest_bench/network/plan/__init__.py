"""Plan links and changes to real interfaces as lists of steps. Pure."""
