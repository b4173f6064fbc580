"""The shop as a web site for people and browsers: ``create_app`` makes it, ``serve`` runs it."""
