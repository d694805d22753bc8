"""Comparison of a config with a state, and rewriting of the state for it.

This package uses neither an engine nor Spark.
"""
