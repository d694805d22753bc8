"""Postgres tables as targets and for dead letters."""
