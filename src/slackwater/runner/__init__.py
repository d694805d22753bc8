"""Runs of pipelines: build the components of a config, then start, watch and stop them.

This package does not depend on the command line.

May import: config, connectors, core, dead_letters, engine, errors, evolution, explain, logging, operators, pyspark,
query, secret_masking, spark, state, windows.
"""
