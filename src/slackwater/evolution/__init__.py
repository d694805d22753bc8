"""Compare a config with a state, and rewrite the state for the config.

This package uses neither an engine nor Spark.

May import: config, core, errors, joins, operators, state, windows.
"""
