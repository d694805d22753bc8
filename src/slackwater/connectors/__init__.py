"""Connectors: one folder per system. The `connector.py` of a folder creates and checks the system's sources and target.

Two folders serve several systems: `payloads` decodes records, and `tables` contains what Delta and Iceberg share.

May import: config, core, errors, logging, pyspark, secrets, state, storage.
"""
