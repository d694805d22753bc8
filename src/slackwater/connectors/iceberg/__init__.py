"""Iceberg tables as sources and targets, by pyiceberg."""
