"""State stores: their protocol, the records of commits, and the implementations in files and in Postgres.

This package does not depend on Spark, sources or targets. The packages `windows` and `joins` define the layout of
state rows.

May import: config, core, errors, joins, logging, storage, watermark, windows.
"""
