"""Data sets of the studies."""
