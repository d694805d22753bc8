"""State as immutable files in a directory; knows no database. The same names as in `state/postgres`."""
