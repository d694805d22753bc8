"""State as tables that anyone can SELECT from.

The only local files are copies of staged rows. A module in this package has the same purpose as the module of the same
name in `state/files`, if there is one.
"""
