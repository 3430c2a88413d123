"""Speech separation with as many outputs as you like: train, evaluate, separate."""
