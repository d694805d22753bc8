"""Connectors: one folder per system, with its sources and its target. `connector.py` of each folder creates and checks them.

May import: config, core, errors, logging, pyspark, secrets, state, storage.
"""
