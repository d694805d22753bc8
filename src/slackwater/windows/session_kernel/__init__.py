"""Compiled loops that sort the intervals of sessions and join them into runs."""
