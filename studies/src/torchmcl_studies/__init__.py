"""Studies: each trains networks and writes records, from which pictures and tables are made. Not published."""
