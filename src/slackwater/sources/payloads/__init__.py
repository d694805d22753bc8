"""Decoders from the bytes of a record to columns, one file per format. `registry.py` selects one."""
