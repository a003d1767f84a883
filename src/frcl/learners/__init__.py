"""Learners: what to optimise, what to remember, how to predict."""
