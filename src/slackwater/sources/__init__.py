"""Sources: list, read and decode the input of a pipeline."""
