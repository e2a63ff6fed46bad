"""Measures which kernel is the fastest at which shape, and keeps the result as a tuned table."""
