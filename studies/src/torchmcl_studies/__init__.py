"""Studies (not published): each trains networks and writes records, from which pictures and tables are drawn."""
