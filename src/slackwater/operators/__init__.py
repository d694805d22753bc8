"""Operators: the work of a stage on one shard.

Only this package knows about both windows or joins and state. It knows nothing about Spark, sources or targets.
"""
