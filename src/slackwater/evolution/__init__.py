"""Comparison of a config with the state of a pipeline, and migration of the state.

This package uses neither an engine nor Spark.

May import: config, core, errors, joins, operators, state, windows.
"""
