"""Pages about a model of a table, made from records."""
