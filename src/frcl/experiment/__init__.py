"""Experiments: options, runner, metrics, results."""
