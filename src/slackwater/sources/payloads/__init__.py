"""Decoders that convert the bytes of a record to columns, one module per format. `registry.py` selects one."""
