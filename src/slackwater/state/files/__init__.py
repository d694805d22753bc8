"""State as immutable files in a directory or an object store, without a database.

A module in this package has the same purpose as the module of the same name in `state/postgres`, if there is one.
"""
