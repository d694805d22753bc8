"""Operators: the work of a stage on one shard.

Only this package combines windows or joins with state. It knows nothing about Spark, sources or targets.
"""
