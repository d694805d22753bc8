"""State as tables that anyone can SELECT from.

Local files only cache staged rows. A module does the same as the one with its name in `state/files`, if there is one.
"""
