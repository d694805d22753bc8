"""Replay dead letters and the corrections that they cause. This package uses no Spark and no command line."""
