"""Reports of the studies, made from records."""
