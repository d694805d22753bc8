"""Reading and replay of dead letters, and corrections of the results that a replay changes. Does not use Spark.

May import: config, connectors, core, engine, errors, operators, state, windows.
"""
