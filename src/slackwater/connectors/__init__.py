"""Connectors: one folder per system, with its sources and its target. Its `connector.py` creates and checks them.

Two folders serve several systems: `payloads` decodes records, and `tables` has what Delta and Iceberg share.

May import: config, core, errors, logging, pyspark, secrets, state, storage.
"""
