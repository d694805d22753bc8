"""Replay of dead letters and the corrections that it causes. This package uses neither Spark nor the command line."""
