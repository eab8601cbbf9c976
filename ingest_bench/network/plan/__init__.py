"""What is done to a link or an interface for a profile, as lines of `ip -batch` and `tc -batch`. Pure."""
