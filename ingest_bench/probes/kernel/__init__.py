"""Reads as the kernel sees them."""
