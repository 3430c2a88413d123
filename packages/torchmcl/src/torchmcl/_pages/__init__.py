"""Pages, pictures and number formats shared by the reports of several packages; private to this repository."""
