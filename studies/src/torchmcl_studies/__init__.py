"""Studies: each trains something and writes records; pictures and tables are made from those. Never published."""
