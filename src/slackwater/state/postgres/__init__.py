"""State as tables that anyone can SELECT from.

Local files are only caches of staged rows. Module names match those in `state/files`.
"""
