"""Fast ways to take a training step; each computes what `mcl_step` defines."""
