"""Operators, which run a stage on one shard.

An operator reads rows and state, calls the pure functions of windows and joins, and stages results and new state. This
package does not depend on Spark, sources or targets.

May import: config, core, errors, joins, state, watermark, windows.
"""
