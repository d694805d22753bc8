"""State as immutable files in a directory or an object store, without a database.

Modules with equal names in this package and in `state.postgres` have the same purpose.
"""
