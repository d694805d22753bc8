"""Reading and replaying dead letters, and correcting the results that a replay changes, without Spark.

May import: config, connectors, core, engine, errors, operators, state, windows.
"""
