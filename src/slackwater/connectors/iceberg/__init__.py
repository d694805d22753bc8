"""Iceberg tables as sources and targets, using the library PyIceberg."""
