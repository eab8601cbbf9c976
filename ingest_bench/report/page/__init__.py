"""Pages that need nothing from elsewhere."""
