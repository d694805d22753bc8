"""Decoders that convert the bytes of a record to columns. Each format has a module; `payload_factory.py` selects one."""
