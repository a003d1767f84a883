"""Measuring, not testing: how long things take beside plain versions of the same, and whole runs on a GPU."""
