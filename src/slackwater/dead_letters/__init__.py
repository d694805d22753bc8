"""Read and replay dead letters, and correct the results that a replay changes. This package does not use Spark.

May import: config, connectors, core, engine, errors, operators, state, windows.
"""
