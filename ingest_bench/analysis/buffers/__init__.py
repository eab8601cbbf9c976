"""What receive buffers of other sizes would have cost, and what was published about them."""
