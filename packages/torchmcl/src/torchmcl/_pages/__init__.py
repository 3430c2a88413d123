"""Pages, pictures and numbers that reports of several packages share; private to the packages of this repository."""
