"""State as immutable files in a directory or an object store, without a database.

Module names match those in `state/postgres`.
"""
