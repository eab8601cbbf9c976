"""Probe `kernel-reads`: BPF programs and their child process."""
