"""Environments as a service: one session API over HTTP for every id (extra ``server``)."""
