"""State stores: their protocol, the record of a commit, and the implementations in files and in Postgres.

This package knows nothing about Spark, sources or targets. The packages `windows` and `joins` define the layout of
its rows.

May import: config, core, errors, joins, logging, storage, watermark, windows.
"""
