"""The search for the highest rate that meets a goal."""
