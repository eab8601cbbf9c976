"""Predicted cost of receive buffers, and published costs."""
