"""A results folder: its layout, the form of its files, and the facts of the machine."""
