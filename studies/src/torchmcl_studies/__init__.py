"""Studies (not published): each trains networks and writes records, from which figures and tables are made."""
