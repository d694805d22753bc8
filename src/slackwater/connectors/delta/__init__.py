"""Delta tables as sources and targets. This package reads the log of a table itself, and writes with deltalake."""
