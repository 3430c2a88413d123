"""Faster implementations in C, called through ctypes."""
