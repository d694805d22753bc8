"""Read-only queries of a state and of published results. They need no Spark and run while a runner is up."""
