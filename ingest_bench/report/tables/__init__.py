"""Tables as CSV, Markdown and rows for the terminal."""
