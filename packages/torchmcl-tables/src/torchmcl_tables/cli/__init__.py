"""Commands for tables: parsing and dispatch only."""
