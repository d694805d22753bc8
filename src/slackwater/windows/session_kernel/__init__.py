"""Compiled loops that sort intervals of sessions and build runs of them."""
