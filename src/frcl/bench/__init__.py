"""Timing: ratios to plain references on the CPU, and whole runs on a GPU."""
