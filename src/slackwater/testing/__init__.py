"""For tests, ours and those of users: a pipeline in one process with a virtual clock, an oracle, real services."""
