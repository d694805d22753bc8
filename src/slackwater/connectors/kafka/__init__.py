"""Kafka topics as sources, as targets and for dead letters."""
