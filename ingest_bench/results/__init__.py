"""A results folder: its layout, the format of its files, and the facts of the machine."""
