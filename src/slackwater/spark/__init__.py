"""The engine that runs the shard tasks of each epoch as Spark jobs.

May import: config, connectors, core, engine, errors, joins, logging, operators, pyspark, state, tuning_switches, watermark,
windows.
"""
