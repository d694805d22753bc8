"""State as tables that anyone can SELECT from.

Local files only cache staged rows. Module names match those in `state/files`.
"""
