"""HTML reports of separated recordings."""
