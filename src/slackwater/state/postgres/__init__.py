"""State as tables that anyone can SELECT from.

The only local files are copies of staged rows. Modules with equal names in this package and in `state.files` have the
same purpose.
"""
