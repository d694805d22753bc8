"""Read-only queries of a state and of published results, without Spark and even while a runner is active.

May import: config, connectors, core, dead_letters, engine, errors, evolution, joins, logging, operators, state,
storage, watermark, web, windows.
"""
