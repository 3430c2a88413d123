"""Commands for speech: parsing and dispatch only."""
