"""The compiled loops that order intervals of sessions and build runs of them."""
