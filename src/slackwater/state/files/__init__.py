"""State as immutable files in a directory or an object store, without a database.

A module does the same as the one with its name in `state/postgres`, if there is one.
"""
