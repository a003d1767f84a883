"""Interfaces to other libraries; each is an optional extra and is imported by its own name."""
