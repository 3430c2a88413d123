"""Parsing and dispatch of the commands for speech."""
