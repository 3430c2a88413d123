"""Faster ways in C, called through ctypes."""
