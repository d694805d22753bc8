"""State stores: their protocol, the record of a commit, and the stores in files and in Postgres.

This package knows nothing about Spark, sources or targets. The layouts of its rows are those of windows and joins.

May import: config, core, errors, joins, logging, storage, watermark, windows.
"""
