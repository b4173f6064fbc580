"""Environments that run on a server, played as if they were here."""
