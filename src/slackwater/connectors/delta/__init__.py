"""Delta tables as sources and targets, without Spark."""
