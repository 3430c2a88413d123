"""Pages about separated recordings, made from records."""
