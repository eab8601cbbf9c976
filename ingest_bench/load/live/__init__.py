"""What a load tells while it runs."""
