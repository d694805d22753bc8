"""Files as sources and targets, on a local disk or in an object store."""
