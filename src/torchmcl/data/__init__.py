"""Data sets: each returns a Batch, or samples to build one from."""
