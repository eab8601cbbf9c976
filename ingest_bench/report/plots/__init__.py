"""Pictures as PNG bytes."""
